"""What a check came to. A check says so by raising; a check that returns has passed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PASS, FAIL, REFUSED, NOT_RUN = "pass", "fail", "refused", "not-run"
OUTCOMES = (PASS, FAIL, REFUSED, NOT_RUN)


class Failed(Exception):  # noqa: N818 - an outcome, not an error of the suite
    """The check ran and what it saw is wrong."""


class NotRun(Exception):  # noqa: N818
    """The check cannot run here; its text says why."""


class Elsewhere(Exception):  # noqa: N818
    """What a check that ran in another process came to."""

    def __init__(self, ended: dict[str, Any]) -> None:
        super().__init__(ended["reason"])
        self.ended = ended


def demand_noticed(attempt: Callable[[], None], own_reason: str) -> str:
    """Have a fault on purpose noticed, and for its own reason (a regular expression); returns what was said of it.

    Raises ``Failed`` where it is not noticed, or for another reason, which says nothing of what looks for it.
    """
    try:
        attempt()
    except Failed as error:
        if re.search(own_reason, str(error)):
            return str(error)
        raise Failed(f"noticed for another reason than its own ({own_reason}): {error}") from error
    raise Failed("the fault went unnoticed")


def unreached(reason: str) -> dict[str, Any]:
    """The result of a check that the run did not come to: for lack of time, or because of its host."""
    return {"outcome": NOT_RUN, "reason": reason, "seconds": 0.0, "reached": False}


def from_exception(error: BaseException) -> dict[str, Any]:
    """The outcome, reason, exception and message that an exception amounts to."""
    from smoke_tests.refusals import recognise

    if isinstance(error, Elsewhere):
        return error.ended
    if isinstance(error, NotRun):
        return {"outcome": NOT_RUN, "reason": str(error)}
    if isinstance(error, Failed):
        return {"outcome": FAIL, "reason": str(error)}
    said = {"exception": _dotted(error), "message": str(error)[:2000]}
    refusal = recognise(error)
    if refusal is not None:
        return {"outcome": refusal.outcome, "reason": refusal.reason, **said}
    reason = "out of memory" if is_out_of_memory(error) else "an error that no library is known to refuse with"
    return {"outcome": FAIL, "reason": reason, **said}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or the host."""
    return isinstance(error, MemoryError) or "OutOfMemoryError" in type(error).__name__


def _dotted(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
