"""`knowngood plan [SELECT]`: what a build would do, and in which order; also as jobs of GitHub Actions."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.engine import container_engine
from knowngood.images import build_survey, matrix_plan
from knowngood.images.matrix_plan import CellPlan, LayerPlan, MatrixPlan, PlanAction
from knowngood.lock import wheelhouse
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import MATRIX_FILE, Project, find_project
from knowngood.reports import ci_jobs, git_history
from knowngood.reports.ci_jobs import CiStage, parse_gpu_architectures, parse_runner_labels, plan_ci_jobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    parser.add_argument("--all", action="store_true", help="every cell, as without SELECT")
    parser.add_argument("--offline", action="store_true", help="ask no engine; everything counts as not built yet")
    parser.add_argument(
        "--changed-since",
        metavar="REF",
        help="only cells whose lock, Dockerfile, base, recipe or suite changed since this git revision",
    )
    ci = parser.add_argument_group("the plan for GitHub Actions (docs/ci.md)")
    ci.add_argument("--format", choices=("github",), help="print the matrix of a workflow's jobs")
    ci.add_argument("--stage", choices=("wheels", "images"), help="the stage of the matrix (default: images)")
    ci.add_argument("--gpus", metavar="ARCH,...", default="", help="architectures with runners, such as sm_90,sm_80")
    ci.add_argument("--runner", metavar="LABEL,...", help="runner of the jobs without a GPU (default: ubuntu-24.04)")


def run(arguments: argparse.Namespace) -> Answer:
    """Show the plan for the selected cells (default: all)."""
    project = find_project()
    cells = project.matrix.select_cells(shared_arguments.selection_words(arguments, default=()))
    if arguments.changed_since is not None:
        cells = _changed(project, cells, arguments.changed_since)
    _, broken = split_broken_cells(project, cells)
    if broken:
        raise KnowngoodError("\n".join(map(str, broken.values())))
    if arguments.format:
        return _for_ci(arguments, project, cells)
    if arguments.stage or arguments.gpus or arguments.runner:
        raise UsageError("--stage, --gpus and --runner belong to --format: `knowngood plan --format github`")
    engine = None if arguments.offline else container_engine.find_running_engine()
    plan = build_survey.survey_plan(project, cells, wheelhouse.wheelhouse_folder(), engine)
    host, command = engine.host if engine else None, _build_command(arguments, cells)
    text = "\n".join([_text(plan, host), *([f"to build this: {command}"] if command else [])])
    return Answer(0, {"engine": host, **plan.document(), "command": command}, text)


def _build_command(arguments: argparse.Namespace, cells: Sequence[Cell]) -> str | None:
    """Return the command that builds what the plan shows, with the same options; `None` without any cell."""
    if not cells:
        return None
    words = [str(cell) for cell in cells] if arguments.changed_since is not None else arguments.select
    return shlex.join(["knowngood", "build", *(words or ["--all"])])


def _changed(project: Project, cells: list[Cell], ref: str) -> list[Cell]:
    """Return the cells that changed since a commit. A cell without a lock counts when matrix.yaml changed."""
    paths = git_history.list_changed_files(project.root, ref)
    locked = {cell: project.tree.load(cell) for cell in cells}
    changed = set(
        ci_jobs.find_changed_cells(
            filter(None, locked.values()), paths, uv_changed=git_history.has_uv_changed(project.root, ref)
        )
    )
    matrix_changed = MATRIX_FILE in paths
    return [cell for cell, lock in locked.items() if str(cell) in changed or (matrix_changed and lock is None)]


def _for_ci(arguments: argparse.Namespace, project: Project, cells: list[Cell]) -> Answer:
    ordered = matrix_plan.order_cells(list(build_survey.survey_cells(project, cells, None)), matrix_plan.Holdings())
    compiled = {str(cell): project.matrix.compiled_packages(cell) for cell in cells}
    jobs = plan_ci_jobs(ordered, compiled, gpus=parse_gpu_architectures(arguments.gpus), limit=ci_jobs.GITHUB_LIMIT)
    runner = {"runner": parse_runner_labels(arguments.runner)} if arguments.runner else {}
    document = ci_jobs.github_matrix(jobs, CiStage(arguments.stage or CiStage.IMAGES), **runner)
    return Answer(0, document, ci_jobs.render_github_matrix(document))


def _text(plan: MatrixPlan, engine_host: str | None) -> str:
    """Return the plan for people: the cells, the layers, and the sums."""
    lines = [
        format_table(
            ["", "cell", "action", "fetches", "adds to a registry", "layers only it has"],
            [_cell_row(number, cell) for number, cell in enumerate(plan.cells, 1)],
        ),
        "",
        format_table(
            ["layer", "action", "fetches", "in a registry", "cells"], [_layer_row(layer) for layer in plan.layers]
        ),
        "",
    ]
    lines += [f"{cell.cell}: {cell.note}" for cell in plan.cells if cell.note]
    lines += [
        f"base {digest}: bootstrapped first, from Debian packages"
        for digest, action in plan.bases.items()
        if action is PlanAction.BUILD
    ]
    building, reusing = (
        [layer for layer in plan.layers if layer.action is action] for action in (PlanAction.BUILD, PlanAction.REUSE)
    )
    lines.append(
        f"{len(building)} layers to build, {_format_sum(plan.size)} in a registry; "
        f"{format_bytes(plan.download)} of wheels to fetch; {len(reusing)} layers reused, {_format_sum(plan.reused)}"
    )
    lines.append(
        f"layers count as reused when the engine at {engine_host} has them"
        if engine_host
        else "no engine was asked, or none answers, so nothing counts as built"
    )
    return "\n".join(lines)


def _cell_row(number: int, cell: CellPlan) -> list[str]:
    return [
        str(number),
        cell.cell,
        str(cell.action),
        format_bytes(cell.download),
        format_bytes(cell.adds),
        _first_names(cell.only),
    ]


def _layer_row(layer: LayerPlan) -> list[str]:
    return [
        layer.name,
        str(layer.action),
        format_bytes(layer.download),
        format_bytes(layer.size),
        str(len(layer.cells)),
    ]


def _first_names(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"


def _format_sum(size: tuple[int, int]) -> str:
    total, unknown = size
    if not unknown:
        return format_bytes(total)
    return f"{format_bytes(total)} and {unknown} of unknown size" if total else "unknown"
