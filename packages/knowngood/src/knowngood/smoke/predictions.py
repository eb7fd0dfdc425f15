"""The outcomes that the smoke suite should have for a cell, predicted by `smoke_tests/predictions.yaml`.

The suite compares each prediction with what it observed. Where they disagree, one of them is wrong and the run fails.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from knowngood.core import yaml_document
from knowngood.core.cell import Cell
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, UsageError
from knowngood.core.selection import CellFilter

PREDICTIONS_FILE = "smoke_tests/predictions.yaml"
PredictedOutcome = Literal["pass", "fail", "refused", "not-run"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The outcome of the checks whose id matches a glob, in some cells and on some device (`None`: in all, on any)."""

    check: str
    outcome: PredictedOutcome
    because: str
    source: str
    when: CellFilter | None
    device: str | None
    incident: str | None = None
    """The known failure that a predicted `fail` shows; it has a page."""


@cache
def load_predictions(root: Path) -> list[Prediction]:
    """Read `smoke_tests/predictions.yaml` below a project's root; raises `InputError` with the line of each defect."""
    return parse_predictions(read_data_text(root / PREDICTIONS_FILE, PREDICTIONS_FILE), PREDICTIONS_FILE)


def parse_predictions(text: str, file: str) -> list[Prediction]:
    """Return the predictions in a file's text; raises `InputError` with the line of each defect."""
    from knowngood.core.matrix_schema import check_entries  # it imports pydantic
    from knowngood.smoke.prediction_file import PredictionItem

    source = yaml_document.parse_yaml(text, file)
    predictions = []
    for index, item in enumerate(check_entries(source, PredictionItem)):
        try:
            when = CellFilter(item.when) if item.when else None
        except UsageError as error:
            raise InputError([source.problem((index, "when"), str(error))]) from None
        predictions += [
            Prediction(
                check=check,
                outcome=item.outcome,
                because=item.because,
                source=item.source,
                when=when,
                device=item.device,
                incident=item.incident,
            )
            for check in item.check
        ]
    return predictions


def predictions_for_cell(predictions: list[Prediction], cell: Cell, *, gpu: bool) -> dict[str, dict[str, str]]:
    """Return the suite's predictions for a cell: glob over check ids to outcome and reason. Later entries win."""
    device = "gpu" if gpu else "cpu"
    return {
        item.check: {"outcome": item.outcome, "because": item.because}
        for item in predictions
        if (item.when is None or item.when.matches(cell)) and item.device in (None, device)
    }


def explain_check(predictions: list[Prediction], cell: Cell, check: str, *, gpu: bool) -> Prediction | None:
    """Return the prediction that counts for a check of a cell: the longest glob that matches, the last of equal ones.

    The suite chooses in the same way.
    """
    device = "gpu" if gpu else "cpu"
    matching = [
        item
        for item in predictions
        if item.device in (None, device)
        and fnmatch.fnmatchcase(check, item.check)
        and (item.when is None or item.when.matches(cell))
    ]
    return max(enumerate(matching), key=lambda pair: (len(pair[1].check), pair[0]))[1] if matching else None
