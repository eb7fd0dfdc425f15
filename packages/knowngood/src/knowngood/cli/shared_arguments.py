"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.matrix import Matrix
    from knowngood.smoke.suite_command import SuiteOptions


def add_select(parser: argparse.ArgumentParser, *, default: str = "") -> None:
    """Add SELECT, the words that `knowngood.core.selection` parses; every cell without one, unless `default` is one."""
    parser.add_argument(
        "select",
        nargs="*",
        metavar="SELECT",
        default=[default] if default else [],
        help="a cell id, a glob over ids, an axis filter (gpu=H100, 'torch>=2.11,stack=trl') or an alias"
        + (f" (default: {default}; '*' is every cell)" if default else ""),
    )


def add_one_cell(parser: argparse.ArgumentParser) -> None:
    """Add ID, for commands that work on one cell."""
    parser.add_argument(
        "cell", metavar="ID", nargs="?", default="default", help="a cell id or an alias (default: the alias default)"
    )


def select_one_cell(words: Sequence[str], matrix: Matrix) -> Cell:
    """Return the cell that the words of a selection name, with a note on standard error when it is retired.

    Raises `UsageError` when they select several.
    """
    cells = matrix.select_all_cells(words)
    if len(cells) != 1:
        raise UsageError(f"{' '.join(words)!r} selects {len(cells)} cells; name one")
    if retired := matrix.retired.get(str(cells[0])):
        print(f"note: {retired.sentence(str(cells[0]))}", file=sys.stderr)
    return cells[0]


def find_environment_cell(text: str, matrix: Matrix) -> Cell:
    """Return the cell that an environment stands for: any id, or what selects one cell of the matrix."""
    from knowngood.core.cell import parse_cell

    try:
        return parse_cell(text)
    except UsageError:
        return select_one_cell([text], matrix)


def add_locked(parser: argparse.ArgumentParser) -> None:
    """Add `--locked`, which forbids changing a lock."""
    parser.add_argument(
        "--locked", action="store_true", help="fail when a committed lock is out of date, instead of renewing it"
    )


def add_signing_key(parser: argparse.ArgumentParser) -> None:
    """Add `--key`, the file of the private key."""
    parser.add_argument(
        "--key", metavar="FILE", help="sign with this private key (default: the file that KNOWNGOOD_SIGNING_KEY names)"
    )


def repository_name(named: str | None, matrix: Matrix, option: str) -> str:
    """Return the repository that is `named`, else that of `KNOWNGOOD_REPOSITORY`, else that of matrix.yaml.

    Raises `UsageError` when there is none; `option` is the one that names it.
    """
    where = named or os.environ.get("KNOWNGOOD_REPOSITORY") or matrix.publish.repository
    if not where:
        raise UsageError(f"no repository; name one: {option} registry.example/team/knowngood")
    return where


def add_suite_part(parser: argparse.ArgumentParser, *, quick: bool) -> None:
    """Add the options that say which part of the smoke suite runs, and where; `quick` is the default of `--quick`."""
    parser.add_argument(
        "--quick",
        action=argparse.BooleanOptionalAction,
        default=quick,
        help="only the quick part of the suite, or the whole suite (default: %(default)s)",
    )
    parser.add_argument(
        "--gpus", action="store_true", help="give the container the GPUs of this host; fail without one"
    )


def add_suite_time(parser: argparse.ArgumentParser) -> None:
    """Add `--timeout`, for commands that may run the whole suite on a slow machine."""
    parser.add_argument(
        "--timeout", type=parse_seconds, default=1200, metavar="SECONDS", help="for the suite (default: %(default)s)"
    )


def suite_options_from_arguments(arguments: argparse.Namespace) -> SuiteOptions:
    """Return the options of the suite that `add_suite_part` and `add_suite_time` added."""
    from knowngood.smoke.suite_command import SuiteOptions  # `cells` imports this module and must start fast

    memory = "24g" if arguments.gpus else SuiteOptions.memory  # on a GPU, trainers also run what generates
    seconds = getattr(arguments, "timeout", SuiteOptions.seconds)
    return SuiteOptions(quick=arguments.quick, gpus=arguments.gpus, seconds=seconds, memory=memory)


def refuse_options(arguments: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raise `UsageError` when one of the named arguments is given although this use of the command ignores it.

    An argument counts as given when its value is neither absent, false nor empty.
    """
    for name in names:
        if getattr(arguments, name):
            raise UsageError(f"{_OPTION_NAMES.get(name) or '--' + name.replace('_', '-')} {reason}")


_OPTION_NAMES = {
    "select": "SELECT",
    "requirements": "NAME==VERSION",
    "files": "-r",
    "used": "--with",
    "origin": "--from",
}
"""The arguments whose attribute is named otherwise than their option."""


def parse_seconds(text: str) -> int:
    """Return the number of seconds in an argument, for `type=` of argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return int(text)
