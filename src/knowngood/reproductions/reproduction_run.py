"""`knowngood reproduce`: run each side of a reproduction in its own environment, and document what the sides did.

A `ReproductionPlace` creates the environments and runs the program; `observation.judge_side` judges the results.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError, MissingError, UnknownError
from knowngood.failures.diagnosis import diagnose_log
from knowngood.reproductions.reproduction import (
    FAILING,
    CannotTryError,
    ReleaseUnpacker,
    ReproductionCase,
    ReproductionOutcome,
    ReproductionPlace,
    SideJob,
    SideResult,
    judge_side,
    overall_outcome,
)
from knowngood.reproductions.reproduction_evidence import EVIDENCE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.compat.incident import Incident
    from knowngood.core.notify import Notify

OUTPUT_LINES = 25
"""How many of the last lines of output go into the evidence."""


def reproduce_failure(  # noqa: PLR0913
    case: ReproductionCase,
    incidents: Mapping[str, Incident],
    place: ReproductionPlace,
    unpack: ReleaseUnpacker,
    *,
    sides: Sequence[str],
    notify: Notify,
) -> dict[str, Any]:
    """Run these sides one after the other; returns the document that evidence keeps and `--json` prints."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    results = [_run_side(case, name, incidents, place, unpack, notify) for name in sides]
    return {
        "schema": EVIDENCE_SCHEMA,
        "reproduction": case.name,
        "digest": case.digest,
        "program": case.sha256("program.py"),
        "where": place.where,
        "node": dict(place.node()),
        "when": when,
        "outcome": str(overall_outcome(results)),
        "stand_ins": [
            {"module": module, "for": replaced, "sha256": case.sha256(f"{module}.py")}
            for module, replaced in case.definition.all_stand_ins().items()
        ],
        "sides": [_side_document(case, result, incidents) for result in results],
    }


def _run_side(  # noqa: PLR0913, PLR0917
    case: ReproductionCase,
    name: str,
    incidents: Mapping[str, Incident],
    place: ReproductionPlace,
    unpack: ReleaseUnpacker,
    notify: Notify,
) -> SideResult:
    side, expect = case.definition.side(name), case.definition.expected(name)
    incident = incidents.get(side.incident or case.name)
    if incident is None:
        raise KnowngoodError(f"reproductions/{case.name}: there is no incident {side.incident or case.name!r}")
    try:
        if place.gpus() < side.gpus:
            raise CannotTryError(f"it needs {side.gpus} GPUs, and there are {place.gpus()} here")
        unpacked = {
            f"sources/{path}": content
            for pin, globs in side.sources.items()
            for path, content in unpack(pin, globs, case.definition.python[0]).items()
        }
        absent = case.definition.all_stand_ins().keys() - side.stand_ins.keys()
        own = {file: content for file, content in case.files.items() if file.removesuffix(".py") not in absent}
        job = SideJob(case=case, name=name, files={**own, **unpacked})
        observation = place.observe(job, lambda step: notify(f"{name}: {step}"))
    except UnknownError as error:
        return SideResult(side=name, expect=expect, observation=None, reason=str(error))
    except MissingError as error:
        if place.where == "image":  # without an engine no side can be tried: the whole command ends with exit 4
            raise
        return SideResult(side=name, expect=expect, observation=None, reason=str(error))
    return judge_side(name, expect, observation, incident.signatures)


def _side_document(case: ReproductionCase, result: SideResult, incidents: Mapping[str, Incident]) -> dict[str, Any]:
    side, run = case.definition.side(result.side), result.observation
    document: dict[str, Any] = {
        "side": result.side,
        "expect": str(result.expect),
        "outcome": str(result.outcome),
        "reason": result.reason,
        "said_cure": side.suggested_cure,
        "incident": side.incident or case.name,
        "requirements": list(side.requirements),
        "excludes": list(side.excludes),
        "sources": list(side.sources),
        "stand_ins": list(side.stand_ins),
        "base_without": list(side.base_without),
        "base_with": list(side.base_with),
        "arguments": list(side.arguments),
        "environment": dict(side.environment),
    }
    if run is None:
        return document
    return document | {
        "image": run.image,
        "python": run.python,
        "seconds": run.seconds,
        "exit": run.exit,
        "exception": run.exception,
        "signature": result.signature,
        "diagnosed": diagnosed_incidents(run.output, list(incidents.values())),
        "said": dict(run.result),
        "output": run.output.splitlines()[-OUTPUT_LINES:],
        "packages": dict(run.packages),
    }


def diagnosed_incidents(output: str, known: Sequence[Incident]) -> list[str]:
    """Return the ids of the incidents that `knowngood diagnose` recognises in the output, best match first."""
    return [match.incident.id for match in diagnose_log(io.BytesIO(output.encode()), known).matches]


def reproduction_exit_code(run: Mapping[str, Any]) -> int:
    """Return 0 for reproduced, 1 for not reproduced, 3 when a side could not be tried.

    For a run of a part of the sides, 0 means that each did what was expected.
    """
    outcomes = {side["side"]: side["outcome"] for side in run["sides"]}
    if ReproductionOutcome.NOT_REPRODUCED in outcomes.values():
        return 1
    if run["outcome"] == ReproductionOutcome.REPRODUCED:
        return 0
    partial = FAILING not in outcomes or len(outcomes) == 1
    return 0 if partial and set(outcomes.values()) == {ReproductionOutcome.REPRODUCED} else 3
