"""The evidence of reproductions, `evidence/incidents/<name>/`: stored, read, and written as Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from knowngood.core.data_files import read_data_bytes
from knowngood.core.errors import InputError
from knowngood.evidence import sealed_files
from knowngood.project import checkout
from knowngood.reproductions.reproduction import ReproductionOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
