"""The command line: the list of commands, and how they print their answers and errors.

A command is a module of `knowngood.cli` with `configure(parser)` and `run(arguments) -> Answer`, or with `WORDS`, of
which each has both. It is imported only when it runs. Every command has `--json`: one document on stdout, and
everything else on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from knowngood import __version__
from knowngood.core import extensions, local_files
from knowngood.core.errors import InputError, KnowngoodError, UsageError, error_from_os
from knowngood.core.formatting import escape_controls, format_answer


@dataclass(frozen=True)
class Command:
    """A word of the command line."""

    group: str
    """The heading in the help: a key of `GROUPS`."""
    summary: str
    example: str
    """A call of it without `knowngood`, for its help."""
    module: str = ""
    """The module with `configure` and `run`; that of the same name in `knowngood.cli` where it is empty."""


GROUPS = {
    "use": "train, and find out what works",
    "get": "take images and locks elsewhere",
    "maintain": "make, prove and publish images",
    "facts": "what releases are like, and the engine",
}

_FIRST_COMMANDS = ("pick 4090", "check V100 torch==2.11.0", "run -- python train.py", "diagnose train.log")
"""What the help shows to who has never used it."""
COMMANDS: dict[str, Command] = {
    "run": Command(
        "use", "run a program in the image of the best cell for this machine's GPU", "run --gpu H100 -- python train.py"
    ),
    "cells": Command(
        "use", "list the cells with tier and attention settings, or with the --size of their images", "cells gpu=sm_90"
    ),
    "pull": Command(
        "get",
        "get published images into the engine by digest, after checking record and signature",
        "pull default --from REGISTRY/knowngood",
    ),
    "export": Command(
        "get",
        "a cell as compose, devcontainer, apptainer, requirements, pylock, or bill of materials (CycloneDX)",
        "export default --format compose -o compose.yaml",
    ),
    "lock": Command("maintain", "resolve cells to hash-pinned distributions, into docker/", "lock default"),
    "render": Command(
        "maintain", "write Dockerfiles and compatibility tables, or --check that they are up to date", "render --check"
    ),
    "build": Command("maintain", "build the images of cells, or show the --plan of it", "build default --plan"),
    "build-matrix": Command(
        "maintain", "all steps for the selected cells: engine, base, lock, render, build, smoke", "build-matrix default"
    ),
    "compile": Command(
        "maintain", "compile wheels that nobody publishes, such as flash-attn 2, once for each cell", "compile default"
    ),
    "smoke": Command(
        "maintain",
        "train a tiny Qwen2 under every attention setting, in an image or in this environment",
        "smoke run default --quick",
    ),
    "certify": Command(
        "maintain", "which attention settings are right for a model, from its config.json", "certify config.json"
    ),
    "bench": Command(
        "maintain",
        "how fast training steps of real sizes are, in an image or --here, with share of the card's limit and memory",
        "bench default --gpus --plan table",
    ),
    "verify": Command(
        "maintain", "build cells again from nothing and compare with the recorded digests", "verify default"
    ),
    "publish": Command(
        "maintain",
        "push proven images to a registry; existing tags are never overwritten",
        "publish default --to REGISTRY/knowngood",
    ),
    "keys": Command(
        "maintain",
        "make or show the keys to sign with, and seal the facts, rules, incidents and runs of a release",
        "keys make",
    ),
    "audit": Command(
        "maintain",
        "known vulnerabilities of the packages that cells lock, from OSV and Debian's tracker",
        "audit default",
    ),
    "nightly": Command(
        "maintain",
        "check that what is known good is still good: files, upstream, vulnerabilities, rebuilds, suites",
        "nightly default --budget 60",
    ),
    "engine": Command(
        "facts",
        "start, describe or remove the embedded engine, prune what is kept",
        "engine prune --yes",
    ),
}
"""The commands of this distribution; others add theirs (`all_commands`)."""

COMPANIONS = {
    "knowngood-facts": ("check", "pick", "add", "api", "harvest"),
    "knowngood-diagnose": ("diagnose", "doctor", "reproduce"),
    "knowngood-pages": ("site",),
}
"""Other distribution -> the commands that it adds, to name it to who calls one and does not have it."""

RETIRED = {
    "--all": "is now '*', the glob of every cell",
    "--insecure": "is now in the address, http://HOST/PATH, for a registry on this machine",
    "--memory": "is gone; a container of the suite has 12 GB, or 24 GB with --gpus",
    "--wheelhouse": "is now KNOWNGOOD_WHEELHOUSE, which names the folder",
    "bisect": "is gone; `knowngood nightly` names the packages that changed since a cell passed",
    "breaks": "is now `knowngood api --breaks`",
    "compile --renew": "is gone; move the wheel out of the wheelhouse, and it is made again",
    "plan": "is now `knowngood build --plan`, and as jobs of workflows `knowngood cells --jobs`",
    "prune": "is now `knowngood engine prune`",
    "sbom": "is now `knowngood export --format cyclonedx`",
    "sbom --refresh-licences": "is now `knowngood lock --licences`",
    "seal": "is now `knowngood keys seal`",
    "site --repository": "is now KNOWNGOOD_REPOSITORY, or `publish: {repository: ...}` in matrix.yaml",
    "size": "is now `knowngood cells --size`, which fails when a cell is too large",
    "smoke --cancel": "is gone; `knowngood smoke job` writes a job that your scheduler's own commands end",
    "smoke --here": "is now `knowngood smoke here`",
    "smoke --image": "is now `knowngood smoke published`",
    "smoke --on": "is now `knowngood smoke job`",
    "smoke --processes": "is now `knowngood smoke parallel`",
    "--prove": "is now `knowngood smoke run`, before the program",
    "verify --cold": "is now KNOWNGOOD_CACHE, which names an empty folder",
    "warm": "is gone; the first run with an image compiles its kernels, and its cache volume keeps them",
}
"""A command, an option, or both, that are no longer there -> what took their place; named for one release."""


@cache
def all_commands() -> dict[str, Command]:
    """Return the commands of all distributions, by their word, group after group."""
    commands = dict(COMMANDS)
    for _, added in extensions.load_extensions(extensions.COMMANDS):
        commands |= added
    return dict(sorted(commands.items(), key=lambda item: list(GROUPS).index(item[1].group)))


ERROR_SCHEMA = "knowngood/error/1"
"""The form of the document of every command that failed with an error; `with_schema` names the others."""
PROGRAM_NOT_STARTED = 125
"""The exit code of `run` when the program was not started, as container tools have it."""


@dataclass(frozen=True)
class Answer:
    """The answer of a command: its exit code, the document for `--json`, and the text for people."""

    code: int
    document: Any
    text: str = ""


@dataclass(frozen=True)
class Word:
    """One of the words of a command, such as `up` in `engine up`."""

    summary: str
    run: Callable[[argparse.Namespace], Answer]
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None
    """Adds the word's arguments."""


