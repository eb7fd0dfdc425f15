"""The report in a pod's log, as `kubernetes_pod` prints it, and what the pod said as it ended. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from knowngood.errors import KnowngoodError

BEGIN, END = "=== knowngood report", "=== knowngood end"
_BLOCK = re.compile(
    rf"^{BEGIN} (?P<key>[0-9a-f]+) (?P<sha256>[0-9a-f]{{64}}) (?P<lines>\d+)\n(?P<text>.*?)^{END} (?P=key)$",
    re.MULTILINE | re.DOTALL,
)
_BEGUN = re.compile(rf"^{BEGIN} .*\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A pod's termination message."""

    key: str
    sha256: str
    exit: int
    node: Mapping[str, Any] = field(default_factory=dict)


def said(message: str | None) -> Said | None:
    """What a pod of ours said; `None` for none, or for what is not ours (the kubelet's own, a node's log lines)."""
    try:
        told = json.loads(message or "")
        return Said(key=told["key"], sha256=told["sha256"], exit=told["exit"], node=dict(told["node"]))
    except (ValueError, KeyError, TypeError):
        return None


def read(log: str, key: str, expected: str | None) -> dict[str, Any]:
    """The report of job `key` in a log; the last whole one, where a pod delivered it twice.

    `expected` is the digest in the termination message. `KnowngoodError` when there is no report, when it is cut, or
    of another job.
    """
    blocks = list(_BLOCK.finditer(log))
    if not blocks:
        began = "its report is cut off" if BEGIN in log else "it left no report"
        raise KnowngoodError(f"job {key}: {began} in the pod's log ({len(log)} characters); run it again")
    own = [block for block in blocks if block["key"] == key]
    if not own:
        raise KnowngoodError(f"job {key}: the report in the pod's log is of job {blocks[-1]['key']}")
    for block in reversed(own):
        data = _decoded(block)
        if data is not None and expected in (None, block["sha256"]):
            report: dict[str, Any] = json.loads(data)
            return report
    raise KnowngoodError(f"job {key}: the report in the pod's log is damaged (its digest is another); run it again")


def _decoded(block: re.Match[str]) -> bytes | None:
    lines = block["text"].split()
    if len(lines) != int(block["lines"]):
        return None
    try:
        data = zlib.decompress(base64.b64decode("".join(lines), validate=True))
    except (binascii.Error, zlib.error):
        return None
    return data if hashlib.sha256(data).hexdigest() == block["sha256"] else None


def without(log: str) -> str:
    """A log as a person wants it: the report's lines are left out."""
    return _BEGUN.sub("", _BLOCK.sub("", log)).strip("\n")
