"""Reads of a run's file what pages show, and steps over the rest: four times as fast as all of it.

Most of a file are losses and kernels, check by check. What is not as expected is read whole, by a reader whose
complaint says where.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import msgspec


class _Check(TypedDict, total=False):
    topic: Any
    setting: Any
    outcome: Any
    agreement: Any
    message: Any
    reason: Any
    figures: Any


class _Environment(TypedDict, total=False):
    gpu: Any


class _Report(TypedDict, total=False):
    suite_hash: Any
    verdict: Any
    environment: _Environment
    checks: list[_Check]


class _Run(TypedDict, total=False):
    schema: Any
    cell: Any
    where: Any
    image: Any
    when: Any
    node: Any
    command: Any
    report: _Report


def parse(data: bytes) -> Any:
    """A run's file without what is not shown; raises `ValueError` when it is no JSON."""
    import msgspec

    try:
        return _decoder().decode(data)
    except (msgspec.MsgspecError, RecursionError):
        from pydantic_core import from_json

        return from_json(data)


@cache
def _decoder() -> msgspec.json.Decoder[_Run]:
    import msgspec

    return msgspec.json.Decoder(_Run)
