"""The schema of `smoke_tests/predictions.yaml`, checked by pydantic, which takes 0.25 s to import."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from knowngood.core.errors import InputError
from knowngood.core.matrix_schema import as_list, problem_from_pydantic
from knowngood.core.yaml_document import YamlDocument

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


def validate_prediction_items(source: YamlDocument) -> list[PredictionItem]:
    """Return the entries of a file; raises `InputError` with the line of each defect."""
    try:
        return TypeAdapter(list[PredictionItem]).validate_python(source.data)
    except ValidationError as error:
        raise InputError([problem_from_pydantic(source, item) for item in error.errors(include_url=False)]) from None
