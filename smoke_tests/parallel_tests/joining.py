"""What all ranks answered to a check, as one result. Pure."""

from __future__ import annotations

import math
from typing import Any

from parallel_tests import catalogue
from smoke_tests.outcomes import FAIL, NOT_RUN, PASS, REFUSED

WORST_FIRST = (FAIL, NOT_RUN, REFUSED, PASS)
KEPT = ("outcome", "reason", "errors", "noticed", "kernels", "peak_memory", "transport")
"""What the report has of each rank."""


def join_results(check: dict[str, Any], results: dict[int, dict[str, Any]], timeout: float) -> dict[str, Any]:
    """One result: the worst outcome of any rank, with that rank's reason and numbers.

    A fault that was made on purpose has passed when one rank noticed it and no rank was lost.
    """
    if check["detail"] == "launcher":
        return _launcher_result(check, results, timeout)
    deciding = _deciding_rank(check, results)
    joined = {name: value for name, value in results[deciding].items() if name not in ("silent", "at", "left")}
    joined["ranks"] = [
        {"rank": rank, **{name: result[name] for name in KEPT if result.get(name)}} for rank, result in results.items()
    ]
    joined["seconds"] = max(result.get("seconds", 0.0) for result in results.values())
    joined["reason"] = _joined_reason(results, joined["outcome"], timeout)
    return joined


def _deciding_rank(check: dict[str, Any], results: dict[int, dict[str, Any]]) -> int:
    lost = any(result.get("silent") or result.get("exception") for result in results.values())
    lost = lost and not any(result.get("left") for result in results.values())
    order = WORST_FIRST
    if check["mode"] and not lost and any(result["outcome"] == PASS for result in results.values()):
        order = WORST_FIRST[::-1]

    def badness(rank: int) -> tuple[int, float, float]:
        """By outcome; of errors the first, which the others may follow from; of numbers the worst."""
        result = results[rank]
        error = (result.get("errors") or {}).get("gradient", 0.0)
        when = result["at"] if result.get("silent") or result.get("exception") else math.inf
        return order.index(result["outcome"]), when, -error if error == error else -math.inf  # noqa: PLR0124 - NaN

    return min(results, key=badness)


def _joined_reason(results: dict[int, dict[str, Any]], outcome: str, timeout: float) -> str:
    """Every reason once, with the ranks that gave it, the first to give one before the others."""
    if outcome == PASS:
        return ""
    ranks_of: dict[str, list[int]] = {}
    for rank, result in sorted(results.items(), key=lambda item: item[1]["at"]):
        if result["outcome"] != PASS:
            words = " ".join(str(result.get("message", "")).split())[:300]
            reason = (
                f"{result['reason']}: {result['exception']}: {words}" if result.get("exception") else result["reason"]
            )
            ranks_of.setdefault(reason, []).append(rank)
    if len(ranks_of) == 1 and len(results) == len(next(iter(ranks_of.values()))):
        return next(iter(ranks_of))
    if all(result.get("silent") for result in results.values()):
        said = "; ".join(f"{_named(ranks)}: {reason}" for reason, ranks in ranks_of.items())
        return said if "crash" in said else f"hang: no answer within {timeout:.0f} s; {said}"
    return "; ".join(f"{_named(ranks)}: {reason}" for reason, ranks in ranks_of.items())


def _named(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _launcher_result(check: dict[str, Any], results: dict[int, dict[str, Any]], timeout: float) -> dict[str, Any]:
    """Whether a fault of the last rank was named as what it is."""
    last = max(results)
    reason = _joined_reason(results, FAIL, timeout)
    wanted = {
        "rank-crashes": f"rank {last}: crash: SIGSEGV",
        "rank-raises": f"rank {last}: an error that no library is known to refuse with: LookupError",
        "rank-hangs": f"rank {last}: no answer; it is in _hang (faults.py",
    }[check["layout"]]
    noticed = wanted in reason
    seconds = max(result.get("seconds", 0.0) for result in results.values())
    return {
        "outcome": PASS if noticed else FAIL,
        "reason": "" if noticed else f"the fault was not named: {reason}",
        "noticed": reason,
        "seconds": seconds,
    }


def furthest(distances: list[float]) -> float:
    """The largest distance, or NaN if there is one, which ``max`` may pass over."""
    return max(distances, key=lambda distance: (math.isnan(distance), distance))


def ways_of(checks: list[Any]) -> dict[str, list[Any]]:
    """The checks by way of training, in the catalogue's order."""
    grouped: dict[str, list[Any]] = {}
    for check in checks:
        grouped.setdefault(check.detail, []).append(check)
    return {way: grouped[way] for way in ("connection", *catalogue.WAYS, "launcher") if way in grouped}
