"""`knowngood cells [SELECT]`: list the cells with their tiers and attention settings."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.errors import InputError, InputProblem, KnowngoodError
from knowngood.core.formatting import format_bytes, format_table
from knowngood.core.gpus import GpuMachine, parse_capability
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.core.matrix import Matrix, MatrixError
from knowngood.core.matrix_entries import Retirement
from knowngood.evidence.cell_answer import UNJUDGED, CellAnswer, CellJudgement
from knowngood.evidence.observed_run import RecordedRun
from knowngood.project.cell_answers import CellAnswers, judge_cells
from knowngood.project.checkout import MATRIX_FILE, Project, find_project

if TYPE_CHECKING:
    from knowngood.core.cell import Cell


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    parser.add_argument("--long", action="store_true", help="with the ids and every attention setting, on wide rows")
    parser.add_argument(
        "--size",
        action="store_true",
        help="show how large their images and layers are in a registry; fail when a cell is larger than `size` in "
        "matrix.yaml allows",
    )
    jobs = parser.add_argument_group("the jobs of GitHub Actions that build and prove the cells (docs/ci.md)")
    jobs.add_argument("--jobs", choices=("wheels", "images"), help="print the matrix of a workflow's jobs as JSON")
    jobs.add_argument(
        "--changed-since",
        metavar="REF",
        help="only cells whose lock, Dockerfile, base, recipe or suite changed since this git revision",
    )
    jobs.add_argument("--gpus", metavar="ARCH,...", default="", help="architectures with runners, such as sm_90,sm_80")
    jobs.add_argument("--runner", metavar="LABEL,...", help="runner of the jobs without a GPU (default: ubuntu-24.04)")


def run(arguments: argparse.Namespace) -> Answer:
    """List the selected cells (default: all).

    A maintained cell that the rules forbid makes the exit code 1, and so does an evidence file that cannot be trusted;
    one that nobody judged makes it 3, and so does one without a lock whose trainer nobody knows.
    """
    from knowngood.engine import container_engine
    from knowngood.evidence.sealed_files import UNSIGNED_EVIDENCE, describe_unsigned_run
    from knowngood.launch.cell_verdict import CellVerdicts
    from knowngood.smoke.suite_files import find_cell_suite, has_suite, has_trainer_checks, hash_suite

    project = find_project()
    matrix = _load_matrix(project)
    if arguments.jobs:
        return _plan_jobs(arguments, project)
    shared_arguments.refuse_options(arguments, ("changed_since", "gpus", "runner"), "belongs to --jobs")
    if arguments.size:
        return _measure_cells(project, matrix.select_cells(arguments.select))
    selected = matrix.select_all_cells(arguments.select)
    known = CellAnswers(project)
    engine = container_engine.find_running_engine(builds=False)
    costs = CellVerdicts(known, engine, os.environ)
    verdicts = {str(cell): costs.judge(cell) for cell in selected}
    answers = {name: verdict.answer for name, verdict in verdicts.items()}
    plain = hash_suite(project.suite) if has_suite(project.suite) else None
    suites = {
        name: hash_suite(find_cell_suite(project, answer.cell))
        for name, answer in answers.items()
        if plain and has_trainer_checks(project, answer.cell)
    }
    cells = [
        {
            "id": name,
            "line": matrix.lines[answer.cell],
            "axes": {str(axis): value for axis, value in answer.cell.axes().items()},
            "aliases": [alias for alias, target in matrix.aliases.items() if target == name],
            "tier": str(answer.tier),
            "suite": _suite_document(answer.run, suites.get(name, plain)),
            "attention": known.standing(name).attention,
            "settings": {setting: state.document() for setting, state in answer.settings.items()},
            "errors": [dict(error.finding) for error in answer.errors],
            "unknown": [warning.because for warning in answer.warnings if warning.is_unknown],
            "cost": verdicts[name].document() | {"text": verdicts[name].brief_cost},
            "retired": retired.document() if (retired := matrix.retired.get(name)) else None,
            "unsigned": list(known.standing(name).unsigned),
        }
        for name, answer in answers.items()
    ]
    left_out = [note for name in answers for note in known.standing(name).left_out]
    unsigned = [describe_unsigned_run(file) for name in answers for file in known.standing(name).unsigned]
    notes = [*left_out, *unsigned, *known.judgements.notes]
    table = _long_table(cells) if arguments.long else _short_table(matrix, answers, cells)
    answer = _answer(cells, table, notes, trusted=not left_out)
    text = "\n".join([answer.text, *([] if project.seal else [UNSIGNED_EVIDENCE]), *project.foreign_knowledge])
    return Answer(answer.code, answer.document | {"signed": project.seal is not None}, text)


def _load_matrix(project: Project) -> Matrix:
    """Return the matrix. Where it has defects, they are reported together with the cells that the rules forbid."""
    try:
        return project.matrix
    except MatrixError as error:
        problems = list(error.problems)
        with contextlib.suppress(KnowngoodError):  # what judges cells needs more of the file than is sound
            judged = judge_cells(project, error.lines)
            cells = judged.cells if judged else {str(cell): CellJudgement() for cell in error.lines}
            problems += [
                InputProblem(file=MATRIX_FILE, line=line, column=1, text=f"{cell}: {finding.because}  [{finding.id}]")
                for cell, line in error.lines.items()
                for finding in cells[str(cell)].errors
            ]
        raise InputError(problems) from None


def _suite_document(run: RecordedRun | None, suite: str | None) -> dict[str, Any] | None:
    """Return the suite of the run that the tier comes from; `current` is `None` where the project has no suite."""
    return {"hash": run.suite, "current": suite and run.suite == suite} if run else None


_PLACES = {
    "trains-on-gpu": "GPU",
    "trains-on-cpu": "CPU",
    "trains-emulated": "emulated",
    "built": "built only",
    "resolved": "locked only",
}
"""Tier -> where a cell was seen training, for the short table."""


def _short_table(matrix: Matrix, answers: Mapping[str, CellAnswer], cells: Sequence[dict[str, Any]]) -> str:
    """Return the cells under the cards that they are for, in rows for a terminal of 80 columns.

    The first column is what selects a cell: its alias, its trainer, or nothing for one that only its id selects.
    """
    header = ["", "torch", "transformers", "flash-attn", "seen on"]
    groups: dict[GpuMachine, list[list[str]]] = {}
    for item in cells:
        cell = answers[item["id"]].cell
        groups.setdefault(matrix.machine_of(cell), []).append(_short_row(cell, item))
    columns = zip(header, *(row for rows in groups.values() for row in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines: list[str] = []
    for machine in sorted(groups, key=lambda machine: (parse_capability(machine.sm), machine.host != DEFAULT_HOST)):
        cards = f"{', '.join(machine.cards)} ({machine.name.replace('-', ', ', 1)})"
        rows = groups[machine] if lines else [header, *groups[machine]]
        lines += ["", *textwrap.wrap(cards, shutil.get_terminal_size().columns - 1)][not lines :]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if any(item["suite"] and item["suite"]["current"] is False for item in cells):
        lines.append("* by an older suite")
    return "\n".join([*lines, "`--long` has ids and attention settings"])


def _short_row(cell: Cell, item: dict[str, Any]) -> list[str]:
    trainer = " ".join(cell.framework_pin or ())
    place = "NOT JUDGED" if item["errors"] and item["errors"][0]["id"] == UNJUDGED.id else _PLACES.get(item["tier"], "")
    place = "BROKEN" if item["errors"] and place != "NOT JUDGED" else place
    older = "*" if item["suite"] and item["suite"]["current"] is False else ""
    retired = ", retired" if item["retired"] else ""
    flash = cell.flash_attn if cell.flash_attn_package else "-"
    return [(item["aliases"] or [trainer])[0], cell.torch, cell.transformers, flash, f"{place}{older}{retired}"]


def _long_table(cells: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            cell["id"],
            _tier_text(cell),
            ", ".join(cell["aliases"]),
            _settings_in(cell, "seen-on-gpu"),
            _settings_on_cpu(cell),
            _settings_in(cell, "refused", "wrong"),
            cell["cost"]["text"],
        ]
        for cell in cells
    ]
    header = ["cell", "tier", "aliases", "seen training on its GPU", "on a CPU only", "refused or wrong", "to fetch"]
    return format_table(header, rows)


def _answer(cells: list[dict[str, Any]], table: str, left_out: list[str], *, trusted: bool = True) -> Answer:
    """Return the table; `trusted` says that every evidence file could be used."""
    broken = [cell for cell in cells if cell["errors"]]
    errors = [
        f"{MATRIX_FILE}:{cell['line']}: {cell['id']}: {error['because']}  [{error['id']}]"
        for cell in broken
        for error in cell["errors"]
    ]
    unknown = [f"{MATRIX_FILE}:{cell['line']}: {cell['id']}: {text}" for cell in cells for text in cell["unknown"]]
    retired = [
        Retirement(on=item["on"], successor=item["for"]).sentence(cell["id"])
        for cell in cells
        if (item := cell["retired"])
    ]
    text = "\n".join([*errors, *unknown, table, *retired, *left_out])
    errors_of_maintained = {error["id"] for cell in broken if not cell["retired"] for error in cell["errors"]}
    is_doubtful = errors_of_maintained or any(cell["unknown"] and not cell["retired"] for cell in cells)
    code = 1 if not trusted or errors_of_maintained - {UNJUDGED.id} else 3 if is_doubtful else 0
    return Answer(code, {"cells": cells, "left_out": left_out}, text)


def _settings_in(cell: dict[str, Any], *states: str) -> str:
    return ", ".join(name for name, item in cell["settings"].items() if item["state"] in states) or "-"


def _settings_on_cpu(cell: dict[str, Any]) -> str:
    """Return the settings that were seen on a CPU only; `emulated:` stands before those of an emulated one."""
    emulated = _settings_in(cell, "seen-emulated")
    return _settings_in(cell, "seen-on-cpu") if emulated == "-" else f"emulated: {emulated}"


def _tier_text(cell: dict[str, Any]) -> str:
    tier = cell["tier"]
    if cell["errors"]:
        tier = "NOT JUDGED" if cell["errors"][0]["id"] == UNJUDGED.id else "BROKEN"
    if cell["suite"] and cell["suite"]["current"] is False:
        tier = f"{tier}, by an older suite"
    return f"{tier}, retired" if cell["retired"] else str(tier)


def _measure_cells(project: Project, cells: Sequence[Cell]) -> Answer:
    """Return the sizes of cells in a registry, from the committed records; 1 where one is larger than `size` allows."""
    from knowngood.images import image_sizes

    records = {str(cell): project.tree.load_record(cell) for cell in cells}
    measured = image_sizes.measure_images([record for record in records.values() if record])
    unrecorded = [name for name, record in records.items() if record is None]
    budget = project.matrix.size
    rows = [[item.cell, format_bytes(item.size), format_bytes(item.own)] for item in measured.cells]
    lines = [
        format_table(
            ["cell", "in a registry", "only it has"], [*rows, *([name, "unknown", "unknown"] for name in unrecorded)]
        )
    ]
    stored = f"{format_bytes(measured.unique)} in one registry, {format_bytes(measured.apart)} apart"
    lines.append(f"{len(measured.cells)} cells: {stored}")
    lines += [f"{name}: no record; `knowngood build --record '{name}'` writes it" for name in unrecorded]
    large = list(image_sizes.find_oversized_cells(measured, budget)) if budget else []
    lines += [
        f"{cell.cell}: {format_bytes(cell.size)}, matrix.yaml's `size` allows {format_bytes(budget)}; "
        f"its largest layer is {layer.name} with {format_bytes(layer.size)}"
        for cell, layer in large
    ]
    document = {
        "cells": [vars(item) for item in measured.cells],
        "layers": [vars(item) for item in measured.layers],
        "unique": measured.unique,
        "apart": measured.apart,
        "unrecorded": unrecorded,
        "budget": budget,
        "too_large": [cell.cell for cell, _ in large],
    }
    return Answer(1 if large else 0, document, "\n".join(lines))


def _plan_jobs(arguments: argparse.Namespace, project: Project) -> Answer:
    """Return the matrix of the jobs that compile the wheels of the selected cells, or build their images, in order."""
    from knowngood.images import build_survey, matrix_plan
    from knowngood.project.cell_answers import split_broken_cells
    from knowngood.reports import ci_jobs

    shared_arguments.refuse_options(arguments, ("size",), "does nothing with --jobs")
    cells = project.matrix.select_cells(arguments.select)
    if arguments.changed_since is not None:
        cells = _changed_cells(project, cells, arguments.changed_since)
    _, broken = split_broken_cells(project, cells)
    if broken:
        raise KnowngoodError("\n".join(map(str, broken.values())))
    ordered = matrix_plan.order_cells(list(build_survey.survey_cells(project, cells, None)), matrix_plan.Holdings())
    compiled = {str(cell): project.matrix.compiled_packages(cell) for cell in cells}
    gpus = ci_jobs.parse_gpu_architectures(arguments.gpus)
    jobs = ci_jobs.plan_ci_jobs(ordered, compiled, gpus=gpus)
    runner = {"runner": ci_jobs.parse_runner_labels(arguments.runner)} if arguments.runner else {}
    document = ci_jobs.github_matrix(jobs, ci_jobs.CiStage(arguments.jobs), **runner)
    return Answer(0, document, ci_jobs.render_github_matrix(document))


def _changed_cells(project: Project, cells: list[Cell], ref: str) -> list[Cell]:
    """Return the cells that changed since a commit. A cell without a lock counts when matrix.yaml changed."""
    from knowngood.reports import ci_jobs, git_history

    paths = git_history.list_changed_files(project.root, ref)
    locked = {cell: project.tree.load(cell) for cell in cells}
    changed = set(
        ci_jobs.find_changed_cells(
            filter(None, locked.values()), paths, uv_changed=git_history.has_uv_changed(project.root, ref)
        )
    )
    matrix_changed = MATRIX_FILE in paths
    return [cell for cell, lock in locked.items() if str(cell) in changed or (matrix_changed and lock is None)]