def build_parser(command: str | None = None, *, alone: bool = False) -> argparse.ArgumentParser:
    """Return the parser with the arguments of one `command`, and with the names of all others unless `alone`."""
    top = _Parser(prog="knowngood", description="Known-good container images for training transformer models.")
    top.add_argument("--completion", action=_CompletionAction, metavar="SHELL", help="what completes words in a shell")
    top.add_argument("--version", action=_VersionAction, nargs=0, help="the version, and where data come from")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    top.commands = {name: COMMANDS[name]} if (name := command or "") in COMMANDS and alone else all_commands()
    for name, entry in top.commands.items():
        if alone and name != command:
            continue
        _add_command(commands, name, entry, with_arguments=name == command)
    return top


def _add_command(commands: Any, name: str, entry: Command, *, with_arguments: bool) -> _Parser:
    text = entry.summary[0].upper() + entry.summary[1:] + "."
    example = f"example: knowngood {entry.example}"
    one: _Parser = commands.add_parser(name, help=entry.summary, description=text, epilog=example, allow_abbrev=False)
    one.add_argument("--json", action="store_true", help="one JSON document on stdout")
    if with_arguments:
        module = _import_command(name)
        _add_words(one, module.WORDS) if hasattr(module, "WORDS") else module.configure(one)
    return one


def _add_words(parser: _Parser, words: Mapping[str, Word]) -> None:
    parsers = parser.add_subparsers(dest="word", metavar="WORD", required=True)
    for name, word in words.items():
        text = word.summary[0].upper() + word.summary[1:] + "."
        one: _Parser = parsers.add_parser(name, help=word.summary, description=text, allow_abbrev=False)
        one.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        one.configure = word.configure


