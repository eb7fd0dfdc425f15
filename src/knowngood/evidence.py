"""Evidence: what runs observed, one JSON file a run, and what follows from it. Files are written once, then kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from knowngood import sealed

SCHEMA = "knowngood/evidence/1"


class Where(StrEnum):
    """What kind of place a run was made in."""

    BARE = "bare-environment"
    CONTAINER_CPU = "container-cpu"
    CONTAINER_GPU = "container-gpu"


class Tier(StrEnum):
    """How far a cell is proven, least first."""

    NONE = "none"
    RESOLVED = "resolved"
    BUILT = "built"
    TRAINS_ON_CPU = "trains-on-cpu"
    TRAINS_ON_GPU = "trains-on-gpu"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run of the smoke suite."""

    cell: str
    where: Where
    image: str | None
    """Digest of the image that ran; `None` for a bare environment."""
    when: str
    """ISO 8601, UTC."""
    node: Mapping[str, Any]
    command: tuple[str, ...]
    report: Mapping[str, Any]
    """What the suite wrote, unchanged."""

    @property
    def ok(self) -> bool:
        """Whether the suite's verdict was good."""
        return bool(self.report["verdict"]["ok"])

    @property
    def suite(self) -> str:
        """The suite's hash."""
        return str(self.report["suite_hash"])

    @property
    def quick(self) -> bool:
        """Whether only the suite's quick part ran."""
        return "--quick" in self.command

    @cached_property
    def outcomes(self) -> dict[str, str]:
        """Attention setting to its outcome over all its checks: a `fail` not predicted decides, then a `pass`."""
        rank = {"fail": 0, "pass": 1, "refused": 2, "not-run": 3}
        found: dict[str, str] = {}
        for check in self.report["checks"]:
            setting = check["setting"]
            if not setting or (check["outcome"] == "fail" and check.get("agreement") == "agree"):
                continue  # no check of a setting, or a known defect that is told elsewhere
            if rank[check["outcome"]] <= rank[found.get(setting, "not-run")]:
                found[setting] = check["outcome"]
        return found

    def document(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "schema": SCHEMA,
            "cell": self.cell,
            "where": str(self.where),
            "image": self.image,
            "node": dict(self.node),
            "when": self.when,
            "command": list(self.command),
            "report": self.report,
        }


def store(evidence: Evidence, folder: Path) -> Path:
    """Write the run's file, `<cell>/<time>-<suite hash>-<digest>.json`; returns its path. The same run is one file."""
    stamp = datetime.fromisoformat(evidence.when).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    text = json.dumps(evidence.document(), indent=1, ensure_ascii=False) + "\n"
    return sealed.write(folder / evidence.cell, f"{stamp}-{evidence.suite[:12]}", text)


def load(path: Path, parse: Callable[[bytes], Any] = json.loads) -> Evidence | str:
    """A run's file, or the sentence that says why it is left out; whoever reads thousands has a faster `parse`."""
    try:
        data = path.read_bytes()
        stored = parse(data)
        if stored["schema"] != SCHEMA:
            return f"{path}: schema {stored['schema']!r}, this program reads {SCHEMA}"
        found = Evidence(
            cell=stored["cell"],
            where=Where(stored["where"]),
            image=stored["image"],
            when=stored["when"],
            node=stored["node"],
            command=tuple(stored["command"]),
            report=stored["report"],
        )
        _ = (found.ok, found.suite, found.outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path}: not readable as evidence ({error!r})"
    if found.cell != path.parent.name:
        return f"{path}: it is of {found.cell}, not of its folder's cell"
    defect = sealed.defect(path, data)
    return f"{path}: {defect}" if defect else found


def load_all(folder: Path, cell: str) -> tuple[list[Evidence], list[str]]:
    """Every run of a cell, oldest first, and why others were left out."""
    runs, left_out = [], []
    for path in sorted((folder / cell).glob("*.json")):
        found = load(path)
        if isinstance(found, Evidence):
            runs.append(found)
        else:
            left_out.append(found)
    return runs, left_out


class Told(Protocol):
    """Of a run, what follows for its cell from it."""

    @property
    def where(self) -> Where:
        """The kind of place."""

    @property
    def quick(self) -> bool:
        """Whether only the suite's quick part ran."""

    @property
    def when(self) -> str:
        """ISO 8601, UTC."""

    @property
    def ok(self) -> bool:
        """Whether the suite's verdict was good."""

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Attention setting to its outcome."""


_T = TypeVar("_T", bound=Told)


def best(runs: Iterable[_T]) -> _T | None:
    """The run that says most: a GPU before a CPU, whole before quick, the newest."""
    order = (Where.BARE, Where.CONTAINER_CPU, Where.CONTAINER_GPU)
    return max(runs, key=lambda run: (order.index(run.where), not run.quick, run.when), default=None)


def attention(runs: Iterable[Evidence]) -> dict[str, str]:
    """Attention setting to outcome, from the run that says most."""
    said = best(runs)
    return said.outcomes if said else {}


def tier(runs: Iterable[Told], *, locked: bool) -> Tier:
    """How far the runs prove the cell. An image counts, a bare environment does not: no digest was seen."""
    reached = Tier.RESOLVED if locked else Tier.NONE
    order = list(Tier)
    for run in runs:
        if run.where is Where.BARE:
            continue
        trains = run.ok and "pass" in run.outcomes.values()
        proven = Tier.TRAINS_ON_GPU if run.where is Where.CONTAINER_GPU else Tier.TRAINS_ON_CPU
        reached = max(reached, proven if trains else Tier.BUILT, key=order.index)
    return reached
