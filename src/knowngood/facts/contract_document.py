"""The content of a table in `facts/contracts/`, checked against its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from knowngood.core import data_files

_Run = Annotated[list[str], Meta(min_length=2, max_length=2)]
_Verdict = Annotated[list[str], Meta(min_length=4, max_length=4)]


class _Release(TypedDict):
    yanked: bool
    artefact: str | None
    files: dict[str, str]


class _Side(TypedDict):
    package: str
    releases: dict[str, _Release]


class _Pairs(TypedDict):
    caller: _Run
    """The first and the last release of a run."""
    callee: list[_Verdict]
    """First and last release of a run, outcome and its text."""


class _ContractDocument(TypedDict):
    schema: Literal["knowngood/contract/1"]
    contract: str
    regenerate: str
    reader: int
    digest: str
    read: str
    caller: _Side
    callee: _Side
    pairs: list[_Pairs]


def load_contract_document(path: Path) -> dict[str, Any]:
    """Return the content of a table's file as plain data.

    Raises `FileNotFoundError` when there is none, and `InputError` with every defect when it is damaged.
    """
    remedy = f"`knowngood harvest --contracts {path.stem}` writes it again"
    return dict(data_files.load_json(path, _ContractDocument, remedy=remedy))
