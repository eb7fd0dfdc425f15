"""What a pod delivers: the report in its log, as `kubernetes_pod` prints it, and its termination message. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knowngood.core.errors import KnowngoodError

REPORT_BEGIN, REPORT_END = "=== knowngood report", "=== knowngood end"
NO_REPORT, TIMED_OUT = 3, 124
"""Exit codes of the pod's program: the suite left no report; it was stopped at its time limit."""
_BLOCK = re.compile(
    rf"^{REPORT_BEGIN} (?P<key>[0-9a-f]+) (?P<sha256>[0-9a-f]{{64}}) (?P<lines>\d+)\n"
    rf"(?P<text>.*?)^{REPORT_END} (?P=key)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class TerminationMessage:
    """A pod's termination message: which report its log must contain, the suite's exit code, facts about the node."""

    key: str
    sha256: str
    exit: int
    node: Mapping[str, Any]


def parse_termination_message(text: str | None) -> TerminationMessage | None:
    """Read a termination message; `None` where there is none or another (the kubelet's own, lines of the log)."""
    try:
        message = json.loads(text or "")
        return TerminationMessage(
            key=message["key"], sha256=message["sha256"], exit=message["exit"], node=dict(message["node"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def report_from_log(log: str, key: str, expected: str | None) -> dict[str, Any]:
    """Return the report of job `key` in a log; the last complete one when a pod delivered it twice.

    `expected` is the digest in the termination message. Raises `KnowngoodError` when there is no report, when it is cut
    off, or when it belongs to another job.
    """
    blocks = list(_BLOCK.finditer(log))
    if not blocks:
        problem = "its report is cut off" if REPORT_BEGIN in log else "it left no report"
        raise KnowngoodError(f"job {key}: {problem} in the pod's log ({len(log)} characters); run it again")
    own = [block for block in blocks if block["key"] == key]
    if not own:
        raise KnowngoodError(f"job {key}: the report in the pod's log belongs to job {blocks[-1]['key']}")
    for block in reversed(own):
        data = _decode(block)
        if data is not None and expected in (None, block["sha256"]):
            report: dict[str, Any] = json.loads(data)
            return report
    raise KnowngoodError(f"job {key}: the report in the pod's log is damaged (its digest differs); run it again")


def _decode(block: re.Match[str]) -> bytes | None:
    lines = block["text"].split()
    if len(lines) != int(block["lines"]):
        return None
    try:
        data = zlib.decompress(base64.b64decode("".join(lines), validate=True))
    except (binascii.Error, zlib.error):
        return None
    return data if hashlib.sha256(data).hexdigest() == block["sha256"] else None
