"""What a side of a reproduction did, compared with what it should do. Pure."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from knowngood.compat.incident import Signature, normalize_log
from knowngood.reproductions.reproduction import FAILING, SideExpectation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class ReproductionOutcome(StrEnum):
    """The outcome of a whole reproduction, or of one of its sides."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    NOT_RUN = "not-run"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one run of the program did; no text in it names a folder of this machine."""

    exit: int
    seconds: float
    python: str
    packages: Mapping[str, str]
    exception: Mapping[str, Any] | None
    """The uncaught exception: `type`, `text` and `where` (the last frames)."""
    output: str
    """Standard output and standard error together."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object in the last line that holds one."""
    image: str | None = None
    """The digest of the image in which it ran."""


@dataclass(frozen=True, kw_only=True)
class SideResult:
    """A side and what it did; `observation` is `None` when it was not run."""

    side: str
    expect: SideExpectation
    observation: Observation | None
    signature: str | None = None
    """The incident's signature that its output contains."""
    reason: str = ""
    """Why it could not be run, or in what it differs from the expectation."""

    @property
    def outcome(self) -> ReproductionOutcome:
        """Whether the side did what was expected of it."""
        if self.observation is None:
            return ReproductionOutcome.NOT_RUN
        return ReproductionOutcome.NOT_REPRODUCED if self.reason else ReproductionOutcome.REPRODUCED


def judge_side(side: str, expect: SideExpectation, run: Observation, signatures: Sequence[Signature]) -> SideResult:
    """Compare what a side did with what it should do."""
    signature = matching_signature(run, signatures)
    reason = ""
    ended = "it ended well" if not run.exit else f"it ended with {_describe_end(run)}"
    match expect:
        case SideExpectation.FAILS | SideExpectation.FAILS_OTHERWISE if not run.exit:
            reason = "it did not fail"
        case SideExpectation.FAILS_OTHERWISE if signature is not None:
            reason = "it failed with the signature, and should fail without it"
        case SideExpectation.FAILS if signature is None:
            reason = f"{ended}, which is not the signature"
        case SideExpectation.WARNS if run.exit:
            reason = ended
        case SideExpectation.WARNS if signature is None:
            reason = "the warning did not come"
        case SideExpectation.TRAINS | SideExpectation.WORKS if run.exit:
            reason = ended
        case SideExpectation.TRAINS | SideExpectation.WORKS if signature is not None:
            reason = "it ended well, but its output has the signature"
        case SideExpectation.TRAINS if not losses_fall(run.result.get("losses")):
            reason = f"its losses do not fall: {run.result.get('losses')}"
        case _:
            pass
    return SideResult(side=side, expect=expect, observation=run, signature=signature, reason=reason)


def matching_signature(run: Observation, signatures: Sequence[Signature]) -> str | None:
    """Return the text of the first signature in the uncaught exception, else in the output; `None` without a match."""
    exception = run.exception or {}
    texts = (f"{exception.get('type')}: {exception.get('text')}", run.output)
    for text in texts:
        plain_text = normalize_log(text.encode())
        for signature in signatures:
            if signature.search(plain_text) and _has_companion(signature, run.output):
                return signature.text
    return None


def _has_companion(signature: Signature, output: str) -> bool:
    return not signature.beside or any(item.search(normalize_log(output.encode())) for item in signature.beside)


def losses_fall(losses: Any) -> bool:
    """Return whether these are at least two finite numbers of which the last is lower than the first."""
    return (
        isinstance(losses, list)
        and len(losses) > 1
        and all(isinstance(loss, int | float) and math.isfinite(loss) for loss in losses)
        and losses[-1] < losses[0]
    )


def overall_outcome(sides: Iterable[SideResult]) -> ReproductionOutcome:
    """Judge all sides: reproduced when the failing side and another did as expected, and no side did otherwise."""
    outcomes = {result.side: result.outcome for result in sides}
    if ReproductionOutcome.NOT_REPRODUCED in outcomes.values():
        return ReproductionOutcome.NOT_REPRODUCED
    both = outcomes.get(FAILING) is ReproductionOutcome.REPRODUCED and any(
        outcome is ReproductionOutcome.REPRODUCED for side, outcome in outcomes.items() if side != FAILING
    )
    return ReproductionOutcome.REPRODUCED if both else ReproductionOutcome.NOT_RUN


def _describe_end(run: Observation) -> str:
    if run.exception:
        return f"{run.exception['type']}: {run.exception['text'].splitlines()[0] if run.exception['text'] else ''}"
    return f"exit {run.exit}"


def observation_from_report(
    code: int,
    output: str,
    report: Mapping[str, Any],
    *,
    places: Mapping[str, str],
    image: str | None = None,
) -> Observation:
    """Build the observation of one run.

    `report` is what `observe.py` wrote. `places` maps folders of this machine to the names that replace them in texts.
    """

    def without_folders(text: str) -> str:
        for place, name in sorted(places.items(), key=lambda item: -len(item[0])):
            text = text.replace(place, name)
        return text

    exception = report.get("exception")
    return Observation(
        exit=code,
        seconds=report.get("seconds", 0.0),
        python=report.get("python", ""),
        packages={canonicalize_name(name): version for name, version in report.get("packages", {}).items()},
        exception=exception and {**exception, "text": without_folders(exception["text"])},
        output=without_folders(output),
        result=_last_object(output),
        image=image,
    )


def _last_object(output: str) -> dict[str, Any]:
    """Return the JSON object in the last line that holds one; an empty one without such a line."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
    return {}
