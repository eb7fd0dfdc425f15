"""`knowngood verify [SELECT]`: build from nothing, compare with the recorded digests, name what differs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_table
from knowngood.engine import container_engine
from knowngood.images import pipeline, verification
from knowngood.images.verification import Verification, VerificationOutcome
from knowngood.lock import wheelhouse
from knowngood.project.checkout import find_project

_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Verify the selected cells (default: all). A cell that fails does not stop the others."""
    project = find_project()
    cells = project.matrix.select_cells(arguments.select)
    with report_progress("engine") as notify:
        engine = container_engine.ensure_engine(notify=notify)
    options = pipeline.PipelineOptions(wheelhouse=wheelhouse.wheelhouse_folder(), locked=True)
    cell_pipeline = pipeline.Pipeline(project, options, engine)
    verdicts: list[Verification] = []
    failed: dict[str, KnowngoodError] = {}
    for number, cell in enumerate(cells, 1):
        with report_progress(f"[{number}/{len(cells)}] {cell}") as notify:
            try:
                verdicts.append(verification.verify_cell(cell_pipeline, cell, notify))
            except KnowngoodError as error:
                failed[str(cell)] = error
    document = {
        "cells": [
            {**vars(item), "outcome": str(item.outcome), "differences": [vars(one) for one in item.differences]}
            for item in verdicts
        ],
        "failed": {cell: str(error) for cell, error in failed.items()},
    }
    return Answer(_code(verdicts, failed), document, _text(verdicts, failed))


def _code(verdicts: list[Verification], failed: Mapping[str, KnowngoodError]) -> int:
    codes = {
        VerificationOutcome.SAME: 0,
        VerificationOutcome.DIFFERENT: 1,
        VerificationOutcome.STALE: 1,
        VerificationOutcome.UNRECORDED: 3,
    }
    exit_codes = [codes[item.outcome] for item in verdicts]
    exit_codes += [error.exit_code for error in failed.values()]
    return 1 if 1 in exit_codes else max(exit_codes, default=0)


def _text(verdicts: list[Verification], failed: Mapping[str, KnowngoodError]) -> str:
    """Return the table, with the differences below it."""
    rows = [
        [item.cell, str(item.outcome), (item.recorded or "-")[:19], (item.rebuilt or "-")[:19], f"{item.seconds:.0f} s"]
        for item in verdicts
    ]
    rows += [[cell, "failed", "-", "-", "-"] for cell in failed]
    lines = [format_table(["cell", "", "recorded", "built again", "time"], rows)]
    lines += [f"{item.cell}: {item.note}" for item in verdicts if item.note]
    for item in verdicts:
        for one in item.differences:
            lines += [f"{item.cell}: {one.name}:", *(f"  {file}" for file in one.files[:_SHOWN])]
            more = len(one.files) - _SHOWN
            lines += [f"  and {more} more; --json has them all"] if more > 0 else []
    return "\n".join([*lines, *(f"{cell}: {error}" for cell, error in failed.items())])
