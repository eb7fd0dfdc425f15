"""What a job's tries say about its image, whether it is tried again, and which nodes are not trusted. Pure.

An image is not blamed for what happened on one node: a red suite runs again on another node, and both results are
reported. A node that failed what another node passes gets no more jobs until it passes something itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from knowngood.executors.job import FailureCause, JobState, SuiteJob

MAX_INCONCLUSIVE_TRIES = 2
"""Tries of a job that fail for reasons that say nothing about the image: its node, the image's pull, the result."""
DAMAGED = "damaged"
"""The `domain` of a try whose result could not be read or belongs to another job."""


class JobTry(BaseModel):
    """One try of a job that has ended; it is stored in the state file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempt: int
    avoid: tuple[str, ...] = ()
    state: JobState
    cause: FailureCause | None = None
    text: str = ""
    """The suite's verdict where there is a report, else the engine's words."""
    node: str | None = None
    domain: str = ""
    """What is at fault by the report: `none`, `image`, `host`, `suite`. `damaged`, or empty without a report."""
    evidence: str | None = None
    """The file of the run."""
    queued: float | None = None
    """Seconds in the queue."""
    ran: float | None = None
    """Seconds from start to end."""

    @property
    def good(self) -> bool:
        """Whether the suite's verdict was good."""
        return self.domain == "none"

    @property
    def red(self) -> bool:
        """Whether the image seems to be at fault: its suite is red, or its process died without a report."""
        return self.domain == "image" or self.cause is FailureCause.CRASH

    @property
    def inconclusive(self) -> bool:
        """Whether the try says nothing about the image and the next one may succeed."""
        return self.state is JobState.LOST or self.domain == DAMAGED or bool(self.cause and self.cause.retryable)


class VerdictKind(StrEnum):
    """How a job came out (`outcome` in the JSON answer)."""

    PROVEN = "proven"
    """There was good evidence already; nothing was run."""
    GOOD = "good"
    RED = "red"
    """Red on two nodes."""
    UNCONFIRMED = "unconfirmed"
    """Red on one node, and no other node has confirmed it."""
    HOST = "host"
    SUITE = "suite"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    LOST = "lost"
    WAITING = "waiting"
    """It is still at the engine; the same command continues with it."""

    @property
    def exit_code(self) -> int:
        """0 good, 1 no, 3 unknown, 4 something is missing."""
        return _EXIT_CODES.get(self, 1)


_EXIT_CODES = {
    VerdictKind.PROVEN: 0,
    VerdictKind.GOOD: 0,
    VerdictKind.HOST: 4,
    VerdictKind.REFUSED: 4,
    VerdictKind.LOST: 3,
    VerdictKind.WAITING: 3,
}
WORST_FIRST = (1, 2, 4, 3, 0)
"""Exit codes, the worst first."""


@dataclass(frozen=True, kw_only=True)
class JobVerdict:
    """How a job came out, with a sentence for people."""

    kind: VerdictKind
    text: str


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The decision to run a job once more, without the nodes in `avoid`."""

    avoid: frozenset[str]
    because: str


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job with its verdict and all of its tries."""

    job: SuiteJob
    verdict: JobVerdict
    tries: tuple[JobTry, ...] = ()


def judge_tries(tries: Sequence[JobTry]) -> JobVerdict | Retry:
    """Return what follows from the tries of a job, the last of which has just ended."""
    last = tries[-1]
    reds = [item for item in tries if item.red]
    hosts = [item for item in tries if item.domain == "host"]
    if last.red and len(reds) == 1:
        return _retry_elsewhere(last, "red")
    if last.domain == "host" and len(hosts) == 1:
        return _retry_elsewhere(last, "the host's fault")
    if last.inconclusive and sum(item.inconclusive for item in tries) < MAX_INCONCLUSIVE_TRIES:
        return Retry(avoid=frozenset(last.avoid), because=last.text)
    return _final_verdict(last, reds, hosts)


