"""The schema of `smoke_tests/predictions.yaml`, checked by pydantic, which takes 0.25 s to import."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from knowngood.core.matrix_schema import as_list

Text = Annotated[str, Field(min_length=1)]


class PredictionItem(BaseModel):
    """One entry of the file: an outcome for checks, with its reason and its source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check: Annotated[tuple[Text, ...], BeforeValidator(as_list)]
    outcome: Literal["pass", "fail", "refused", "not-run"]
    because: Text
    source: Text
    when: Text | None = None
    device: Literal["cpu", "gpu"] | None = None
    incident: Text | None = None
