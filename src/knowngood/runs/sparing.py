"""Reads of a run's file what pages show, and steps over the rest: four times as fast as all of it.

Most of a file are losses and kernels, check by check. What is not as expected is read whole, by a reader whose
complaint says where.
"""

import json
from functools import cache
from typing import Any, TypedDict

import msgspec


class _Check(TypedDict, total=False):
    topic: Any
    setting: Any
    outcome: Any
    agreement: Any
    message: Any
    reason: Any
    figures: msgspec.Raw
    """Most of them are not shown."""


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
    try:
        return _decoder().decode(data)
    except (msgspec.MsgspecError, RecursionError):
        from pydantic_core import from_json

        return from_json(data)


def whole(value: Any) -> Any:
    """What was left as it stands in the file."""
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value


@cache
def _decoder() -> msgspec.json.Decoder[_Run]:
    return msgspec.json.Decoder(_Run)
