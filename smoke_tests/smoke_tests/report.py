"""The report: checks with their outcomes, compared with the predictions, and one verdict over all. Pure but
for write.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke_tests.outcomes import FAIL, OUTCOMES, PASS

if TYPE_CHECKING:
    from smoke_tests.catalogue import Check

SCHEMA = "knowngood/smoke-report/1"
FIELDS = ("reason", "exception", "message", "losses", "errors", "kernels", "seconds", "peak_memory")

Predictions = dict[str, dict[str, str]]


def entry(check: Check, result: dict[str, Any], predictions: Predictions) -> dict[str, Any]:
    """One element of the report's ``checks``."""
    identity = {"id": check.id, "topic": check.topic}
    identity.update({name: getattr(check, name) or None for name in ("setting", "dtype", "layout", "mode")})
    made = {**identity, "outcome": result["outcome"], **{name: result.get(name) for name in FIELDS}}
    made.update({name: value for name, value in result.items() if name not in (*made, "reached")})
    prediction = predicted(check.id, predictions)
    made["predicted"] = prediction
    made["agreement"] = agreement(result, prediction)
    return made


def predicted(check_id: str, predictions: Predictions) -> dict[str, str] | None:
    """What was predicted for a check: its own id first, then the longest pattern that matches it."""
    matching = [pattern for pattern in predictions if fnmatch.fnmatchcase(check_id, pattern)]
    if check_id in predictions:
        return predictions[check_id]
    return predictions[max(matching, key=lambda pattern: (len(pattern), pattern))] if matching else None


def agreement(result: dict[str, Any], prediction: dict[str, str] | None) -> str | None:
    """``agree``, ``disagree``, or None where nothing was predicted or the run did not come to the check."""
    if prediction is None or not result.get("reached", True):
        return None
    return "agree" if prediction["outcome"] == result["outcome"] else "disagree"


def is_red(made: dict[str, Any]) -> bool:
    """Whether a check's entry spoils the verdict: a failure nobody predicted, or a prediction that was
    wrong.
    """
    return made["agreement"] == "disagree" or (made["outcome"] == FAIL and made["agreement"] != "agree")


def verdict(checks: list[dict[str, Any]], host: list[str], *, finished: bool = True) -> dict[str, Any]:
    """Whose fault it is, if anyone's: the image's, the host's or the suite's (wrong predictions are the
    suite's).
    """
    counts = Counter(made["outcome"] for made in checks)
    tally = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]) or "no check ran"
    red = [made for made in checks if is_red(made)]
    if host:
        return {"domain": "host", "ok": False, "text": f"{'; '.join(host)} ({tally})"}
    if not finished:
        return {"domain": "suite", "ok": False, "text": f"the run did not finish ({tally})"}
    failed = [made for made in red if made["outcome"] == FAIL]
    if failed:
        first = failed[0]
        return {"domain": "image", "ok": False, "text": f"{first['id']}: {first['reason']} ({tally})"}
    if red:
        first = red[0]
        text = f"{first['id']}: {first['outcome']}, predicted {first['predicted']['outcome']} ({tally})"
        return {"domain": "suite", "ok": False, "text": text}
    if not counts[PASS]:
        return {"domain": "image", "ok": False, "text": f"nothing passed ({tally})"}
    return {"domain": "none", "ok": True, "text": tally}


def host_problems(
    environment: dict[str, Any], others: list[int], *, demand_gpu: bool, cell_gpu: str | None
) -> list[str]:
    """What is wrong with the machine rather than with the image."""
    problems = []
    sm = environment.get("sm")
    if demand_gpu and sm is None and "torch" in environment:
        problems.append("a GPU was demanded and torch sees none")
    if cell_gpu and sm and sm != cell_gpu:
        problems.append(f"the cell is for {cell_gpu} and this GPU is {sm} ({environment['gpu']})")
    if sm and others:
        problems.append(f"another process is on the GPU (pid {', '.join(map(str, others))})")
    return problems


def read_predictions(file: Path) -> Predictions:
    """Read ``{"<check id or glob>": {"outcome": ..., "because": ...}}``; a malformed file is an error that
    says where.
    """
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError(f"{file}: a JSON object is wanted, this is a {type(found).__name__}")
    for pattern, prediction in found.items():
        if not isinstance(prediction, dict) or prediction.get("outcome") not in OUTCOMES:
            raise ValueError(f'{file}: {pattern}: "outcome" must be one of {", ".join(OUTCOMES)}')
    return found


def write(file: Path, document: dict[str, Any]) -> None:
    """Write whole or not at all: a reader never sees half a report."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(_finite(document), stream, indent=1, allow_nan=False)
            stream.write("\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink()
        raise


def _finite(value: Any) -> Any:
    """JSON has no NaN: such a number is written as its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
