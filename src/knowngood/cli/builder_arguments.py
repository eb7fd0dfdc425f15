"""The options of `build`, `build-matrix` and `compile` for builders, and the run on the builders that they name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import UsageError
from knowngood.engine.container_engine import Engine
from knowngood.executors.builder import Builder, parse_builder_names
from knowngood.executors.builder_discovery import find_builders
from knowngood.executors.builder_run import BuilderRun, choose_network, describe_builders
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images.cell_tasks import CellResult
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import Project
from knowngood.registry.image_reference import Repository
from knowngood.registry.registry_client import Registry

CommandForCell = Callable[[str], list[str]]
"""Gives the words of the command line for one cell id, for a child process."""


def add_builder_arguments(parser: argparse.ArgumentParser, *, layers: bool = True) -> None:
    """Add the options for builders; `layers` for a command that builds images."""
    group = parser.add_argument_group("on builders (docs/builders.md)")
    group.add_argument(
        "--builder",
        metavar="NAME,...",
        help="instances of buildx, docker contexts or addresses of engines (default: the engine of this machine)",
    )
    group.add_argument(
        "--to",
        metavar="REPOSITORY",
        help="where images are pushed and layers are shared, such as registry.example/team/builds (KNOWNGOOD_BUILDS)",
    )
    group.add_argument(
        "--network",
        choices=("default", "host"),
        help="the network of build steps (default: host if a builder has no other)",
    )
    if layers:
        group.add_argument(
            "--layers", metavar="NAME,...", help="build only these layers of one cell, into the shared cache"
        )


def uses_builders(arguments: argparse.Namespace) -> bool:
    """Return whether `--builder` is given. Raises `UsageError` for options that need it when it is not."""
    if arguments.builder is not None:
        return True
    dependent = {"--to": arguments.to, "--network": arguments.network, "--layers": getattr(arguments, "layers", None)}
    for option, value in dependent.items():
        if value:
            raise UsageError(f"{option} goes with --builder NAME")
    return False


def run_on_builders(
    arguments: argparse.Namespace, run: BuilderRun, cells: Sequence[Cell], command_for: CommandForCell
) -> Iterator[CellResult]:
    """Yield the result of each cell when it is ready. One cell on one builder is built in this process."""
    if len(run.builders) == len(cells) == 1:
        yield _build_one_cell(arguments, run, cells[0])
        return
    if arguments.layers:
        raise UsageError("--layers is for one cell, on one builder")

    def child_command(builder: Builder, cell: Cell, layers: Sequence[str]) -> list[str]:
        words = [*command_for(str(cell)), "--builder", builder.name, "--to", str(run.registry.client.repository)]
        words += ["--network", run.network]
        words += ["--insecure"] if arguments.insecure else []
        return [*words, "--layers", ",".join(layers)] if layers else words

    with report_progress("builders") as notify:
        for result in run.build_cells(cells, child_command, jobs=arguments.jobs, notify=notify):
            if result.error:
                print(f"{result.cell}: {result.error}", file=sys.stderr)
            yield result


def _build_one_cell(arguments: argparse.Namespace, run: BuilderRun, cell: Cell) -> CellResult:
    builder = run.builders[0]
    with report_progress(f"{cell} on {builder.name}") as notify:
        if arguments.layers:
            return run.build_layers(cell, arguments.layers.split(","), notify)
        return run.pipeline(builder).run(cell, notify)


def prepare_builder_run(
    arguments: argparse.Namespace, project: Project, options: PipelineOptions, prover: Engine | None
) -> BuilderRun:
    """Return the run on those of the named builders that answer; `prover` is the engine that runs the suite."""
    repository = arguments.to or os.environ.get("KNOWNGOOD_BUILDS")
    if not repository:
        raise UsageError("builders share layers and images through a registry: --to registry.example/team/builds")
    registry = Registry(Repository.parse(repository), insecure=arguments.insecure)
    with report_progress("builders") as notify:
        builders, left_out = find_builders(parse_builder_names(arguments.builder), notify)
    for line in (*left_out, *describe_builders(builders)):
        print(line, file=sys.stderr)
    return BuilderRun(
        project=project,
        options=options,
        builders=builders,
        registry=SharedRegistry(registry),
        network=arguments.network or choose_network(builders),
        prover=prover,
    )
