"""Evidence of one run of the smoke suite: its JSON file, and what the runs of a cell prove. Files are written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from knowngood.evidence import sealed_files

EVIDENCE_SCHEMA = "knowngood/evidence/1"


class RunPlace(StrEnum):
    """The kind of place in which the suite ran."""

    BARE = "bare-environment"
    CONTAINER_CPU = "container-cpu"
    CONTAINER_GPU = "container-gpu"


class Tier(StrEnum):
    """How far a cell is proven, from the least to the most."""

    NONE = "none"
    RESOLVED = "resolved"
    BUILT = "built"
    TRAINS_ON_CPU = "trains-on-cpu"
    TRAINS_ON_GPU = "trains-on-gpu"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run of the smoke suite."""

    cell: str
    where: RunPlace
    image: str | None
    """Digest of the image that ran; `None` for a bare environment."""
    when: str
    """Time of the run, ISO 8601 in UTC."""
    node: Mapping[str, Any]
    command: tuple[str, ...]
    report: Mapping[str, Any]
    """The suite's own report, unchanged."""

    @property
    def ok(self) -> bool:
        """Whether the suite's verdict was good."""
        return bool(self.report["verdict"]["ok"])

    @property
    def suite(self) -> str:
        """The hash of the suite that ran."""
        return str(self.report["suite_hash"])

    @property
    def quick(self) -> bool:
        """Whether only the suite's quick part ran."""
        return "--quick" in self.command

    @cached_property
    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each attention setting over all its checks.

        An unpredicted `fail` decides; without one, a `pass` does. A predicted failure does not count here.
        """
        rank = {"fail": 0, "pass": 1, "refused": 2, "not-run": 3}
        outcomes: dict[str, str] = {}
        for check in self.report["checks"]:
            setting = check["setting"]
            if not setting or (check["outcome"] == "fail" and check.get("agreement") == "agree"):
                continue  # not a check of a setting, or a known defect that is reported elsewhere
            if rank[check["outcome"]] <= rank[outcomes.get(setting, "not-run")]:
                outcomes[setting] = check["outcome"]
        return outcomes

    def document(self) -> dict[str, Any]:
        """Return the content of the evidence file."""
        return {
            "schema": EVIDENCE_SCHEMA,
            "cell": self.cell,
            "where": str(self.where),
            "image": self.image,
            "node": dict(self.node),
            "when": self.when,
            "command": list(self.command),
            "report": self.report,
        }


def store_evidence(evidence: Evidence, folder: Path) -> Path:
    """Write a run to `<folder>/<cell>/<time>-<suite hash>-<digest>.json` and return the path.

    Storing the same run again writes the same file.
    """
    stamp = datetime.fromisoformat(evidence.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    text = json.dumps(evidence.document(), indent=1, ensure_ascii=False) + "\n"
    return sealed_files.write_sealed_json(folder / evidence.cell, f"{stamp}-{evidence.suite[:12]}", text)


def load_evidence(path: Path, parse: Callable[[bytes], Any] = json.loads) -> Evidence | str:
    """Read an evidence file, or return the sentence that says why it cannot be used.

    `parse` turns the bytes into JSON values; a caller that reads thousands of files passes a faster one.
    """
    try:
        data = path.read_bytes()
        stored = parse(data)
        if stored["schema"] != EVIDENCE_SCHEMA:
            return f"{path}: schema {stored['schema']!r}, this program reads {EVIDENCE_SCHEMA}"
        evidence = Evidence(
            cell=stored["cell"],
            where=RunPlace(stored["where"]),
            image=stored["image"],
            when=stored["when"],
            node=stored["node"],
            command=tuple(stored["command"]),
            report=stored["report"],
        )
        _ = (evidence.ok, evidence.suite, evidence.outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path}: not readable as evidence ({error!r})"
    if evidence.cell != path.parent.name:
        return f"{path}: it is evidence of {evidence.cell}, not of the cell that its folder names"
    defect = sealed_files.find_defect(path, data)
    return f"{path}: {defect}" if defect else evidence


def load_cell_evidence(folder: Path, cell: str) -> tuple[list[Evidence], list[str]]:
    """Return the runs of a cell, oldest first, and for each file that cannot be used the reason."""
    runs, left_out = [], []
    for path in sorted((folder / cell).glob("*.json")):
        evidence = load_evidence(path)
        if isinstance(evidence, Evidence):
            runs.append(evidence)
        else:
            left_out.append(evidence)
    return runs, left_out


class RunSummary(Protocol):
    """The part of a run that decides what it proves of its cell."""

    @property
    def where(self) -> RunPlace:
        """The kind of place in which the suite ran."""

    @property
    def quick(self) -> bool:
        """Whether only the suite's quick part ran."""

    @property
    def when(self) -> str:
        """Time of the run, ISO 8601 in UTC."""

    @property
    def ok(self) -> bool:
        """Whether the suite's verdict was good."""

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Attention setting -> outcome."""


_T = TypeVar("_T", bound=RunSummary)


def most_telling_run(runs: Iterable[_T]) -> _T | None:
    """Return the run that proves the most: a GPU before a CPU, the whole suite before the quick part, the newest."""
    order = (RunPlace.BARE, RunPlace.CONTAINER_CPU, RunPlace.CONTAINER_GPU)
    return max(runs, key=lambda run: (order.index(run.where), not run.quick, run.when), default=None)


def attention_outcomes(runs: Iterable[Evidence]) -> dict[str, str]:
    """Return attention setting -> outcome from the run that proves the most."""
    best = most_telling_run(runs)
    return best.outcomes if best else {}


def proven_tier(runs: Iterable[RunSummary], *, locked: bool) -> Tier:
    """Return how far these runs prove their cell.

    Only runs in an image count: a bare environment has no digest that could be published.
    """
    reached = Tier.RESOLVED if locked else Tier.NONE
    order = list(Tier)
    for run in runs:
        if run.where is RunPlace.BARE:
            continue
        trains = run.ok and "pass" in run.outcomes.values()
        proven = Tier.TRAINS_ON_GPU if run.where is RunPlace.CONTAINER_GPU else Tier.TRAINS_ON_CPU
        reached = max(reached, proven if trains else Tier.BUILT, key=order.index)
    return reached
