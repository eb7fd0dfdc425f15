"""`--builder` of `build` and `build-matrix`: the arguments, and the run on the builders that they name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from knowngood.errors import UsageError

if TYPE_CHECKING:
    from knowngood.builders.builder import Builder
    from knowngood.builders.run import Run
    from knowngood.building.pipeline import Options
    from knowngood.building.results import Result
    from knowngood.cell import Cell
    from knowngood.engines.engine import Engine
    from knowngood.project import Project

Words = Callable[[str], list[str]]
"""The command line again, for one cell."""


def configure(parser: argparse.ArgumentParser, *, layers: bool = True) -> None:
    """The arguments; `layers` for a command that builds images."""
    group = parser.add_argument_group("on builders (docs/builders.md)")
    group.add_argument(
        "--builder",
        metavar="NAME,...",
        help="instances of buildx, docker contexts or addresses of engines; default is this machine's engine",
    )
    group.add_argument(
        "--to",
        metavar="REPOSITORY",
        help="where images go and layers are shared, such as registry.example/team/builds (KNOWNGOOD_BUILDS)",
    )
    group.add_argument(
        "--network",
        choices=("default", "host"),
        help="of the build steps (host, where one of the builders has no other)",
    )
    if layers:
        group.add_argument("--layers", metavar="NAME,...", help="only these layers of one cell, into the shared cache")


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether the run is on builders; `UsageError` for words that are for such a run alone."""
    if arguments.builder is None:
        for name in ("to", "network", "layers"):
            if getattr(arguments, name, None):
                raise UsageError(f"--{name} goes with --builder NAME")
        return False
    return True


def results(arguments: argparse.Namespace, run: Run, cells: Sequence[Cell], again: Words) -> Iterator[Result]:
    """Each cell's result as it comes."""
    from knowngood import progress

    if len(run.builders) == len(cells) == 1:
        yield _alone(arguments, run, cells[0])
        return
    if arguments.layers:
        raise UsageError("--layers is for one cell, on one builder")

    def child(builder: Builder, cell: Cell, layers: Sequence[str]) -> list[str]:
        words = [*again(str(cell)), "--builder", builder.name, "--to", str(run.depot.registry.repository)]
        words += ["--network", run.network]
        words += ["--insecure"] if arguments.insecure else []
        return [*words, "--layers", ",".join(layers)] if layers else words

    with progress.reporter("fleet") as say:
        for result in run.results(cells, child, at_once=arguments.jobs, say=say):
            if result.error:
                print(f"{result.cell}: {result.error}", file=sys.stderr)
            yield result


def _alone(arguments: argparse.Namespace, run: Run, cell: Cell) -> Result:
    """One cell on one builder, in this process."""
    from knowngood import progress

    builder = run.builders[0]
    with progress.reporter(f"{cell} on {builder.name}") as say:
        if arguments.layers:
            return run.layers(cell, arguments.layers.split(","), say)
        return run.line(builder).run(cell, say)


def prepared(arguments: argparse.Namespace, here: Project, options: Options, prover: Engine | None) -> Run:
    """The run on the builders that answer; `prover` is the engine that runs the suite."""
    from knowngood import progress
    from knowngood.builders import builder, find, run
    from knowngood.builders.depot import Depot
    from knowngood.registries.reference import Repository
    from knowngood.registries.registry import Registry

    where = arguments.to or os.environ.get("KNOWNGOOD_BUILDS")
    if not where:
        raise UsageError(
            "builders share layers and give images away through a registry: --to registry.example/team/builds"
        )
    registry = Registry(Repository.parse(where), insecure=arguments.insecure)
    with progress.reporter("builders") as say:
        builders, silent = find.find(builder.names(arguments.builder), say)
    for line in (*silent, *run.told(builders)):
        print(line, file=sys.stderr)
    network = arguments.network or run.network(builders)
    return run.Run(
        project=here, options=options, builders=builders, depot=Depot(registry), network=network, prover=prover
    )
