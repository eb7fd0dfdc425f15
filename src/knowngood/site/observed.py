"""What runs saw of a cell, boiled down to what pages show; files that cannot be trusted are told and left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from knowngood import evidence
from knowngood.site import sparing

_NAME = re.compile(r"(?P<when>\d{8}T\d{6}Z)-(?P<suite>[0-9a-f]{12})(-[0-9a-f]+)?", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run; its whole report stays in its file."""

    file: str
    """Below the folder of evidence."""
    when: str
    where: str
    image: str | None
    suite: str
    gpu: str | None
    ok: bool
    quick: bool
    verdict: str
    outcomes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a training step costs under a setting."""

    step_ms: float
    peak_bytes: int
    length: int
    """Tokens a sequence."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All of a cell's runs, oldest first."""

    tier: evidence.Tier
    runs: tuple[Run, ...] = ()
    best: str | None = None
    """The file of the run that says most, of which `attention`, `reasons` and `figures` are."""
    attention: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Setting to what the first of its checks that decided the outcome says."""
    figures: Mapping[str, Figures] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def observe(folder: Path, cell: str, *, locked: bool) -> Seen:
    """Read a cell's evidence."""
    files: dict[str, evidence.Evidence] = {}
    left_out = []
    for path in sorted((folder / cell).glob("*.json")):
        found = load(path)
        if isinstance(found, str):
            left_out.append(found)
        else:
            files[f"{cell}/{path.name}"] = found
    runs = sorted((_run(file, run) for file, run in files.items()), key=lambda run: (run.when, run.file))
    best = evidence.best(files.values())
    return Seen(
        tier=evidence.tier(files.values(), locked=locked),
        runs=tuple(runs),
        best=next((file for file, run in files.items() if run is best), None),
        attention=best.outcomes if best else {},
        reasons=_reasons(best) if best else {},
        figures=_figures(best) if best else {},
        left_out=tuple(left_out),
    )


def load(path: Path) -> evidence.Evidence | str:
    """A run's file, or why it is left out; what its name states of time and suite must be what is in it."""
    label = f"{path.parent.name}/{path.name}"
    try:
        found = evidence.load(path, sparing.parse)
    except (RecursionError, AttributeError, MemoryError) as error:
        return f"{label}: not readable as evidence ({type(error).__name__})"
    if isinstance(found, str):
        return found.replace(str(path), label)
    try:
        defect = _defect(path, found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        defect = f"not readable as evidence ({error!r})"
    return f"{label}: {defect}" if defect else found


def _defect(path: Path, found: evidence.Evidence) -> str | None:
    """What is not as `knowngood smoke` writes it."""
    when = datetime.fromisoformat(found.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    _run(path.name, found), _figures(found), _reasons(found)
    if found.image is not None and not _DIGEST.fullmatch(found.image):
        return f"its image {found.image!r} is no digest"
    name = _NAME.fullmatch(path.stem)
    if name is None:
        return "its name is not TIME-SUITE.json"
    if name["suite"] != found.suite[:12] or name["when"] != when:
        return f"its name states {name['when']} and suite {name['suite']}, its content {when}, {found.suite[:12]!r}"
    return None


def _run(file: str, run: evidence.Evidence) -> Run:
    gpu = run.report["environment"].get("gpu")
    return Run(
        file=file,
        when=run.when,
        where=str(run.where),
        image=run.image,
        suite=run.suite,
        gpu=None if gpu is None else str(gpu),
        ok=run.ok,
        quick=run.quick,
        verdict=str(run.report["verdict"].get("text", "")),
        outcomes=run.outcomes,
    )


def _reasons(run: evidence.Evidence) -> dict[str, str]:
    found: dict[str, str] = {}
    for check in run.report["checks"]:
        setting = check["setting"]
        if setting in found or check["outcome"] == "pass" or check["outcome"] != run.outcomes.get(setting):
            continue
        said = check.get("message") or check.get("reason") or ""
        found[setting] = " ".join(str(said).split())[:240]
    return found


def _figures(run: evidence.Evidence) -> dict[str, Figures]:
    """Of the longest sequences that were measured."""
    found = {}
    for check in run.report["checks"]:
        if check["topic"] == "speed" and check["outcome"] == "pass":
            lengths = {int(key): value for key, value in check["figures"]["lengths"].items() if "step_ms" in value}
            if lengths:
                longest = max(lengths)
                found[str(check["setting"])] = Figures(
                    step_ms=float(lengths[longest]["step_ms"]),
                    peak_bytes=int(lengths[longest]["peak_bytes"]),
                    length=longest,
                )
    return found