def find_command(words: Sequence[str]) -> str | None:
    """Return the first word that names a command; `None` where none does."""
    if words and words[0] in COMMANDS:
        return words[0]
    return next((word for word in words if word in all_commands()), None)


def parse_words(words: Sequence[str], command: str | None) -> argparse.Namespace:
    """Return the arguments in a command line; `command` is the word in it that names one, `None` where none does.

    Raises `UsageError` for words that no command takes; where they are of an earlier release, it names what is now.
    """
    word = words[0] if words else ""
    if command is None:
        _refuse_retired(word, words[1:])
        if where := next((name for name, added in COMPANIONS.items() if word in added), None):
            raise UsageError(f"`{word}` is a command of {where}, which is not installed; `pip install {where}` adds it")
        if word and not word.startswith("-"):
            raise UsageError(_no_command_message(word))
    elif hasattr(module := _import_command(command), "complete_words"):
        words = module.complete_words(words)
    parser = build_parser(command, alone=words[:1] == [command])
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse_retired(word, unknown)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _no_command_message(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, all_commands(), 1)
    hint = f"did you mean `knowngood {near[0]}`?" if near else "`knowngood --help` lists them"
    return f"there is no command `{word}`; {hint}"


def _refuse_retired(command: str, options: Sequence[str]) -> None:
    """Raise `UsageError` that names the successor, where a command or one of its options is of an earlier release."""
    names = [option.partition("=")[0] for option in options]
    for text in [*(f"{command} {name}" for name in names), command, *names]:
        if text in RETIRED:
            raise UsageError(f"`{text}` {RETIRED[text]}")


