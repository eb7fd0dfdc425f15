"""`knowngood compile [SELECT]`: the wheels that cells need and nobody publishes, or those of another package."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common
from knowngood.errors import KnowngoodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from knowngood.cell import Cell
    from knowngood.compiling.order import Options, Order, Result
    from knowngood.compiling.run import Compiler
    from knowngood.engine import Engine
    from knowngood.matrix import Matrix

LIST = "wheels.txt"
"""The file of a project that lists published wheels."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_wheelhouse(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--package", metavar="NAME==VERSION", help="compile this for the cells, and not what they need")
    what.add_argument("--sdist", metavar="FILE", help="compile this sdist for the cells; FILE#sha256=... pins it")
    parser.add_argument("--jobs", type=_jobs, metavar="N", help="compilers at once (default: cores, as memory allows)")
    parser.add_argument(
        "--memory-per-job", type=_bytes, default="7G", metavar="SIZE", help="what one needs (%(default)s)"
    )
    parser.add_argument("--wheels", metavar="LIST", help=f"published wheels, URL#sha256=... a line (default: {LIST})")
    parser.add_argument(
        "--renew", action="store_true", help="compile anew what was made from other inputs or has no build record"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Compile for the selected cells; a cell that fails does not stop the others."""
    from knowngood import engine, progress, select, table

    here = project.find()
    matrix = here.matrix
    wanted = _orders(arguments, select.select(matrix.cells, matrix.aliases, arguments.select), matrix)
    if not wanted:
        return Answer(0, {"wheels": []}, "nothing to compile: none of these cells needs a wheel that nobody publishes")
    options = _options(arguments, here)
    if arguments.dry_run:
        from knowngood import dryrun

        commands = dry(made_for(here, dryrun.engine(), options), wanted)
        return Answer(0, {"commands": commands}, "\n".join(commands))
    with progress.reporter("engine") as say:
        found = engine.ensure(say=say)
    outcomes = supply(made_for(here, found, options), wanted)
    errors = [outcome for _, outcome in outcomes if isinstance(outcome, KnowngoodError)]
    rows = [_row(order, outcome) for order, outcome in outcomes]
    notes = [f"{made.cell}: {made.note}" for _, made in outcomes if not isinstance(made, KnowngoodError) and made.note]
    said = [table.text(["cell", "package", "status", "time", "wheel"], rows), *notes, *map(str, errors)]
    document = [_document(order, outcome) for order, outcome in outcomes]
    return Answer(errors[0].exit_code if errors else 0, {"wheels": document}, "\n".join(said))


def made_for(here: project.Project, found: Engine, options: Options) -> Compiler:
    """What compiles for the cells of a project."""
    from knowngood import pipeline
    from knowngood.compiling.run import Compiler

    return Compiler(
        line=pipeline.Pipeline(here, pipeline.Options(wheelhouse=options.wheelhouse), found), options=options
    )


def supply(compiler: Compiler, wanted: Sequence[Order]) -> list[tuple[Order, Result | KnowngoodError]]:
    """Each order's wheel, or why there is none; one that fails does not stop the others."""
    from knowngood import progress

    outcomes: list[tuple[Order, Result | KnowngoodError]] = []
    for order in wanted:
        with progress.reporter(f"{order.package} {order.version} for {order.cell}") as say:
            try:
                outcomes.append((order, compiler.run(order, say)))
            except KnowngoodError as error:
                outcomes.append((order, error))
    return outcomes


def dry(compiler: Compiler, wanted: Sequence[Order]) -> list[str]:
    """The exact commands."""
    from knowngood.compiling import plan

    return [command for order in wanted for command in plan.commands(order, compiler.line, compiler.options)]


def published_list(here: project.Project) -> Path | None:
    """The project's list of published wheels, if it has one."""
    path = here.root / LIST
    return path if path.is_file() else None


def _options(arguments: argparse.Namespace, here: project.Project) -> Options:
    from pathlib import Path

    from knowngood import wheelhouse
    from knowngood.compiling.order import Options

    return Options(
        wheelhouse=wheelhouse.folder(arguments.wheelhouse),
        memory_each=arguments.memory_per_job,
        jobs=arguments.jobs,
        renew=arguments.renew,
        wheels=Path(arguments.wheels) if arguments.wheels else published_list(here),
    )


def _orders(arguments: argparse.Namespace, cells: list[Cell], matrix: Matrix) -> list[Order]:
    from knowngood.compiling import source
    from knowngood.compiling.order import Order, orders

    if arguments.sdist:
        sdist = source.from_file(arguments.sdist)
        return [Order(cell=cell, package=sdist.package, version=sdist.version, sdist=sdist) for cell in cells]
    if arguments.package:
        name, version = _pinned(arguments.package)
        return [Order(cell=cell, package=name, version=version) for cell in cells]
    return orders(cells, matrix)


def _pinned(text: str) -> tuple[str, str]:
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    name, _, version = text.partition("==")
    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UsageError(f"--package {text}: write NAME==VERSION")
        return canonicalize_name(name), str(Version(version))
    except InvalidVersion:
        raise UsageError(f"--package {text}: write NAME==VERSION, since a compile is of one release") from None


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs from 1 to 1024")
    return int(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d*)([mMgG])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 7G or 800M")
    return int(match[1]) << (30 if match[2] in "gG" else 20)


def _row(order: Order, outcome: Result | KnowngoodError) -> list[str]:
    what = f"{order.package} {order.version}"
    if isinstance(outcome, KnowngoodError):
        return [str(order.cell), what, "failed", "-", "-"]
    return [outcome.cell, what, str(outcome.status), f"{outcome.seconds:.0f} s", str(outcome.wheel)]


def _document(order: Order, outcome: Result | KnowngoodError) -> dict[str, object]:
    what = {"cell": str(order.cell), "package": order.package, "version": order.version}
    if isinstance(outcome, KnowngoodError):
        return {**what, "status": "failed", "error": str(outcome)}
    return {
        **what,
        "status": str(outcome.status),
        "wheel": str(outcome.wheel),
        "seconds": round(outcome.seconds, 1),
        "note": outcome.note,
        "record": outcome.record.document() if outcome.record else None,
    }
