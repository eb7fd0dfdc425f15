"""What a side of a reproduction was seen to do, compared with what it should. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from knowngood.diagnosing.signature import Signature, plain
from knowngood.reproducing.reproduction import FAILING, Expect


class Outcome(StrEnum):
    """What came of a reproduction, or of one of its sides."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    NOT_RUN = "not-run"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a run of the program was seen to do; nothing in it names a folder of the machine."""

    exit: int
    seconds: float
    python: str
    packages: Mapping[str, str]
    exception: Mapping[str, Any] | None
    """`type`, `text` and `where` (the last frames), of what the program did not catch."""
    output: str
    """All that it printed, on either stream."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object that it printed last."""
    image: str | None = None
    """Digest of the image that it ran in."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A side with what it did."""

    side: str
    expect: Expect
    observation: Observation | None
    signature: str | None = None
    """The signature that its output has."""
    reason: str = ""
    """Why it could not be run, or why what it did is not what was expected."""

    @property
    def outcome(self) -> Outcome:
        """Whether it did what was expected."""
        if self.observation is None:
            return Outcome.NOT_RUN
        return Outcome.NOT_REPRODUCED if self.reason else Outcome.REPRODUCED


def judge(side: str, expect: Expect, seen: Observation, signatures: Sequence[Signature]) -> Seen:
    """Compare what a side did with what it was expected to do."""
    signature = matched(seen, signatures)
    reason = ""
    ended = "it ended well" if not seen.exit else f"it ended with {_how(seen)}"
    match expect:
        case Expect.FAILS | Expect.FAILS_OTHERWISE if not seen.exit:
            reason = "it did not fail"
        case Expect.FAILS_OTHERWISE if signature is not None:
            reason = "it has the signature all the same"
        case Expect.FAILS if signature is None:
            reason = f"{ended}, which is not the signature"
        case Expect.WARNS if seen.exit:
            reason = ended
        case Expect.WARNS if signature is None:
            reason = "the warning did not come"
        case Expect.TRAINS | Expect.WORKS if seen.exit:
            reason = ended
        case Expect.TRAINS | Expect.WORKS if signature is not None:
            reason = "it ended well, but its output has the signature"
        case Expect.TRAINS if not falling(seen.said.get("losses")):
            reason = f"its losses do not fall: {seen.said.get('losses')}"
        case _:
            pass
    return Seen(side=side, expect=expect, observation=seen, signature=signature, reason=reason)


def matched(seen: Observation, signatures: Sequence[Signature]) -> str | None:
    """The first signature in the uncaught exception, else anywhere in the output."""
    exception = seen.exception or {}
    places = (f"{exception.get('type')}: {exception.get('text')}", seen.output)
    for text in places:
        squeezed = plain(text.encode())
        for signature in signatures:
            if signature.search(squeezed) and _beside(signature, seen.output):
                return signature.text
    return None


def _beside(signature: Signature, output: str) -> bool:
    return not signature.beside or any(item.search(plain(output.encode())) for item in signature.beside)


def falling(losses: Any) -> bool:
    """Whether these are losses of training: finite, and the last lower than the first."""
    return (
        isinstance(losses, list)
        and len(losses) > 1
        and all(isinstance(loss, int | float) and loss == loss and abs(loss) != float("inf") for loss in losses)  # noqa: PLR0124
        and losses[-1] < losses[0]
    )


def whole(sides: Iterable[Seen]) -> Outcome:
    """Of all sides: reproduced when the failing one and at least one that works were seen, and none did otherwise."""
    outcomes = {seen.side: seen.outcome for seen in sides}
    if Outcome.NOT_REPRODUCED in outcomes.values():
        return Outcome.NOT_REPRODUCED
    both = outcomes.get(FAILING) is Outcome.REPRODUCED and any(
        outcome is Outcome.REPRODUCED for side, outcome in outcomes.items() if side != FAILING
    )
    return Outcome.REPRODUCED if both else Outcome.NOT_RUN


def _how(seen: Observation) -> str:
    if seen.exception:
        return f"{seen.exception['type']}: {seen.exception['text'].splitlines()[0] if seen.exception['text'] else ''}"
    return f"exit {seen.exit}"
