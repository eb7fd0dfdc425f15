"""A model's configuration as its user gives it: a `config.json`, or a folder with one."""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from knowngood.core.data_files import load_json, read_data_text
from knowngood.core.errors import MissingError, UsageError
from knowngood.smoke.predictions import PredictedOutcome

CONFIG_NAME = "config.json"
_FAMILIES = "families.py"
PREDICTIONS_FOLDER = "smoke_tests/model-predictions"


class PredictedModelCheck(TypedDict):
    """One prediction, with its reason."""

    outcome: PredictedOutcome
    because: str


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A configuration, and where it was read."""

    path: Path
    """The file, or the name of a family of the suite."""
    fields: dict[str, Any]

    @property
    def model_type(self) -> str:
        """The type by which transformers chooses the classes."""
        return str(self.fields["model_type"])

    def code_files(self) -> dict[str, bytes]:
        """Return the Python files beside the configuration and the configuration itself, by name."""
        files = sorted([*self.path.parent.glob("*.py"), self.path])
        return {file.name: file.read_bytes() for file in files}


def read_model_config(place: Path, suite: Path) -> ModelConfig:
    """Read the configuration in a file, in a folder that holds a `config.json`, or of a family in the model suite.

    `suite` is the suite's folder. Raises `UsageError` where there is none, or where it is no configuration of a model;
    the sentence says why.
    """
    path = place / CONFIG_NAME if place.is_dir() else place
    if not path.is_file():
        if place.is_dir():
            raise UsageError(f"the folder {place} has no {CONFIG_NAME}, which says what the model is")
        families = read_families(suite)
        if str(place) not in families:
            names = ", ".join(sorted(families))
            raise UsageError(
                f"{place} does not exist; give a model's {CONFIG_NAME}, the folder that holds it, or one of the "
                f"families {names}"
            )
        return ModelConfig(path=place, fields=families[str(place)])
    try:
        fields = json.loads(read_data_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: this is no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is no JSON that can be read: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: a model's configuration is a JSON object, this is a {type(fields).__name__}")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise UsageError(f'{path}: "model_type" is missing, by which transformers chooses the classes of the model')
    return ModelConfig(path=path, fields=fields)


def read_model_predictions(path: Path) -> dict[str, PredictedModelCheck]:
    """Read predicted outcomes by globs over the ids of checks, as `scripts/model_predictions.py` writes them.

    Raises `UsageError` where there is no such file, and `InputError` with the place of a defect in it.
    """
    try:
        return load_json(
            path, dict[str, PredictedModelCheck], remedy="write it again with scripts/model_predictions.py"
        )
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; give a file of {PREDICTIONS_FOLDER}") from None


def read_families(suite: Path) -> dict[str, dict[str, Any]]:
    """Return the configuration of each family in the model suite: its type, and what differs from its class's defaults.

    Raises `MissingError` when the folder holds no model suite.
    """
    table = suite / _FAMILIES
    if not table.is_file():
        raise MissingError(f"{suite} is not the model suite: it has no {_FAMILIES}")
    families = runpy.run_path(str(table))["FAMILIES"]
    return {name: {"model_type": family.model_type, **family.fields} for name, family in families.items()}
