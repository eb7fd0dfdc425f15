"""What lists and pages show of an evidence file. A file that cannot be trusted is left out, with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from knowngood.evidence import run_evidence

_NAME = re.compile(r"(?P<when>\d{8}T\d{6}Z)-(?P<suite>[0-9a-f]{12})(-[0-9a-f]+)?", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One run in a few words; its report stays in its file."""

    file: str
    """Path below the folder of evidence."""
    when: str
    where: run_evidence.RunPlace
    image: str | None
    suite: str
    gpu: str | None
    sm: str | None
    """The architecture of the GPU; `None` for a run on a CPU."""
    ok: bool
    domain: str
    """The part at fault: `none`, `image`, `suite` or `host`."""
    quick: bool
    verdict: str
    outcomes: Mapping[str, str]

    @property
    def on_own_gpu(self) -> bool:
        """Whether it ran on a GPU of the cell's architecture."""
        return run_evidence.is_own_gpu(self.where, self.file, self.sm)


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """What a training step costs under an attention setting."""

    step_ms: float
    peak_bytes: int
    length: int
    """Tokens in a sequence."""


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """A run with what is shown of it when it is the run that proves the most of its cell."""

    run: RecordedRun
    settings: Mapping[str, run_evidence.SettingObservation]
    """What it observed of each attention setting."""
    figures: Mapping[str, StepFigures]


def load_run_details(path: Path) -> RunDetails | str:
    """Read an evidence file, or return why it is left out.

    The time and the suite that its name states must be those of its content.
    """
    from pydantic_core import from_json  # twice as fast as json

    label = printable_name(f"{path.parent.name}/{path.name}")
    try:
        evidence = run_evidence.load_evidence(path, from_json)
        if isinstance(evidence, str):
            return printable_name(evidence.replace(str(path), label))
        defect = _defect(path, evidence)
        run = _recorded_run(label, evidence)
        details = RunDetails(run=run, settings=evidence.observations, figures=_figures(evidence))
    except (RecursionError, AttributeError, MemoryError, ValueError, TypeError, KeyError) as error:
        return f"{label}: not readable as evidence ({type(error).__name__})"
    return f"{label}: {defect}" if defect else details


def printable_name(name: str) -> str:
    """Return a file name that can be printed as UTF-8; bytes that are not text become escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _defect(path: Path, evidence: run_evidence.Evidence) -> str | None:
    """Return what `knowngood smoke` would not have written like this."""
    when = datetime.fromisoformat(evidence.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    if evidence.image is not None and not _DIGEST.fullmatch(evidence.image):
        return f"its image {evidence.image!r} is not a digest"
    name = _NAME.fullmatch(path.stem)
    if name is None:
        return "its name is not TIME-SUITE-DIGEST.json"
    if name["suite"] != evidence.suite[:12] or name["when"] != when:
        return f"its name states {name['when']} and suite {name['suite']}, its content {when}, {evidence.suite[:12]!r}"
    return None


def _recorded_run(file: str, run: run_evidence.Evidence) -> RecordedRun:
    gpu, sm = (run.report["environment"].get(name) for name in ("gpu", "sm"))
    return RecordedRun(
        file=file,
        when=run.when,
        where=run.where,
        image=run.image,
        suite=run.suite,
        gpu=None if gpu is None else str(gpu),
        sm=None if sm is None else str(sm),
        ok=run.ok,
        domain=run.domain,
        quick=run.quick,
        verdict=str(run.report["verdict"].get("text", "")),
        outcomes=run.outcomes,
    )


def _figures(run: run_evidence.Evidence) -> dict[str, StepFigures]:
    """Return the figures of each setting at the longest sequences that were measured."""
    figures = {}
    for check in run.report["checks"]:
        if check["topic"] == "speed" and check["outcome"] == "pass":
            measured = check["figures"]["lengths"]
            lengths = {int(key): value for key, value in measured.items() if "step_ms" in value}
            if lengths:
                longest = max(lengths)
                figures[str(check["setting"])] = StepFigures(
                    step_ms=float(lengths[longest]["step_ms"]),
                    peak_bytes=int(lengths[longest]["peak_bytes"]),
                    length=longest,
                )
    return figures
