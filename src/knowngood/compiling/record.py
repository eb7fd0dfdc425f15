"""What stands beside a compiled wheel: all that shaped it, how it went, and the hash that tells a damaged one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowngood.atomic import write_text
from knowngood.errors import UsageError

SCHEMA = "knowngood/wheel/1"


@dataclass(frozen=True, kw_only=True)
class Record:
    """The build record of a wheel."""

    wheel: str
    """Its file name."""
    sha256: str
    size: int
    key: str
    """The hash of `inputs`."""
    inputs: Mapping[str, Any]
    """Everything that shapes the wheel."""
    made: Mapping[str, Any]
    """How it was made: versions seen, attempts, seconds, objects; it shapes nothing."""

    def document(self) -> dict[str, Any]:
        """As it is written."""
        return {"schema": SCHEMA, **vars(self)}


def key(inputs: Mapping[str, Any]) -> str:
    """SHA-256 over everything that shapes a wheel. Pure."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def place(wheel: Path) -> Path:
    """Where the record of a wheel is."""
    return wheel.with_name(wheel.name + ".json")


def write(record: Record, wheel: Path) -> None:
    """Put it beside the wheel."""
    write_text(place(wheel), json.dumps(record.document(), indent=1) + "\n")


def read(wheel: Path) -> Record | None:
    """The record beside a wheel, `None` for a wheel that came without; `UsageError` when it is damaged."""
    path = place(wheel)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        schema = stored.pop("schema")
        found = Record(**stored)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error}); remove it and the wheel, and compile again") from None
    if schema != SCHEMA or found.wheel != wheel.name or found.key != key(found.inputs):
        raise UsageError(f"{path} is not the record of {wheel.name}; remove both, and compile again")
    return found


def sha256(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(wheel: Path) -> str | None:
    """Why a wheel is not the one that its record is of, as a sentence; `None` when it is, or has no record."""
    try:
        record = read(wheel)
    except UsageError as error:
        return str(error)
    if record is None or (found := sha256(wheel)) == record.sha256:
        return None
    return f"{wheel.name} is damaged: its sha256 is {found}, its record says {record.sha256}"


def attempt(path: Path) -> dict[str, Any]:
    """What one attempt noted of itself, up to where it was killed."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found
