"""Evidence of one run of the smoke suite: its JSON file, and what the runs of a cell prove. Files are written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from knowngood.core import data_files
from knowngood.core.errors import InputError
from knowngood.evidence import sealed_files

EVIDENCE_SCHEMA = "knowngood/evidence/1"


class RunPlace(StrEnum):
    """The kind of place in which the suite ran."""

    BARE = "bare-environment"
    CONTAINER_EMULATED = "container-emulated"
    """In a container whose programs are for another processor than the machine's: QEMU ran them."""
    CONTAINER_CPU = "container-cpu"
    CONTAINER_GPU = "container-gpu"


class Tier(StrEnum):
    """How far a cell is proven, from the least to the most."""

    NONE = "none"
    RESOLVED = "resolved"
    BUILT = "built"
    TRAINS_EMULATED = "trains-emulated"
    TRAINS_ON_CPU = "trains-on-cpu"
    TRAINS_ON_GPU = "trains-on-gpu"


@dataclass(frozen=True, kw_only=True)
class SettingObservation:
    """What one run observed of an attention setting, over all its checks."""

    outcome: str
    """`pass`, `fail`, `refused` or `not-run`.

    A failure that nobody predicted decides. Without one, the plain training checks do (no checkpointing, LoRA or
    cache): `pass` when one of them trained, else `fail`, `refused` or `not-run`, the first of these that occurred.
    """
    message: str = ""
    """The words of the first check with this outcome; empty for `pass`."""
    limits: tuple[str, ...] = ()
    """The plain checks (`fp32/dense`) that were refused although another one trained."""
    defects: tuple[str, ...] = ()
    """The ids of the checks that failed as predicted."""


_DECISION_ORDER = ("pass", "fail", "refused", "not-run")
_MESSAGE_LENGTH = 240


def observe_settings(checks: Iterable[Mapping[str, Any]]) -> dict[str, SettingObservation]:
    """Return what the checks of a report observed of each attention setting."""
    checks_of: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        if check["setting"]:
            checks_of.setdefault(check["setting"], []).append(check)
    return {setting: _observe_setting(its_checks) for setting, its_checks in checks_of.items()}


def _observe_setting(checks: Sequence[Mapping[str, Any]]) -> SettingObservation:
    failed = [check for check in checks if check["outcome"] == "fail"]
    unpredicted = [check for check in failed if check.get("agreement") != "agree"]
    plain = [check for check in checks if check.get("topic") == "training" and check.get("mode", "full") == "full"]
    deciding = unpredicted or plain or checks
    outcome = "fail" if unpredicted else min((check["outcome"] for check in deciding), key=_DECISION_ORDER.index)
    first = next(check for check in deciding if check["outcome"] == outcome)
    message = "" if outcome == "pass" else first.get("message") or first.get("reason") or ""
    refused = [check for check in plain if check["outcome"] == "refused"] if outcome == "pass" else []
    return SettingObservation(
        outcome=outcome,
        message=" ".join(str(message).split())[:_MESSAGE_LENGTH],
        limits=tuple(f"{check.get('dtype')}/{check.get('layout')}" for check in refused),
        defects=tuple(str(check.get("id")) for check in failed if check.get("agreement") == "agree"),
    )


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
    def on_own_gpu(self) -> bool:
        """Whether it ran on a GPU of the cell's architecture."""
        return is_own_gpu(self.where, self.cell, self.report.get("environment", {}).get("sm"))

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
        return "--quick" in self.command or self.where is RunPlace.CONTAINER_EMULATED

    @property
    def domain(self) -> str:
        """The part at fault: `none`, `image`, `suite` or `host`."""
        return str(self.report["verdict"].get("domain", "none" if self.ok else "image"))

    @cached_property
    def observations(self) -> dict[str, SettingObservation]:
        """What the run observed of each attention setting."""
        return observe_settings(self.report["checks"])

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each attention setting; `SettingObservation.outcome` says how it is decided."""
        return {setting: observation.outcome for setting, observation in self.observations.items()}

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
        data = data_files.read_data_bytes(path)
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
        _ = (evidence.ok, evidence.suite, evidence.domain, evidence.observations)
    except InputError as error:
        return str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{path}: not readable as evidence ({error!r})"
    if evidence.cell != path.parent.name:
        return f"{path}: it is evidence of {evidence.cell}, not of the cell that its folder names"
    defect = sealed_files.find_defect(path, data)
    return f"{path}: {defect}" if defect else evidence


def load_cell_evidence(
    folder: Path, cell: str, seal: sealed_files.RunSeal | None = None
) -> tuple[list[Evidence], list[str]]:
    """Return the runs of a cell, oldest first, and for each file that cannot be used the reason.

    A good run that the project's seal does not cover is left out; a red one counts in any case. Of a cell that has lost
    a file, all are left out.
    """
    if lost := sealed_files.find_missing_files(folder, seal).get(cell):
        return [], lost
    runs, left_out = [], []
    for path in sorted((folder / cell).glob("*.json")):
        evidence = load_evidence(path)
        file = f"{cell}/{path.name}"
        if not isinstance(evidence, Evidence):
            left_out.append(evidence)
        elif seal and evidence.ok and not seal.covers_run(file):
            left_out.append(sealed_files.describe_unsigned_run(file))
        else:
            runs.append(evidence)
    return runs, left_out


def is_own_gpu(where: RunPlace, cell: str, sm: str | None) -> bool:
    """Return whether a run in a container was on a GPU of its cell's architecture; an unnamed GPU counts as such."""
    return where is RunPlace.CONTAINER_GPU and (sm is None or cell.startswith(f"{sm.replace('_', '')}-"))


