"""What a run saw, boiled down to what lists and pages show; a file that cannot be trusted is told and left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from knowngood import evidence
from knowngood.runs import sparing

_NAME = re.compile(r"(?P<when>\d{8}T\d{6}Z)-(?P<suite>[0-9a-f]{12})(-[0-9a-f]+)?", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run; its whole report stays in its file."""

    file: str
    """Below the folder of evidence."""
    when: str
    where: evidence.Where
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
class Observed:
    """A run, and what is shown of it where it is the one of its cell that says most."""

    run: Run
    reasons: Mapping[str, str]
    """Setting to what the first of its checks that decided the outcome says."""
    figures: Mapping[str, Figures]


def load(path: Path) -> Observed | str:
    """A run's file, or why it is left out; what its name states of time and suite must be what is in it."""
    label = printable(f"{path.parent.name}/{path.name}")
    try:
        found = evidence.load(path, sparing.parse)
        if isinstance(found, str):
            return printable(found.replace(str(path), label))
        defect = _defect(path, found)
        made = Observed(run=_run(label, found), reasons=_reasons(found), figures=_figures(found))
    except (RecursionError, AttributeError, MemoryError, ValueError, TypeError, KeyError) as error:
        return f"{label}: not readable as evidence ({type(error).__name__})"
    return f"{label}: {defect}" if defect else made


def printable(name: str) -> str:
    """A file's name as UTF-8 can have it: some are bytes that are no text."""
    return name.encode("utf-8", "backslashreplace").decode()


def _defect(path: Path, found: evidence.Evidence) -> str | None:
    """What is not as `knowngood smoke` writes it."""
    when = datetime.fromisoformat(found.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    if found.image is not None and not _DIGEST.fullmatch(found.image):
        return f"its image {found.image!r} is no digest"
    name = _NAME.fullmatch(path.stem)
    if name is None:
        return "its name is not TIME-SUITE-DIGEST.json"
    if name["suite"] != found.suite[:12] or name["when"] != when:
        return f"its name states {name['when']} and suite {name['suite']}, its content {when}, {found.suite[:12]!r}"
    return None


def _run(file: str, run: evidence.Evidence) -> Run:
    gpu = run.report["environment"].get("gpu")
    return Run(
        file=file,
        when=run.when,
        where=run.where,
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
            measured = sparing.whole(check["figures"])["lengths"]
            lengths = {int(key): value for key, value in measured.items() if "step_ms" in value}
            if lengths:
                longest = max(lengths)
                found[str(check["setting"])] = Figures(
                    step_ms=float(lengths[longest]["step_ms"]),
                    peak_bytes=int(lengths[longest]["peak_bytes"]),
                    length=longest,
                )
    return found
