"""Parses an evidence file without the parts that no page shows.

Most of a file are losses and kernels, check by check, which no page shows. Skipping them is four times as fast as
reading everything. A file with an unexpected form is read whole, by a parser whose error says where it is wrong.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypedDict

import msgspec


class _ShownCheck(TypedDict, total=False):
    id: Any
    topic: Any
    setting: Any
    dtype: Any
    layout: Any
    mode: Any
    outcome: Any
    agreement: Any
    message: Any
    reason: Any
    figures: msgspec.Raw
    """Kept as bytes: most of them are never shown."""


class _ShownEnvironment(TypedDict, total=False):
    gpu: Any
    sm: Any


class _ShownReport(TypedDict, total=False):
    suite_hash: Any
    verdict: Any
    environment: _ShownEnvironment
    checks: list[_ShownCheck]


class _ShownRun(TypedDict, total=False):
    schema: Any
    cell: Any
    where: Any
    image: Any
    when: Any
    node: Any
    command: Any
    report: _ShownReport


def parse_shown_parts(data: bytes) -> Any:
    """Parse an evidence file without the parts that no page shows; `ValueError` when it is not JSON."""
    try:
        return _shown_parts_decoder().decode(data)
    except (msgspec.MsgspecError, RecursionError):
        from pydantic_core import from_json

        return from_json(data)


def parse_skipped_part(value: Any) -> Any:
    """Parse a part that `parse_shown_parts` kept as bytes."""
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value


@cache
def _shown_parts_decoder() -> msgspec.json.Decoder[_ShownRun]:
    return msgspec.json.Decoder(_ShownRun)
