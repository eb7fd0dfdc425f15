"""The command line: which commands there are, how they report, what they return.

A command is a module of `knowngood.commands` with `configure(parser)` and `run(arguments) -> Answer`; it is imported
when it is called. Every command takes `--json`: one document on stdout, everything else on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from knowngood import __version__
from knowngood.errors import InputError, KnowngoodError, UsageError, from_os

COMMANDS = {
    "cells": "list the cells with tier and attention settings",
    "check": "does this combination of packages, GPU, driver and use work",
    "pick": "the best cells for a request, or the demands that collide",
    "diagnose": "what failed in this log, whose fault it is, what fixes it",
    "doctor": "what a careful colleague would check here: GPU, driver, binaries, compilers, versions",
    "reproduce": "make a known failure happen, and its cure, and keep what was seen",
    "lock": "resolve cells to hash-pinned distributions, into docker/",
    "render": "write Dockerfiles and compatibility tables, or --check that they are current",
    "engine": "up, down, status or env of the embedded engine",
    "plan": "what a build would do, fetch and reuse, how large, in which order",
    "compile": "make wheels that nobody publishes, flash-attn 2 above all, once for each cell",
    "build": "build the images of cells",
    "smoke": "train a tiny Qwen2 under every attention setting, in the image or --here",
    "build-matrix": "all of it for the selected cells: engine, base, lock, render, build, smoke",
    "verify": "build cells again from nothing and compare with the recorded digests",
    "size": "what layers and cells weigh in a registry, or --check against the budget",
    "publish": "push proven images to a registry, staged by digest, never over another one",
    "audit": "known vulnerabilities of what cells lock, by OSV and Debian's tracker",
    "sbom": "a cell's bill of materials (CycloneDX), from its committed lock",
    "export": "a cell's lock as requirements, pylock, apptainer, devcontainer or conda",
    "nightly": "is what is known good still good: files, upstream, vulnerabilities, rebuilds, suites",
    "bisect": "which package of a lock turns good into bad, in as few environments as can be",
    "site": "static pages where people find their image, and catalog.json for programs",
    "harvest": "read facts out of the registry's artefacts, into facts/",
}


@dataclass(frozen=True)
class Answer:
    """What a command found: its exit code, the document for `--json`, and the text for people."""

    code: int
    document: Any
    text: str = ""


def parser(command: str | None = None, *, alone: bool = False) -> argparse.ArgumentParser:
    """The argument parser, with the whole of one command, and the list of all unless it is wanted `alone`."""
    top = _Parser(prog="knowngood", description="Known-good container images for training transformer models.")
    top.add_argument("--version", action="version", version=f"knowngood {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if alone and name != command:
            continue
        text = summary[0].upper() + summary[1:] + "."
        one = commands.add_parser(name, help=summary, description=text, allow_abbrev=False)
        one.add_argument("--json", action="store_true", help="one JSON document on stdout")
        if name == command:
            _module(name).configure(one)
    return top


def _module(command: str) -> Any:
    return importlib.import_module(f"knowngood.commands.{command.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (0 yes/done, 1 no/failed, 2 usage, 3 unknown, 4 something is missing).

    SIGTERM ends it as Ctrl-C does.
    """
    with contextlib.suppress(ValueError):  # a thread of another program may not say so
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if word in COMMANDS), None)
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no such character gets another one
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        arguments = parser(command, alone=words[:1] == [command]).parse_args(words)
        answer: Answer = _module(arguments.command).run(arguments)
        if as_json and answer.document is not None:  # a command that answers line by line has no one document
            print(_json(answer.document))
        elif answer.text:
            print(answer.text)
        sys.stdout.flush()
    except KnowngoodError as error:
        return _complain(error, as_json=as_json)
    except BrokenPipeError:  # the reader of our output went away: no more to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if (said := from_os(error)) is None:
            raise
        return _complain(said, as_json=as_json)
    except KeyboardInterrupt:
        return _complain(KnowngoodError("stopped; what was finished is kept, run it again to go on"), as_json=as_json)
    return answer.code


def _json(document: Any) -> str:
    """Indented: by pydantic's encoder where it is loaded anyway, since json's own is plain Python when it indents."""
    if core := sys.modules.get("pydantic_core"):
        with contextlib.suppress(ValueError):
            text: str = core.to_json(document, indent=1, inf_nan_mode="constants").decode()
            if text.isascii():
                return text
    return json.dumps(document, indent=1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def _complain(error: KnowngoodError, *, as_json: bool) -> int:
    prefix = "" if isinstance(error, InputError) else "knowngood: "
    print(f"{prefix}{error}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": str(error), "exit": error.exit_code}, indent=1))
    return error.exit_code
