"""Whose fault a red run is: the image's, the host's or the suite's, and when it is tried once more. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from knowngood.evidence import Evidence, Where
from knowngood.nightly.model import Severity


class Domain(StrEnum):
    """Whose fault."""

    NONE = "none"
    IMAGE = "image"
    HOST = "host"
    SUITE = "suite"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try of a rebuild or of a suite."""

    domain: Domain
    text: str
    where: str = "here"
    """`here`, or the address of the other engine."""
    data: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Nobody's fault: it is good."""
        return self.domain is Domain.NONE


@dataclass(frozen=True, kw_only=True)
class Blame:
    """The verdict over one attempt, or two."""

    outcome: str
    """`good`, `flaky`, or the domain."""
    domain: Domain
    severity: Severity | None
    """`None`: there is nothing to say."""
    text: str


def again(first: Attempt) -> bool:
    """Whether it is tried once more: the image is not blamed for what it did once."""
    return first.domain is Domain.IMAGE


def judge(first: Attempt, second: Attempt | None = None) -> Blame:
    """The verdict."""
    if first.ok:
        return Blame(outcome="good", domain=Domain.NONE, severity=None, text=first.text)
    if second is None or not again(first):
        return _blamed(first)
    if second.ok and second.where != first.where:
        said = f"flaky: red {first.where} ({first.text}), green at {second.where}: look at this host first"
        return Blame(outcome="flaky", domain=Domain.HOST, severity=Severity.WARNING, text=said)
    if second.ok:
        said = f"flaky: red ({first.text}), then green at once, nothing changed"
        return Blame(outcome="flaky", domain=Domain.IMAGE, severity=Severity.WARNING, text=said)
    if second.domain is Domain.IMAGE:
        return _blamed(second, f", twice ({second.where})")
    return _blamed(second)


def _blamed(attempt: Attempt, more: str = "") -> Blame:
    severity = Severity.MISSING if attempt.domain is Domain.HOST else Severity.ERROR
    said = f"{attempt.domain}: {attempt.text}{more}"
    return Blame(outcome=str(attempt.domain), domain=attempt.domain, severity=severity, text=said)


def last_green(runs: Sequence[Evidence], *, gpus: bool) -> Evidence | None:
    """The newest good run in an image, on this kind of machine."""
    where = Where.CONTAINER_GPU if gpus else Where.CONTAINER_CPU
    return max((run for run in runs if run.ok and run.where is where), key=lambda run: run.when, default=None)


def changed(green: Evidence, red: Evidence) -> list[str]:
    """What is not as it was when it was green, apart from the packages."""
    sides = green.node, red.node
    return [
        *(["the smoke suite"] if green.suite != red.suite else []),
        *(
            f"the node's {name} ({sides[0].get(name)} -> {sides[1].get(name)})"
            for name in sorted(sides[0].keys() | sides[1].keys())
            if sides[0].get(name) != sides[1].get(name)
        ),
    ]