def _final_verdict(last: JobTry, reds: Sequence[JobTry], hosts: Sequence[JobTry]) -> JobVerdict:
    if last.good:
        return JobVerdict(kind=VerdictKind.GOOD, text=last.text + _disagreement(last, [*reds, *hosts]))
    if last.domain == "suite":
        return JobVerdict(kind=VerdictKind.SUITE, text=last.text)
    if reds:
        return _red_verdict(reds, last)
    if hosts:
        return JobVerdict(kind=VerdictKind.HOST, text=f"{hosts[-1].text} (on {hosts[-1].node}){_sequel(hosts, last)}")
    kinds = {JobState.REFUSED: VerdictKind.REFUSED, JobState.CANCELLED: VerdictKind.CANCELLED}
    kind = VerdictKind.LOST if last.state is JobState.LOST else kinds.get(last.state, VerdictKind.FAILED)
    return JobVerdict(kind=kind, text=last.text)


def _retry_elsewhere(last: JobTry, fault: str) -> Retry:
    avoid = frozenset(last.avoid) | ({last.node} if last.node else set())
    return Retry(avoid=avoid, because=f"{fault} on {last.node or 'a node without a name'}: {last.text}")


def _red_verdict(reds: Sequence[JobTry], last: JobTry) -> JobVerdict:
    nodes = list(dict.fromkeys(item.node for item in reds if item.node))
    if len(nodes) > 1:
        return JobVerdict(kind=VerdictKind.RED, text=f"{reds[-1].text} (on {' and '.join(nodes)})")
    text = f"{reds[0].text} (on {reds[0].node or 'a node without a name'}); not confirmed on another node"
    return JobVerdict(kind=VerdictKind.UNCONFIRMED, text=text + _sequel(reds, last))


def _sequel(blamed: Sequence[JobTry], last: JobTry) -> str:
    """Return how the try after the last blamed one ended."""
    return "" if last is blamed[-1] else f": {last.text}"


def _disagreement(last: JobTry, earlier: Sequence[JobTry]) -> str:
    """Return that other nodes came to another result."""
    nodes = dict.fromkeys(item.node for item in earlier if item.node and item.node != last.node)
    return f"; good on {last.node}, not on {', '.join(nodes)} ({earlier[-1].text})" if nodes else ""


LEDGER_SCHEMA = "knowngood/fleet-nodes/1"
MAX_NODE_RESULTS = 5_000
"""The oldest results beyond this number are dropped."""


class NodeResult(BaseModel):
    """The result of one image or environment on one node, once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str
    """The engine's name of it."""
    cell: str
    content: str
    good: bool
    text: str
    when: str


class NodeLedger(BaseModel):
    """The results of all nodes, in the order in which they arrived."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    results: tuple[NodeResult, ...] = ()

    def add(self, result: NodeResult) -> NodeLedger:
        """Return the ledger with one more result; a result that is delivered twice counts once."""
        if result in self.results:
            return self
        return NodeLedger(results=(*self.results, result)[-MAX_NODE_RESULTS:])

    def suspects(self) -> dict[str, str]:
        """Return node -> reason for the nodes to avoid: their last comparable result was red where another passed."""
        passed: dict[str, set[str]] = {}
        for item in self.results:
            if item.good:
                passed.setdefault(item.content, set()).add(item.node)
        suspects: dict[str, str] = {}
        for item in self.results:
            others = sorted(passed.get(item.content, set()) - {item.node})
            if item.good:
                suspects.pop(item.node, None)
            elif others:
                suspects[item.node] = f"{item.cell} failed on it ({item.text}) and passed on {', '.join(others[:3])}"
        return suspects

    def render(self) -> str:
        """Return the text of the ledger's file: the nodes to avoid first, for people, then all results."""
        document = {
            "schema": LEDGER_SCHEMA,
            "read-me": "Results of images on nodes. A node under `avoided` gets no job. To trust it again, "
            "remove its entries from `results`, or remove this file.",
            "avoided": self.suspects(),
            "results": [item.model_dump() for item in self.results],
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse_ledger(text: str) -> NodeLedger | None:
    """Read the text of a ledger's file; `None` when that is damaged or of another schema."""
    try:
        stored: Mapping[str, object] = json.loads(text)
        return NodeLedger.model_validate({"results": stored["results"]}) if stored["schema"] == LEDGER_SCHEMA else None
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