class RunSummary(Protocol):
    """The part of a run that decides what it proves of its cell."""

    @property
    def where(self) -> RunPlace:
        """The kind of place in which the suite ran."""

    @property
    def suite(self) -> str:
        """The hash of the suite that ran."""

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
    def domain(self) -> str:
        """The part at fault: `none`, `image`, `suite` or `host`."""

    @property
    def on_own_gpu(self) -> bool:
        """Whether it ran on a GPU of the cell's architecture."""

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Attention setting -> outcome."""


_T = TypeVar("_T", bound=RunSummary)


def valid_runs(runs: Iterable[_T]) -> list[_T]:
    """Return the runs that still say something: a red run makes all older ones invalid, and is valid while it is last.

    Runs in an image and runs in a bare environment do not touch each other. A run whose host was at fault says nothing.
    """
    valid: list[_T] = []
    telling = sorted((run for run in runs if run.domain != "host"), key=lambda run: run.when)
    for bare in (True, False):
        ordered = [run for run in telling if (run.where is RunPlace.BARE) is bare]
        red = [place for place, run in enumerate(ordered) if not run.ok]
        valid += ordered[red[-1] + 1 :] or ordered[-1:] if red else ordered
    return valid


def most_telling_run(runs: Iterable[_T]) -> _T | None:
    """Return the run that proves the most: a GPU before a CPU before emulation, and there the suite of the newest run.

    Of that suite a whole run comes before one of its quick part, and the newest before older ones.
    """
    order = list(RunPlace)
    valid = valid_runs(runs)
    newest = max(valid, key=lambda run: (order.index(run.where), run.when), default=None)
    if newest is None:
        return None
    equals = [run for run in valid if (run.where, run.suite) == (newest.where, newest.suite)]
    return max(equals, key=lambda run: (not run.quick, run.when))


def proven_tier(runs: Iterable[RunSummary], *, locked: bool) -> Tier:
    """Return how far these runs prove their cell; a red run takes away what older runs proved.

    Only runs in an image count: a bare environment has no digest that could be published. A GPU of another architecture
    proves as much as a CPU, and an emulated CPU less than either.
    """
    in_image = [run for run in runs if run.where is not RunPlace.BARE]
    reached = Tier.BUILT if in_image else Tier.RESOLVED if locked else Tier.NONE
    order = list(Tier)
    for run in valid_runs(in_image):
        if run.ok and "pass" in run.outcomes.values():
            emulated = run.where is RunPlace.CONTAINER_EMULATED
            on_cpu = Tier.TRAINS_EMULATED if emulated else Tier.TRAINS_ON_CPU
            proven = Tier.TRAINS_ON_GPU if run.on_own_gpu else on_cpu
            reached = max(reached, proven, key=order.index)
    return reached
