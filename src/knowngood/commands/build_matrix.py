"""`knowngood build-matrix [SELECT]`: everything, from matrix.yaml to evidence; what `nox -s build-matrix` runs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common, on_builders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from knowngood.builders.run import Run
    from knowngood.building.pipeline import Options
    from knowngood.building.results import Result
    from knowngood.cell import Cell
    from knowngood.compiling.order import Options as CompileOptions
    from knowngood.compiling.order import Order
    from knowngood.engines.engine import Engine


def configure(parser: argparse.ArgumentParser, *, quick: bool = True) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument("--all", action="store_true", help="every cell (without SELECT: the alias default)")
    common.add_wheelhouse(parser)
    common.add_locked(parser)
    common.add_smoke(parser, quick=quick)
    parser.add_argument(
        "--jobs", type=_jobs, metavar="N", help="cells at once, as memory and disk allow (by processors)"
    )
    parser.add_argument("--no-wait", action="store_true", help="leave a cell that another run works on")
    parser.add_argument(
        "--record", action="store_true", help="write what came out beside the Dockerfile, as image.json"
    )
    parser.add_argument("--compile", action="store_true", help="compile the wheels that the wheelhouse lacks")
    parser.add_argument(
        "--published",
        metavar="REPOSITORY",
        help="leave a cell whose image, as it is committed, stands there and was seen green; nothing of it is pulled",
    )
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, to a registry on this machine only")
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")
    on_builders.configure(parser)


def run(arguments: argparse.Namespace, *, smoke: bool = True, words: list[str] | None = None) -> Answer:
    """Build and prove the selected cells; the first cell that fails decides the exit code."""
    from knowngood import progress, select
    from knowngood.engines import engine

    far = on_builders.wanted(arguments)
    here = project.find()
    matrix = here.matrix
    words = words or arguments.select or ([] if arguments.all else ["default"])
    cells = select.select(matrix.cells, matrix.aliases, words)
    if arguments.dry_run:
        commands = _commands(arguments, here, cells, smoke=smoke)
        return Answer(0, {"commands": commands}, "\n".join(dict.fromkeys(commands)))
    standing = _standing(arguments.published, here, cells, insecure=arguments.insecure) if arguments.published else {}
    results, lacking = list(standing.values()), []
    if cells := [cell for cell in cells if str(cell) not in standing]:
        found = None
        if not far or smoke:
            with progress.reporter("engine") as say:
                found = engine.ensure(say=say)
                say(f"docker {found.version} at {found.host}")
        prover = found if smoke else None
        fleet = on_builders.prepared(arguments, here, options(arguments, smoke=smoke), prover) if far else None
        lacking = _compile(arguments, here, cells, fleet) if arguments.compile else []
        if fleet:
            results += on_builders.results(arguments, fleet, cells, functools.partial(_again, arguments, smoke=smoke))
        elif found:
            results += _results(arguments, here, cells, found, smoke=smoke)
    code = next((code for code in (*(item.error.exit_code for item in results if item.error), *lacking)), 0)
    return Answer(code, {"cells": [result.document(here.root) for result in results]}, summary(results, here))


def _commands(arguments: argparse.Namespace, here: project.Project, cells: Sequence[Cell], *, smoke: bool) -> list[str]:
    """What `--dry-run` prints."""
    from knowngood.building import dryrun, pipeline
    from knowngood.commands import compile as compiling

    far = on_builders.wanted(arguments)
    fleet = on_builders.prepared(arguments, here, options(arguments, smoke=smoke), None) if far else None
    commands = compiling.dry(here, fleet, *_to_compile(arguments, here, cells)) if arguments.compile else []
    if fleet:
        return commands + fleet.commands(cells)
    line = pipeline.Pipeline(here, options(arguments, smoke=smoke), dryrun.engine())
    return commands + [command for cell in cells for command in dryrun.commands(line, cell)]


def _standing(repository: str, here: project.Project, cells: Sequence[Cell], *, insecure: bool) -> dict[str, Result]:
    """The cells for which there is nothing to do: the registry has their image, and a good run of it is committed."""
    import time

    from knowngood import evidence
    from knowngood.building.results import Result, Status
    from knowngood.publishing import release
    from knowngood.registries.reference import Repository
    from knowngood.registries.registry import Registry

    start = time.monotonic()
    registry = Registry(Repository.parse(repository), insecure=insecure)
    of = {str(cell): cell for cell in cells}
    return {
        name: Result(
            cell=name,
            status=Status.UNCHANGED,
            seconds=time.monotonic() - start,
            tier=evidence.tier([run], locked=True),
            note=f"{registry.repository}:{release.tag(here, of[name])} is {digest[:19]}",
        )
        for name, (digest, run) in release.standing(here, registry, cells).items()
    }


def _results(
    arguments: argparse.Namespace, here: project.Project, cells: Sequence[Cell], found: Engine, *, smoke: bool
) -> Iterator[Result]:
    """Each cell's result as it comes, shared layers first."""
    from knowngood import progress
    from knowngood.building import crew, machine, pipeline, planning, schedule, survey

    line = pipeline.Pipeline(here, options(arguments, smoke=smoke), found)
    asked = survey.asked(here, cells, line.options.wheelhouse)
    held = survey.holdings(here, found)
    tasks = [schedule.task(item, held, prove=smoke) for item in planning.order(list(asked), held)]
    of_task = {item.cell: cell for item, cell in asked.items()}
    jobs = min(arguments.jobs or machine.jobs(), len(tasks))
    count = itertools.count(1)

    def start(task: schedule.Task) -> crew.Work:
        cell = of_task[task.cell]
        if jobs > 1:
            return crew.Child(task.cell, _again(arguments, str(cell), smoke=smoke), here.root)
        number = f"[{next(count)}/{len(tasks)}] " if len(tasks) > 1 else ""
        with progress.reporter(f"{number}{cell}") as say:
            return crew.Done(line.run(cell, say))

    with contextlib.ExitStack() as stack:
        # A cell that is worked on in this process has the terminal's live line for itself.
        say = stack.enter_context(progress.reporter("queue")) if jobs > 1 else _silent
        for result in crew.work(tasks, start, lambda: machine.left(found), jobs=jobs, say=say):
            if result.error:
                print(f"{result.cell}: {result.error}", file=sys.stderr)
            yield result


