"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knowngood.smoke import Options as SuiteOptions


def add_select(parser: argparse.ArgumentParser) -> None:
    """SELECT, as `knowngood.select` reads it."""
    parser.add_argument(
        "select",
        nargs="*",
        metavar="SELECT",
        help="a cell id, a glob over ids, an axis filter (torch>=2.11,gpu=sm_90) or an alias",
    )


def add_wheelhouse(parser: argparse.ArgumentParser) -> None:
    """The folder of flash-attn wheels."""
    parser.add_argument(
        "--wheelhouse",
        metavar="FOLDER",
        help="flash-attn wheels (default: KNOWNGOOD_WHEELHOUSE, else a cache folder)",
    )


def add_locked(parser: argparse.ArgumentParser) -> None:
    """Refuse to change a lock."""
    parser.add_argument(
        "--locked", action="store_true", help="fail when a committed lock is stale, instead of renewing it"
    )


def add_smoke(parser: argparse.ArgumentParser, *, quick: bool) -> None:
    """How the suite runs."""
    parser.add_argument(
        "--quick",
        action=argparse.BooleanOptionalAction,
        default=quick,
        help="only the suite's quick part, or the whole (default: %(default)s)",
    )
    parser.add_argument("--gpus", action="store_true", help="give the container the host's GPUs, and demand one")
    parser.add_argument("--again", action="store_true", help="run the suite though this image has good evidence")
    parser.add_argument("--timeout", type=seconds, default=1200, metavar="SECONDS", help="for the suite (1200)")
    parser.add_argument("--memory", type=_memory, default="12g", metavar="SIZE", help="for the container (12g)")


def add_tracker(parser: argparse.ArgumentParser) -> None:
    """Where Debian's vulnerability data come from."""
    parser.add_argument(
        "--tracker",
        metavar="URL",
        default=os.environ.get("KNOWNGOOD_DEBIAN_TRACKER"),
        help="Debian's vulnerability data (default: KNOWNGOOD_DEBIAN_TRACKER, else Debian's own server); "
        "PIP_AUDIT_OSV_URL does the same for OSV",
    )


def suite_options(arguments: argparse.Namespace) -> SuiteOptions:
    """The suite's options from `add_smoke`'s arguments."""
    from knowngood.smoke import Options

    return Options(quick=arguments.quick, gpus=arguments.gpus, seconds=arguments.timeout, memory=arguments.memory)


def seconds(text: str) -> int:
    """A number of seconds from the command line."""
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return int(text)


def _memory(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[mg]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8g or 800m")
    return text
