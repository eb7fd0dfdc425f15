"""Compares the files that cells lock with those that the index lists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from knowngood.lock.cell_lock import Distribution
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlySeverity

LockedCells = Mapping[str, Sequence[Distribution]]
"""Cell to the distributions that it locks."""


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A file as the index lists it."""

    sha256: str
    """Empty when the index states none."""
    yanked: bool


IndexListing = Mapping[str, IndexFile]
"""The files of one project, by name."""


def list_locked_files(locks: LockedCells) -> dict[Distribution, tuple[str, ...]]:
    """Return every locked file, with the cells that lock it."""
    cells_by_file: dict[Distribution, list[str]] = {}
    for cell, distributions in locks.items():
        for item in distributions:
            cells_by_file.setdefault(item, []).append(cell)
    return {item: tuple(cells) for item, cells in sorted(cells_by_file.items())}


def judge_locked_files(locks: LockedCells, listings: Mapping[str, IndexListing | str]) -> list[NightlyFinding]:
    """Return what is wrong with the locked files.

    `listings` has the files of each project, or a text with the reason why they could not be read. Projects with the
    same reason are one finding.
    """
    findings = []
    for item, cells in list_locked_files(locks).items():
        listing = listings.get(item.name)
        if listing is not None and not isinstance(listing, str):
            findings += [_files_finding(*defect, cells) for defect in _judge_file(item, listing.get(item.file))]
    by_reason: dict[str, list[str]] = {}
    for project, listing in sorted(listings.items()):
        if isinstance(listing, str):
            by_reason.setdefault(listing.replace(project, "it"), []).append(project)
    for reason, projects in by_reason.items():
        names = ", ".join(projects[:3]) + (f" and {len(projects) - 3} more" if len(projects) > 3 else "")
        findings.append(_files_finding("unanswered", NightlySeverity.UNKNOWN, projects[0], f"{names}: {reason}", ()))
    return findings


def _judge_file(item: Distribution, listed: IndexFile | None) -> Iterable[tuple[str, NightlySeverity, str, str]]:
    """Yield the kind, severity, subject and text of each defect of a file."""
    if listed is None:
        text = f"{item.file} is gone from the index: a build from nothing would fail"
        yield "gone", NightlySeverity.ERROR, item.file, text
    elif listed.sha256 and listed.sha256 != item.sha256:
        text = f"{item.file} has another hash: locked {item.sha256[:12]}, the index has {listed.sha256[:12]}"
        yield "hash-changed", NightlySeverity.ERROR, item.file, text
    elif not listed.sha256:
        yield "no-hash", NightlySeverity.UNKNOWN, item.file, f"{item.file}: the index states no hash for it"
    if listed and listed.yanked:
        text = f"{item.name} {item.version} was withdrawn (yanked); {item.file} can still be installed by its hash"
        yield "yanked", NightlySeverity.ERROR, item.file, text


def _files_finding(
    kind: str, severity: NightlySeverity, subject: str, text: str, cells: tuple[str, ...]
) -> NightlyFinding:
    return NightlyFinding(
        check=NightlyCheck.FILES, kind=kind, severity=severity, subject=subject, text=text, cells=cells
    )
