"""What the tries of a job say so far, and whether it is tried again: the same way, or on another node. Pure.

An image is not blamed for what one node saw: a red suite is run again on another node, and both are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from knowngood.fleet.job import Cause, Job, State

MOST = 2
"""Tries of a job whose node, image's pull or result failed: nobody's verdict on the image."""
DAMAGED = "damaged"
"""The domain of a result that could not be read, or is of another job."""


class Try(BaseModel):
    """One try, ended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempt: int
    avoid: tuple[str, ...] = ()
    state: State
    cause: Cause | None = None
    text: str = ""
    """The suite's verdict where there is a report, else the engine's words."""
    node: str | None = None
    domain: str = ""
    """Whose fault by the report: `none`, `image`, `host`, `suite`; `damaged`; empty where there is no report."""
    evidence: str | None = None
    """The run's file."""
    queued: float | None = None
    ran: float | None = None

    @property
    def good(self) -> bool:
        """The suite's verdict was good."""
        return self.domain == "none"

    @property
    def red(self) -> bool:
        """The image seems to be at fault: its suite is red, or its process died without a report."""
        return self.domain == "image" or self.cause is Cause.CRASH

    @property
    def nobodys(self) -> bool:
        """It says nothing of the image, and may go better next time."""
        return self.state is State.LOST or self.domain == DAMAGED or bool(self.cause and self.cause.again)


class End(StrEnum):
    """How a job came out."""

    PROVEN = "proven"
    """Good evidence was there before; nothing was done."""
    GOOD = "good"
    RED = "red"
    """On two nodes."""
    UNCONFIRMED = "unconfirmed"
    """Red, and no other node has said so too."""
    HOST = "host"
    SUITE = "suite"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    LOST = "lost"
    WAITING = "waiting"
    """It is still at the engine; the same command takes it up."""

    @property
    def exit_code(self) -> int:
        """0 good, 1 no, 3 not known, 4 something is missing."""
        codes = {End.PROVEN: 0, End.GOOD: 0, End.HOST: 4, End.REFUSED: 4, End.LOST: 3, End.WAITING: 3}
        return codes.get(self, 1)


WORST = (1, 2, 4, 3, 0)
"""Exit codes, the worst first."""


class Verdict(BaseModel):
    """How a job came out, with a sentence."""

    model_config = ConfigDict(frozen=True)

    end: End
    text: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """How a job came out."""

    job: Job
    verdict: Verdict
    tries: tuple[Try, ...] = ()


class Again(BaseModel):
    """It is tried once more."""

    model_config = ConfigDict(frozen=True)

    avoid: frozenset[str]
    because: str


def decide(tries: Sequence[Try]) -> Verdict | Again:
    """What follows from the tries of a job, the last of which has just ended."""
    last = tries[-1]
    reds = [item for item in tries if item.red]
    hosts = [item for item in tries if item.domain == "host"]
    if last.red and len(reds) == 1:
        return _elsewhere(last, "red")
    if last.domain == "host" and len(hosts) == 1:
        return _elsewhere(last, "the host's fault")
    if last.nobodys and sum(item.nobodys for item in tries) < MOST:
        return Again(avoid=frozenset(last.avoid), because=last.text)
    return _verdict(last, reds, hosts)


def _verdict(last: Try, reds: Sequence[Try], hosts: Sequence[Try]) -> Verdict:
    if last.good:
        return Verdict(end=End.GOOD, text=last.text + _against(last, [*reds, *hosts]))
    if last.domain == "suite":
        return Verdict(end=End.SUITE, text=last.text)
    if reds:
        return _red(reds, last)
    if hosts:
        return Verdict(end=End.HOST, text=f"{hosts[-1].text} (on {hosts[-1].node}){_then(hosts[-1], last)}")
    return Verdict(end=_end(last), text=last.text)


def _elsewhere(last: Try, what: str) -> Again:
    avoid = frozenset(last.avoid) | ({last.node} if last.node else set())
    return Again(avoid=avoid, because=f"{what} on {last.node or 'a node without a name'}: {last.text}")


def _red(reds: Sequence[Try], last: Try) -> Verdict:
    nodes = list(dict.fromkeys(item.node for item in reds if item.node))
    if len(nodes) > 1:
        return Verdict(end=End.RED, text=f"{reds[-1].text} (on {' and '.join(nodes)})")
    said = f"{reds[0].text} (on {reds[0].node or 'a node without a name'})"
    return Verdict(end=End.UNCONFIRMED, text=f"{said}; not confirmed on another node{_then(reds[-1], last)}")


def _then(blamed: Try, last: Try) -> str:
    """What came of the try after the one that is blamed."""
    return "" if last is blamed else f": {last.text}"


def _against(last: Try, before: Sequence[Try]) -> str:
    """That another node saw it otherwise."""
    nodes = dict.fromkeys(item.node for item in before if item.node and item.node != last.node)
    return f"; good on {last.node}, not on {', '.join(nodes)} ({before[-1].text})" if nodes else ""


def _end(last: Try) -> End:
    ends = {State.REFUSED: End.REFUSED, State.CANCELLED: End.CANCELLED, State.LOST: End.LOST}
    return ends.get(last.state, End.FAILED)
