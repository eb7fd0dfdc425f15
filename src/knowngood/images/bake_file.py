"""The file that `docker buildx bake` reads, with the same builds as given `docker buildx build` commands. Pure."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

BAKE_FOLDER_VARIABLE = "KNOWNGOOD_TMP"
"""The variable of a bake file that holds the folder of a run, with the secret `env`; dry runs use the same name."""


def render_bake_file(commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return docker-bake.json from `docker buildx build` commands by name, such as the id of a cell.

    The group `default` has the targets in the order of the commands.
    """
    targets = {dotless_name(name): bake_target(argv) for name, argv in commands.items()}
    needs_folder = f"${{{BAKE_FOLDER_VARIABLE}}}" in json.dumps(targets)
    variables = {"variable": {BAKE_FOLDER_VARIABLE: {"default": "."}}} if needs_folder else {}
    return {**variables, "group": {"default": {"targets": list(targets)}}, "target": targets}


def render_network_file(names: Iterable[str], network: str) -> dict[str, Any]:
    """Return a Compose file that gives the builds with these names their network; bake reads it before its own file.

    The bake of buildx 0.13 takes the network from Compose files only, and ignores it in its own file.
    """
    return {"services": {dotless_name(name): {"build": {"network": network}} for name in names}}


def bake_target(argv: Sequence[str]) -> dict[str, Any]:
    """Return the target that builds what the command builds.

    Raises:
        ValueError: the command has an option that this function does not translate.
    """
    options = _build_command_parser().parse_args(list(argv[argv.index("build") + 1 :]))
    target: dict[str, Any] = {
        "context": options.context,
        "dockerfile": options.file and _use_folder_variable(options.file),
        "contexts": _key_values(options.build_context),
        "args": _key_values(options.build_arg),
        "labels": _key_values(options.label),
        "network": options.network,
        "attest": [
            f"type={kind},disabled=true" for kind in ("provenance", "sbom") if getattr(options, kind) == "false"
        ],
        "output": ["type=docker"] if options.load else options.output,
    }
    optional = {
        "secret": [_use_folder_variable(text) for text in options.secret],
        "tags": options.tag,
        "target": options.target,
        "cache-from": options.cache_from,
        "cache-to": options.cache_to,
        "no-cache": options.no_cache,
        "platforms": [options.platform] if options.platform else [],
    }
    return target | {key: value for key, value in optional.items() if value}


def parse_failed_target(output: str) -> str | None:
    """Return the target of a bake whose step failed first, as the end of its output names it; `None` if it names none.

    The other targets of the bake were then cancelled.
    """
    match = re.search(r"^ERROR: target (\S+): ", output, re.MULTILINE) or re.search(
        r"^ > \[([^\]\s]+)", output, re.MULTILINE
    )
    return match[1] if match else None


def dotless_name(name: str) -> str:
    """Return the name as Buildkite's keys and bake's targets allow it; names stay distinct, as ids have no `_`."""
    return name.replace(".", "_")


def _use_folder_variable(text: str) -> str:
    return text.replace(f"${BAKE_FOLDER_VARIABLE}", f"${{{BAKE_FOLDER_VARIABLE}}}")


def _key_values(items: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (item.partition("=") for item in items)}


class _BuildCommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _build_command_parser() -> argparse.ArgumentParser:
    """Return a parser for the options that this program passes to `docker buildx build`."""
    parser = _BuildCommandParser(add_help=False, allow_abbrev=False)
    for flag in (
        "--file",
        "--network",
        "--progress",
        "--metadata-file",
        "--provenance",
        "--sbom",
        "--target",
        "--platform",
    ):
        parser.add_argument(flag)
    for flag in ("--build-context", "--secret", "--build-arg", "--label", "--output", "--tag"):
        parser.add_argument(flag, action="append", default=[])
    for flag in ("--cache-from", "--cache-to"):
        parser.add_argument(flag, action="append", default=[])
    for flag in ("--no-cache", "--load"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--builder")
    parser.add_argument("context")
    return parser
