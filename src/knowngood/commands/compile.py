"""`knowngood compile [SELECT]`: the wheels that cells need and nobody publishes, or those of another package."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common, on_builders
from knowngood.errors import KnowngoodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from knowngood.builders.builder import Builder
    from knowngood.builders.run import Run
    from knowngood.building.pipeline import Options as BuildOptions
    from knowngood.cell import Cell
    from knowngood.compiling.order import Options, Order
    from knowngood.compiling.run import Compiler
    from knowngood.engines.engine import Engine
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
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, to a registry on this machine only")
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")
    on_builders.configure(parser, layers=False)


def run(arguments: argparse.Namespace) -> Answer:
    """Compile for the selected cells; a cell that fails does not stop the others."""
    from knowngood import select, table

    far = on_builders.wanted(arguments)
    here = project.find()
    matrix = here.matrix
    wanted = _orders(arguments, select.select(matrix.cells, matrix.aliases, arguments.select), matrix)
    if not wanted:
        return Answer(0, {"wheels": []}, "nothing to compile: none of these cells needs a wheel that nobody publishes")
    options = _options(arguments, here)
    fleet = on_builders.prepared(arguments, here, _building(options), None) if far else None
    if arguments.dry_run:
        commands = dry(here, fleet, wanted, options)
        return Answer(0, {"commands": commands}, "\n".join(commands))
    made = supply(here, fleet, wanted, options)
    failed = [item for item in made if "error" in item]
    rows = [_row(item) for item in made]
    notes = [f"{item['cell']}: {item['note']}" for item in made if item.get("note")]
    said = [table.text(["cell", "package", "status", "time", "wheel"], rows), *notes]
    said += [item["error"] for item in failed]
    return Answer(failed[0]["exit"] if failed else 0, {"wheels": made}, "\n".join(said))


def supply(
    here: project.Project, fleet: Run | None, wanted: Sequence[Order], options: Options
) -> Sequence[Mapping[str, Any]]:
    """What came of each order, as `--json` has it; one that fails does not stop the others.

    Without builders it is this machine's engine that compiles.
    """
    from knowngood import progress
    from knowngood.compiling import placed
    from knowngood.compiling.on_builder import OnBuilder
    from knowngood.compiling.run import Compiler
    from knowngood.engines import engine

    if fleet is None:
        with progress.reporter("engine") as say:
            found = engine.ensure(say=say)
        return _one_by_one(_here(here, found, options), wanted)
    if len(fleet.builders) == 1:
        line = fleet.line(fleet.builders[0])
        return _one_by_one(Compiler(line=line, options=options, place=OnBuilder(line=line)), wanted)
    with progress.reporter("fleet") as say:
        return placed.supply(fleet, wanted, lambda *of: _again(fleet, options, *of), options.memory_each, say)


def _here(here: project.Project, found: Engine, options: Options) -> Compiler:
    from knowngood.building import pipeline
    from knowngood.compiling.container import Here
    from knowngood.compiling.run import Compiler

    return Compiler(line=pipeline.Pipeline(here, _building(options), found), options=options, place=Here(found))


def _building(options: Options) -> BuildOptions:
    from knowngood.building.pipeline import Options as BuildOptions

    return BuildOptions(wheelhouse=options.wheelhouse)


def _one_by_one(compiler: Compiler, wanted: Sequence[Order]) -> list[Mapping[str, Any]]:
    from knowngood import progress
    from knowngood.compiling import order

    made: list[Mapping[str, Any]] = []
    for one in wanted:
        with progress.reporter(f"{one.package} {one.version} for {one.cell}") as say:
            try:
                made.append(compiler.run(one, say).document())
            except KnowngoodError as error:
                made.append(order.failed(one, error))
    return made


def _again(fleet: Run, options: Options, builder: Builder, one: Order) -> list[str]:
    """The command line for one wheel on one builder."""
    what = ["--package", f"{one.package}=={one.version}"]
    if one.sdist:
        what = ["--sdist", f"{one.sdist.path}#sha256={one.sdist.sha256}"]
    registry = fleet.depot.registry
    argv = ["compile", str(one.cell), *what, "--wheelhouse", str(options.wheelhouse)]
    argv += ["--memory-per-job", f"{options.memory_each >> 20}M"]
    argv += ["--jobs", str(options.jobs)] if options.jobs else []
    argv += ["--wheels", str(options.wheels)] if options.wheels else []
    argv += ["--renew"] if options.renew else []
    argv += ["--builder", builder.name, "--to", str(registry.repository), "--network", fleet.network]
    return [*argv, "--insecure"] if registry.insecure else argv


def dry(here: project.Project, fleet: Run | None, wanted: Sequence[Order], options: Options) -> list[str]:
    """The exact commands."""
    from knowngood.building import dryrun
    from knowngood.compiling import plan
    from knowngood.compiling.on_builder import OnBuilder
    from knowngood.compiling.run import Compiler

    if fleet:
        line = fleet.line(fleet.builders[0])
        compiler = Compiler(line=line, options=options, place=OnBuilder(line=line, ask=False))
    else:
        compiler = _here(here, dryrun.engine(), options)
    return [text for one in wanted for text in plan.commands(one, compiler.line, options, compiler.place)]


def published_list(here: project.Project) -> Path | None:
    """The project's list of published wheels, if it has one."""
    path = here.root / LIST
    return path if path.is_file() else None


def _options(arguments: argparse.Namespace, here: project.Project) -> Options:
    from pathlib import Path

    from knowngood.compiling.order import Options
    from knowngood.locks import wheelhouse

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


def _row(item: Mapping[str, Any]) -> list[str]:
    what = f"{item['package']} {item['version']}"
    if "error" in item:
        return [item["cell"], what, item["status"], "-", "-"]
    return [item["cell"], what, item["status"], f"{item['seconds']:.0f} s", item["wheel"]]
