"""Explains why a cell fails that passed before: what changed since, and if it is the lock, which package caused it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.cell import parse_cell
from knowngood.core.notify import Notify
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.registry import image_release
from knowngood.reports.bisect_run import LockBisection, describe_bisection
from knowngood.reports.lock_pins import PinnedPackages, pins_from_distributions, pins_from_evidence
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlySeverity
from knowngood.reports.nightly_tasks import CheckAttempt
from knowngood.reports.package_changes import list_package_changes
from knowngood.smoke.trainer_suite import find_cell_suite

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.project.checkout import Project


@dataclass(frozen=True, kw_only=True)
class FailureExplainer:
    """Compares a failed run of a cell with the last good one, and bisects the packages that changed."""

    here: Project
    gpus: bool
    """The failed runs are on a GPU."""
    wheelhouse: Path

    def __call__(self, cell: str, failure: CheckAttempt, notify: Notify) -> list[NightlyFinding]:
        """Return what changed since the last good run in an image on this kind of machine."""
        loaded = {path: run_evidence.load_evidence(path) for path in sorted((self.here.evidence / cell).glob("*.json"))}
        runs = {path: run for path, run in loaded.items() if isinstance(run, Evidence)}
        good_run = find_last_passing_run(list(runs.values()), gpus=self.gpus)
        failed_run = max((run for run in runs.values() if not run.ok), key=lambda run: run.when, default=None)
        if good_run is None:
            text = "there is no evidence of a good run to compare with"
            return [_finding(cell, "never-green", NightlySeverity.INFO, text)]
        day = good_run.when[:10]
        if failed_run is not None and good_run.image is not None and good_run.image == failed_run.image:
            changes = ", ".join(list_environment_changes(good_run, failed_run)) or "nothing that is recorded"
            text = f"this very image passed on {day}; changed since: {changes}; suspect the host"
            return [_finding(cell, "same-image", NightlySeverity.WARNING, text)]
        source = next(path for path, run in runs.items() if run is good_run)
        bisection = self._bisection(parse_cell(cell), good_run, source, failure)
        package_changes = list_package_changes(bisection.good.versions, bisection.bad.versions)
        if not package_changes:
            text = f"its packages are those of the good run of {day}"
            return [_finding(cell, "same-lock", NightlySeverity.INFO, text)]
        result, last_lines = bisection.run(notify)
        severity = NightlySeverity.ERROR if result.culprits else NightlySeverity.WARNING
        return [
            _finding(cell, "culprit", severity, f"since {day}: {describe_bisection(result, bisection, last_lines)}")
        ]

    def _bisection(self, cell: Cell, good_run: Evidence, source: Path, failure: CheckAttempt) -> LockBisection:
        """Return the bisection between the packages of the good run and the committed lock, by the failed test."""
        locked = image_release.require_lock(self.here, cell)
        bad = pins_from_distributions(locked.distributions, str(cell), cell.python)
        good = pins_from_evidence(good_run, str(source.relative_to(self.here.root)))
        test = str((failure.data or {}).get("failing") or "")
        command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-k", test] if test else [])]
        return LockBisection(
            good=_with_locked_versions(good, bad),
            bad=bad,
            command=[*command, str(find_cell_suite(self.here, cell))],
            wheelhouse=self.wheelhouse,
        )


def find_last_passing_run(runs: Sequence[Evidence], *, gpus: bool) -> Evidence | None:
    """Return the newest good run in an image, with a GPU or without one."""
    where = RunPlace.CONTAINER_GPU if gpus else RunPlace.CONTAINER_CPU
    return max((run for run in runs if run.ok and run.where is where), key=lambda run: run.when, default=None)


def list_environment_changes(good: Evidence, failed: Evidence) -> list[str]:
    """Return what differs between two runs apart from their packages: the suite, and attributes of the node."""
    changes = ["the smoke suite"] if good.suite != failed.suite else []
    for name in sorted(good.node.keys() | failed.node.keys()):
        before, after = good.node.get(name), failed.node.get(name)
        if before != after:
            changes.append(f"the node's {name} ({before} -> {after})")
    return changes


def _with_locked_versions(good: PinnedPackages, bad: PinnedPackages) -> PinnedPackages:
    """Write installed versions as the lock does: one that differs in its local part only is the same release."""
    public = {name: version.partition("+")[0] for name, version in bad.versions.items()}
    versions = {
        name: bad.versions[name] if public.get(name) == version.partition("+")[0] else version
        for name, version in good.versions.items()
    }
    return PinnedPackages(source=good.source, versions=versions, hashes={}, python=good.python)


def _finding(cell: str, kind: str, severity: NightlySeverity, text: str) -> NightlyFinding:
    return NightlyFinding(
        check=NightlyCheck.SUITE, kind=kind, severity=severity, subject=cell, text=f"{cell}: {text}", cells=(cell,)
    )
