"""The report of a run: its checks, the miniatures, the environment; and how the reports of shards become one. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from smoke_tests import report
from smoke_tests.outcomes import FAIL, NOT_RUN, OUTCOMES, PASS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_tests.model_catalogue import ModelCheck

SCHEMA = "knowngood/model-report/1"
FIELDS = ("reason", "exception", "message", "errors", "paired", "kernels", "explanation", "seconds", "peak_memory")
SAME = ("schema", "suite_hash", "selection", "given", "environment")
SILENT = ("silently-wrong", "kernel-swapped")


def describe_check(check: ModelCheck, result: dict[str, Any], predictions: dict[str, Any]) -> dict[str, Any]:
    """One element of the report's ``checks``. ``silent`` says that only a number or a kernel's name shows the fault."""
    entry: dict[str, Any] = {"id": check.id, "topic": check.topic, "family": check.family}
    entry.update({name: getattr(check, name) or None for name in ("setting", "dtype", "layout", "detail")})
    entry.update(outcome=result["outcome"], silent=is_silent(result))
    entry.update({name: result.get(name) for name in FIELDS})
    entry.update({name: value for name, value in result.items() if name not in (*entry, "reached")})
    prediction = report.predicted(check.id, predictions)
    entry.update(predicted=prediction, agreement=report.agreement(result, prediction))
    return entry


def is_silent(result: dict[str, Any]) -> bool:
    """Whether a result is a fault that no error shows."""
    return result["outcome"] == FAIL and str(result.get("reason", "")).startswith(SILENT)


def verdict_of(checks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether all is as predicted, and without a prediction right; with the number of each outcome."""
    counts = Counter(entry["outcome"] for entry in checks)
    tally = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "no check ran"
    red = [entry for entry in checks if report.is_red(entry)]
    if red:
        return {"ok": False, "text": f"{red[0]['id']}: {red[0]['outcome']}: {red[0]['reason']} ({tally})"}
    return {"ok": bool(counts[PASS]), "text": tally}


def join_reports(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the reports of shards together; raises ``ValueError`` where they are not shards of one run.

    A check that no shard ran is ``not-run``.
    """
    first = documents[0]
    for document in documents[1:]:
        for name in SAME:
            if document[name] != first[name]:
                raise ValueError(f"these are no shards of one run: their {name} differs")
    checks: dict[str, dict[str, Any]] = {}
    for document in documents:
        for entry in document["checks"]:
            if entry["id"] in checks:
                raise ValueError(f"two of these shards ran {entry['id']}")
            checks[entry["id"]] = entry
    listed = list(dict.fromkeys(name for document in documents for name in document["listed"]))
    joined = [checks.get(name) or _missing(name) for name in listed]
    return {
        **first,
        "shard": None,
        "started": min(document["started"] for document in documents),
        "finished": max(document["finished"] for document in documents),
        "seconds": round(sum(document["seconds"] for document in documents), 1),
        "verdict": verdict_of(joined),
        "checks": joined,
    }


def _missing(name: str) -> dict[str, Any]:
    parts = name.split("/")
    entry: dict[str, Any] = {"id": name, "topic": None, "family": parts[0], "setting": None, "dtype": None}
    entry.update(layout=None, detail=None, outcome=NOT_RUN, silent=False)
    entry.update(dict.fromkeys(FIELDS), reason="no shard ran this check")
    return {**entry, "predicted": None, "agreement": None}


def format_table(document: dict[str, Any]) -> str:
    """The checks as a person reads them: one row a setting and precision, one column a layout; then the reasons."""
    lines = []
    for family in dict.fromkeys(entry["family"] for entry in document["checks"]):
        own = [entry for entry in document["checks"] if entry["family"] == family]
        lines += [family, *_table([entry for entry in own if entry["topic"] == "model" and not entry["detail"]])]
        others = [entry for entry in own if entry["topic"] != "model" or entry["detail"]]
        lines += [f"  {_sign(entry):8}{entry['id']}" for entry in others if entry["outcome"] != NOT_RUN]
    reasons: dict[str, list[str]] = {}
    for entry in document["checks"]:
        if entry["outcome"] != PASS:
            reasons.setdefault(f"{entry['outcome']}: {entry['reason']}", []).append(entry["id"])
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{reason}: {names[0]}{more}")
    return "\n".join(
        [*lines, f"verdict: {'ok' if document['verdict']['ok'] else 'NOT OK'}: {document['verdict']['text']}"]
    )


def _table(entries: Sequence[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(entry["layout"] for entry in entries))
    rows = list(dict.fromkeys((entry["setting"], entry["dtype"]) for entry in entries))
    signs = {(entry["setting"], entry["dtype"], entry["layout"]): _sign(entry) for entry in entries}
    body = [[*row, *(signs.get((*row, column), "") for column in columns)] for row in rows]
    cells = [["setting", "dtype", *columns], *body]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def _sign(entry: dict[str, Any]) -> str:
    if entry["outcome"] == FAIL:
        return "SILENT" if entry["silent"] else "FAIL"
    return "-" if entry["outcome"] == NOT_RUN else str(entry["outcome"])
