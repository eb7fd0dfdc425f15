"""The plan as a file for `docker buildx bake`: the very commands of `knowngood build --dry-run`, as targets. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

TMP = "KNOWNGOOD_TMP"
"""The folder of the secret `env`, a variable of the file; dry runs name it so."""


def document(commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The file, from each cell's `docker buildx build` command; the group `default` has them in their order."""
    targets = {name(cell): target(argv) for cell, argv in commands.items()}
    secrets = any(f"${{{TMP}}}" in text for one in targets.values() for text in one.get("secret", []))
    variables = {"variable": {TMP: {"default": "."}}} if secrets else {}
    return {**variables, "group": {"default": {"targets": list(targets)}}, "target": targets}


def name(cell: str) -> str:
    """A target's name has no dots; an id has no underscores, so two names are the same for the same cell only."""
    return cell.replace(".", "_")


def target(argv: Sequence[str]) -> dict[str, Any]:
    """The target that does what the command does; an option that it does not know is an error, not left out."""
    options = _parser().parse_args(list(argv[argv.index("build") + 1 :]))
    made: dict[str, Any] = {
        "context": options.context,
        "dockerfile": options.file,
        "contexts": _pairs(options.build_context),
        "args": _pairs(options.build_arg),
        "labels": _pairs(options.label),
        "network": options.network,
        "attest": [
            f"type={kind},disabled=true" for kind in ("provenance", "sbom") if getattr(options, kind) == "false"
        ],
        "output": ["type=docker"] if options.load else options.output,
    }
    optional = {
        "secret": [text.replace(f"${TMP}", f"${{{TMP}}}") for text in options.secret],
        "tags": options.tag,
        "no-cache": options.no_cache,
    }
    return made | {key: value for key, value in optional.items() if value}


def _pairs(items: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (item.partition("=") for item in items)}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for flag in ("--file", "--network", "--progress", "--metadata-file", "--provenance", "--sbom"):
        parser.add_argument(flag)
    for flag in ("--build-context", "--secret", "--build-arg", "--label", "--output", "--tag"):
        parser.add_argument(flag, action="append", default=[])
    for flag in ("--no-cache", "--load"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("context")
    return parser