def _import_command(command: str) -> Any:
    entry = COMMANDS.get(command) or all_commands()[command]
    return importlib.import_module(entry.module or f"knowngood.cli.{command.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 yes or done, 1 no or failed, 2 usage, 3 unknown, 4 something missing.

    `run` becomes the program that it starts; what fails before that is 125. SIGTERM and the end of its
    terminal (SIGHUP) end a command like Ctrl-C.
    """
    with contextlib.suppress(ValueError):  # only the main thread may set a signal handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # `nohup` ignores it
            signal.signal(signal.SIGHUP, signal.default_int_handler)
    gc.set_threshold(
        200_000
    )  # most commands end before there is much to collect, and looking for it took a tenth of them
    _open_standard_streams()
    local_files.remove_stale_scratch()
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    own = list(itertools.takewhile(lambda word: word != "--", words))
    for stream in (sys.stdout, sys.stderr):  # a terminal without a character shows a replacement
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if own[:1] != ["run"] or "--print" in own:
        return _run_command(words, own)
    try:
        return PROGRAM_NOT_STARTED if _run_command(words, own) else 0
    except Exception:  # noqa: BLE001 - a defect here, too, must not look like the program's exit code
        traceback.print_exc()
        return PROGRAM_NOT_STARTED


def _open_standard_streams() -> None:
    """Lead each standard stream that the caller has closed to /dev/null, so that no file gets its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def answer_words(words: Sequence[str], own: Sequence[str] | None = None) -> tuple[Answer, argparse.Namespace]:
    """Return the answer to a command line, and its arguments. `own` are the words before `--`, where there is one.

    Raises `KnowngoodError` where the command would end with an error.
    """
    arguments = parse_words(words, find_command(words if own is None else own))
    module = _import_command(arguments.command)
    run = module.WORDS[arguments.word].run if hasattr(module, "WORDS") else module.run
    return run(arguments), arguments


def _run_command(words: Sequence[str], own: Sequence[str]) -> int:
    """Run a command and return its exit code. `own` are the words before `--`; those after it are a program's."""
    as_json = "--json" in own
    try:
        _refuse_long_numbers(own)
        answer, arguments = answer_words(words, own)
        if as_json and answer.document is not None:  # `check --batch` prints its answers itself
            print(_json(with_schema(answer.document, arguments)))
        elif answer.text:
            print(format_answer(escape_controls(answer.text), sys.stdout))
        sys.stdout.flush()
    except KnowngoodError as error:
        return _print_error(error, as_json=as_json)
    except BrokenPipeError:  # the program that reads this output has ended
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if (failure := error_from_os(error)) is None:
            raise
        return _print_error(failure, as_json=as_json)
    except KeyboardInterrupt:
        return _print_error(KnowngoodError("stopped; finished work is kept, run it again to continue"), as_json=as_json)
    return answer.code


def _refuse_long_numbers(words: Sequence[str]) -> None:
    """Raise `UsageError` for an argument with a number of so many digits that Python refuses to convert it."""
    for word in words:
        if match := re.search(r"[0-9]{100,}", word):
            start = word[: match.start() + 10]
            raise UsageError(f"{start}...: a number of {len(match[0])} digits; correct it")


def with_schema(document: Any, arguments: argparse.Namespace) -> Any:
    """Return the document with its form, `knowngood/check/1`, and the folders that it is from, unless it has its own.

    A document for another program, such as the matrix of a workflow's jobs, has that program's form.
    """
    from knowngood.project.checkout import find_project

    if not isinstance(document, dict) or "schema" in document or "include" in document:
        return document
    words = [arguments.command, *([arguments.word] if hasattr(arguments, "word") else [])]
    return {"schema": f"knowngood/{'-'.join(words)}/1", **document, "sources": find_project().sources}


def _json(document: Any) -> str:
    """Return indented JSON. pydantic's encoder is faster than json's own; it is used when it is imported already."""
    if core := sys.modules.get("pydantic_core"):
        with contextlib.suppress(ValueError):
            text: str = core.to_json(document, indent=1, inf_nan_mode="constants").decode()
            if text.isascii():
                return text
    return json.dumps(document, indent=1)


class _CompletionAction(argparse.Action):
    """Prints the script that completes commands, their words and options in bash, zsh or fish."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: object = None) -> NoReturn:
        import shtab

        if shell not in (shells := ("bash", "zsh", "fish")):
            raise UsageError(f"--completion {shell}: the shells are {', '.join(shells)}")
        whole = _Parser(prog="knowngood")
        commands = whole.add_subparsers()
        for name, entry in all_commands().items():
            one = _add_command(commands, name, entry, with_arguments=True)
            words = (action.choices for action in one._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - argparse shows them nowhere else
            for word in (word for choices in words for word in choices.values()):
                word.configure(word)
        print(shtab.complete(whole, shell))
        parser.exit()


class _VersionAction(argparse.Action):
    """Prints the version, the program's folder, and the folders of the data that answers come from here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from knowngood.project.checkout import find_project

        lines = [f"knowngood {__version__}", f"program: {Path(__file__).parents[1]}"]
        lines += [f"{name}: {folder}" for name, folder in find_project().sources.items()]
        print("\n".join(lines))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    commands: Mapping[str, Command] | None = None
    """The commands below it, which its help shows by groups."""
    configure: Callable[[argparse.ArgumentParser], None] | None = None
    """Adds the arguments of a command's word, when that word is used: this may import much."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if configure := self.configure:
            self.configure = None
            configure(self)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        if not self.commands:
            return super().format_help()
        width = max(map(len, self.commands))
        lines = [f"usage: {self.prog} COMMAND ...", "", str(self.description), "", "examples:"]
        lines += [f"  knowngood {words}" for words in _FIRST_COMMANDS]
        for group, title in GROUPS.items():
            lines += ["", f"{title}:"]
            for name, entry in self.commands.items():
                if entry.group == group:
                    lines += textwrap.wrap(
                        entry.summary,
                        initial_indent=f"  {name:{width}}  ",
                        subsequent_indent=" " * (width + 4),
                        width=shutil.get_terminal_size().columns - 1,
                    )
        return "\n".join(
            [
                *lines,
                "",
                f"`{self.prog} COMMAND --help` says more, --version prints the version.",
                "",
            ]
        )

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # here a full disk or a closed pipe has a handler
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def _print_error(error: KnowngoodError, *, as_json: bool) -> int:
    prefix = "" if isinstance(error, InputError) else "knowngood: "
    try:
        print(format_answer(escape_controls(f"{prefix}{error}"), sys.stderr), file=sys.stderr)
        if as_json:
            print(json.dumps({"schema": ERROR_SCHEMA, "error": str(error), "exit": error.exit_code}, indent=1))
        sys.stdout.flush()
    except OSError:  # nobody reads it; the exit code says enough
        _discard_output()
    return error.exit_code


def _discard_output() -> None:
    """Lead standard output and errors to /dev/null, so that Python has no fault when it flushes them at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)
