"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.matrix import Matrix
    from knowngood.smoke.suite_command import SuiteOptions


def add_select(parser: argparse.ArgumentParser) -> None:
    """Add SELECT, the words that `knowngood.core.selection` parses."""
    parser.add_argument(
        "select",
        nargs="*",
        metavar="SELECT",
        help="a cell id, a glob over ids, an axis filter (gpu=H100, 'torch>=2.11,stack=trl') or an alias",
    )


def add_all(parser: argparse.ArgumentParser) -> None:
    """Add `--all`, for commands that work on the alias `default` when no cell is selected."""
    parser.add_argument("--all", action="store_true", help="every cell (without SELECT: the alias default)")


def selection_words(arguments: argparse.Namespace, *, default: Sequence[str] = ("default",)) -> list[str]:
    """Return the words of SELECT, no words (every cell) for `--all`, and otherwise those of `default`.

    Raises `UsageError` for SELECT together with `--all`.
    """
    if arguments.all and arguments.select:
        raise UsageError(f"--all is every cell, {' '.join(arguments.select)} only some; give one of the two")
    return arguments.select or ([] if arguments.all else [*default])


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


def add_wheelhouse(parser: argparse.ArgumentParser) -> None:
    """Add `--wheelhouse`, the folder of wheels that were compiled here."""
    parser.add_argument(
        "--wheelhouse",
        metavar="FOLDER",
        help="the folder of compiled wheels (default: KNOWNGOOD_WHEELHOUSE, else a folder in the cache)",
    )


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


def add_suite_options(parser: argparse.ArgumentParser, *, quick: bool, again: bool = True) -> None:
    """Add the options that say how the smoke suite runs; `quick` is the default of `--quick`.

    Without `again` there is no `--again`: for what runs in any case.
    """
    parser.add_argument(
        "--quick",
        action=argparse.BooleanOptionalAction,
        default=quick,
        help="only the quick part of the suite, or the whole suite (default: %(default)s)",
    )
    parser.add_argument(
        "--gpus", action="store_true", help="give the container the GPUs of this host; fail without one"
    )
    if again:
        parser.add_argument("--again", action="store_true", help="run the suite even if there is good evidence already")
    parser.add_argument(
        "--timeout", type=parse_seconds, default=1200, metavar="SECONDS", help="for the suite (default: %(default)s)"
    )
    parser.add_argument(
        "--memory",
        type=_parse_memory,
        metavar="SIZE",
        help="for the container (default: 12g, or 24g with --gpus, where trainers also run what generates)",
    )


def suite_options_from_arguments(arguments: argparse.Namespace) -> SuiteOptions:
    """Return the options of the suite that `add_suite_options` added."""
    from knowngood.smoke.suite_command import SuiteOptions  # `cells` imports this module and must start fast

    memory = arguments.memory or ("24g" if arguments.gpus else SuiteOptions.memory)
    return SuiteOptions(quick=arguments.quick, gpus=arguments.gpus, seconds=arguments.timeout, memory=memory)


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


def _parse_memory(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[mg]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8g or 800m")
    return text
