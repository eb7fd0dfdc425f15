"""The options of `build`, `build-matrix` and `compile` for builders, and the run on the builders that they name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import UsageError
from knowngood.engine.container_engine import Engine
from knowngood.executors.builder import parse_builder_names
from knowngood.executors.builder_discovery import find_builders
from knowngood.executors.builder_run import BuilderRun, choose_network, describe_builders
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images.cell_tasks import CellResult
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import Project
from knowngood.registry.image_reference import Repository
from knowngood.registry.registry_client import Registry


def add_builder_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for builders."""
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


def uses_builders(arguments: argparse.Namespace) -> bool:
    """Return whether `--builder` is given. Raises `UsageError` for options that need it when it is not."""
    if arguments.builder is not None:
        return True
    for option, value in {"--to": arguments.to, "--network": arguments.network}.items():
        if value:
            raise UsageError(f"{option} goes with --builder NAME")
    return False


def run_on_builders(run: BuilderRun, cells: Sequence[Cell], jobs: int | None) -> Iterator[CellResult]:
    """Yield the result of each cell when it is ready; `jobs` is the most builds at once on each builder."""
    with report_progress("builders") as notify:
        for result in run.build_cells(cells, jobs=jobs, notify=notify):
            if result.error:
                print(f"{result.cell}: {result.error}", file=sys.stderr)
            yield result


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
