"""`knowngood reproduce`: run each side in its own environment, and store, read and write what the sides did."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from knowngood.core.data_files import read_data_bytes
from knowngood.core.errors import InputError, KnowngoodError, MissingError, UnknownError
from knowngood.evidence import sealed_files
from knowngood.project import checkout
from knowngood_diagnose.failures.diagnosis import diagnose_log
from knowngood_diagnose.reproductions.reproduction import (
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from knowngood.core.notify import Notify
    from knowngood_facts.compat.incident import Incident

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


EVIDENCE_SCHEMA = "knowngood/reproduction/1"


def store_reproduction(run: Mapping[str, Any], evidence: Path | None = None) -> Path:
    """Write a run's document as `incidents/<name>/<time>-<program>-<digest>.json`; returns the path."""
    stamp = datetime.fromisoformat(run["when"]).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    place = (evidence or checkout.find_project().evidence) / "incidents" / str(run["reproduction"])
    text = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
    return sealed_files.write_sealed_json(place, f"{stamp}-{run['digest'][:12]}", text)


def list_reproduction_runs(name: str, evidence: Path | None = None) -> list[dict[str, Any]]:
    """Return the stored runs of a reproduction, oldest first, each with its `file`.

    A file that is damaged, was changed after it was stored, or belongs to something else is left out.
    """
    runs = []
    for path in sorted(((evidence or checkout.find_project().evidence) / "incidents" / name).glob("*.json")):
        try:
            data = read_data_bytes(path)
            run = json.loads(data)
            if (
                run["schema"] == EVIDENCE_SCHEMA
                and run["reproduction"] == name
                and sealed_files.find_defect(path, data) is None
            ):
                runs.append({**run, "file": f"evidence/incidents/{name}/{path.name}"})
        except (OSError, InputError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return runs


@dataclass(frozen=True, kw_only=True)
class ReproductionSummary:
    """The newest run of a reproduction in each place (`venv`, `image`, `here`)."""

    name: str
    runs: tuple[Mapping[str, Any], ...]

    @property
    def outcome(self) -> str:
        """The best outcome of these runs; `not-run` without any."""
        order = list(ReproductionOutcome)
        return min((run["outcome"] for run in self.runs), key=order.index, default="not-run")

    def markdown_lines(self) -> list[str]:
        """Return Markdown for an incident's page: for each place a table of the sides, stand-ins and evidence."""
        lines: list[str] = []
        for run in self.runs:
            lines += [
                f"`knowngood reproduce {self.name}` in {_PLACES[run['where']]}, {run['when'][:10]}: {run['outcome']}.",
                "",
                "| side | Python | asked for | what it did |",
                "| --- | --- | --- | --- |",
                *(f"| {' | '.join(_cells(side))} |" for side in run["sides"]),
            ]
            if run["stand_ins"]:
                stand_ins = "; ".join(f"`{item['module']}` for {item['for']}" for item in run["stand_ins"])
                lines += ["", f"Stand-ins: {stand_ins}."]
            lines += ["", f"Evidence: [{run['file'].rpartition('/')[2]}](../../{run['file']}).", ""]
        return lines[:-1]


_PLACES = {"venv": "a virtual environment", "image": "images", "here": "an environment as it was"}


def summarize_reproduction(name: str, evidence: Path | None = None) -> ReproductionSummary:
    """Return what the evidence says about a reproduction."""
    newest = {run["where"]: run for run in list_reproduction_runs(name, evidence)}
    return ReproductionSummary(name=name, runs=tuple(newest.values()))


def _cells(side: Mapping[str, Any]) -> list[str]:
    pins = ", ".join(pin.partition(";")[0] for pin in [*side["requirements"], *side["sources"]] if _applies(pin, side))
    if side.get("base_without"):
        pins += f"; a base without {', '.join(side['base_without'])}"
        pins += f", with {', '.join(side['base_with'])}" if side.get("base_with") else ""
    name = side["side"]
    if side["said_cure"] and "exit" in side:
        name += f" (said cure: *{side['said_cure']}*: {'no' if side['exit'] else 'yes'})"
    return [name, side.get("python") or "", pins, describe_side(side).replace("|", "\\|")]


def _applies(pin: str, side: Mapping[str, Any]) -> bool:
    """Return whether a pin's marker holds for the Python with which the side ran."""
    marker = Requirement(pin).marker
    return marker is None or marker.evaluate({"python_version": ".".join(side.get("python", "").split(".")[:2])})


def describe_side(side: Mapping[str, Any]) -> str:
    """Return what a side of a stored run did, as one line of Markdown."""
    if side["outcome"] == ReproductionOutcome.NOT_RUN:
        return f"not run: {side['reason']}"
    exception, losses = side["exception"], side["said"].get("losses")
    if exception:
        first_line = (exception["text"].splitlines() or [""])[0]
        text = _code(f"{exception['type']}: {first_line}")
    elif losses:
        text = f"trains, loss {losses[0]:.4g} to {losses[-1]:.4g}"
    elif side["exit"]:
        text = f"exit {side['exit']}"
    else:
        values = ", ".join(f"{name} {value}" for name, value in side["said"].items())
        text = f"ends well ({values})" if values else "ends well"
    if not exception and side["signature"]:
        text += f", with {_code(side['signature'])}"
    return text if side["outcome"] == ReproductionOutcome.REPRODUCED else f"{text}; not as expected: {side['reason']}"


def _code(text: str) -> str:
    """Quote a text as Markdown code, without the colour codes of a terminal."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text).strip()
    return f"`` {plain} ``" if "`" in plain else f"`{plain}`"
