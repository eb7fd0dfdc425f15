"""What the smoke suite is expected to say of a cell, from `rules/smoke.yaml`. Pure.

The suite compares each prediction with what it saw; where they disagree one of them is wrong, and the run is red.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from knowngood import document
from knowngood.cell import Cell
from knowngood.errors import InputError, UsageError
from knowngood.schema import listed, problem
from knowngood.select import Filter

Outcome = Literal["pass", "fail", "refused", "not-run"]
Text = Annotated[str, Field(min_length=1)]


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    check: Annotated[tuple[Text, ...], BeforeValidator(listed)]
    outcome: Outcome
    because: Text
    source: Text
    when: Text | None = None
    device: Literal["cpu", "gpu"] | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """An outcome for the checks whose id matches a glob, in the cells and on the device that it is said of."""

    check: str
    outcome: Outcome
    because: str
    source: str
    when: Filter | None
    device: str | None


def parse(text: str, file: str) -> list[Prediction]:
    """The predictions in a file's text; `InputError` with the line of each defect."""
    source = document.parse(text, file)
    try:
        items = TypeAdapter(list[_Item]).validate_python(source.data)
    except ValidationError as error:
        raise InputError([problem(source, item) for item in error.errors(include_url=False)]) from None
    found = []
    for index, item in enumerate(items):
        try:
            when = Filter(item.when) if item.when else None
        except UsageError as error:
            raise InputError([source.problem((index, "when"), str(error))]) from None
        found += [
            Prediction(
                check=check,
                outcome=item.outcome,
                because=item.because,
                source=item.source,
                when=when,
                device=item.device,
            )
            for check in item.check
        ]
    return found


def predict(predictions: list[Prediction], cell: Cell, *, gpu: bool) -> dict[str, dict[str, str]]:
    """The suite's predictions file for a cell: glob over check ids to outcome and reason. Later entries win."""
    device = "gpu" if gpu else "cpu"
    return {
        item.check: {"outcome": item.outcome, "because": item.because}
        for item in predictions
        if (item.when is None or item.when.matches(cell)) and item.device in (None, device)
    }