def _silent(_: str) -> None:
    pass


def _compile(
    arguments: argparse.Namespace, here: project.Project, cells: Sequence[Cell], fleet: Run | None
) -> list[int]:
    """Fill the wheelhouse; where a wheel is still lacking, that is said, and that cell's twin built in its place.

    Returns an exit code for each of those.
    """
    from knowngood.commands import compile as compiling

    wanted, how = _to_compile(arguments, here, cells)
    made = compiling.supply(here, fleet, wanted, how) if wanted else []
    failed = [item for item in made if "error" in item]
    for item in failed:
        print(item["error"], file=sys.stderr)
    return [item["exit"] for item in failed]


def _to_compile(
    arguments: argparse.Namespace, here: project.Project, cells: Sequence[Cell]
) -> tuple[Sequence[Order], CompileOptions]:
    from knowngood.commands import compile as compiling
    from knowngood.compiling.order import Options as CompileOptions
    from knowngood.compiling.order import orders
    from knowngood.locks import wheelhouse

    house, listed = wheelhouse.folder(arguments.wheelhouse), compiling.published_list(here)
    return orders(cells, here.matrix), CompileOptions(wheelhouse=house, wheels=listed)


def _again(arguments: argparse.Namespace, cell: str, *, smoke: bool) -> list[str]:
    """The same command line, for one cell."""
    argv = [
        "build-matrix" if smoke else "build",
        cell,
        "--timeout",
        str(arguments.timeout),
        "--memory",
        arguments.memory,
    ]
    argv += ["--quick" if arguments.quick else "--no-quick"]
    argv += ["--wheelhouse", arguments.wheelhouse] if arguments.wheelhouse else []
    flags = ("locked", "gpus", "again", "no_wait", "record")
    return [*argv, *(f"--{flag.replace('_', '-')}" for flag in flags if getattr(arguments, flag))]


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cells from 1 to 64")
    return int(text)


def options(arguments: argparse.Namespace, *, smoke: bool) -> Options:
    """The run's options from the command line's."""
    from knowngood.building import pipeline
    from knowngood.locks import wheelhouse

    return pipeline.Options(
        wheelhouse=wheelhouse.folder(arguments.wheelhouse),
        locked=arguments.locked,
        prove=smoke,
        suite=common.suite_options(arguments),
        force_smoke=arguments.again,
        record=arguments.record,
        wait=not arguments.no_wait,
    )


def summary(results: list[Result], here: project.Project) -> str:
    """The table at the end: id, how it came out, tier, digest, size, seconds, evidence; notes below it."""
    from knowngood import table

    rows = [
        [
            result.cell,
            str(result.status),
            str(result.tier),
            result.image.digest[:19] if result.image else "-",
            f"{result.image.size / 1e9:.2f} GB" if result.image else "-",
            f"{result.seconds:.0f} s",
            str(result.evidence.relative_to(here.root)) if result.evidence else "-",
        ]
        for result in results
    ]
    header = ["cell", "status", "tier", "image", "size", "time", "evidence"]
    notes = [f"{result.cell}: {result.note}" for result in results if result.note]
    errors = [f"{result.cell}: FAILED: {result.error}" for result in results if result.error]
    return "\n".join([table.text(header, rows), *notes, *errors])
