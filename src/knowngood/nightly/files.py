"""Is every locked file still on the index, not withdrawn, with the same hash. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from knowngood.locks.lock import Distribution
from knowngood.nightly.model import Check, Finding, Severity

Locks = Mapping[str, Sequence[Distribution]]
"""Cell -> what it locks."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file as the index has it."""

    sha256: str
    """Empty where the index states none."""
    yanked: bool


Listing = Mapping[str, Listed]
"""File name -> what the index says, of one project."""


def wanted(locks: Locks) -> dict[Distribution, tuple[str, ...]]:
    """Every file with the cells that lock it."""
    found: dict[Distribution, list[str]] = {}
    for cell, distributions in locks.items():
        for item in distributions:
            found.setdefault(item, []).append(cell)
    return {item: tuple(cells) for item, cells in sorted(found.items())}


def is_ours(item: Distribution) -> bool:
    """A wheel that `knowngood compile` made: no index has it."""
    return item.made_here


def findings(locks: Locks, listings: Mapping[str, Listing | str]) -> list[Finding]:
    """What is wrong; a project whose listing is a text could not be asked, and the text says why."""
    found = []
    for item, cells in wanted(locks).items():
        listing = listings.get(item.name)
        if listing is not None and not isinstance(listing, str):
            found += list(_judge(item, listing.get(item.file), cells))
    by_reason: dict[str, list[str]] = {}
    for project, listing in sorted(listings.items()):
        if isinstance(listing, str):
            by_reason.setdefault(listing.replace(project, "it"), []).append(project)
    for reason, projects in by_reason.items():
        shown = ", ".join(projects[:3]) + (f" and {len(projects) - 3} more" if len(projects) > 3 else "")
        found.append(_finding("unanswered", Severity.UNKNOWN, projects[0], f"{shown}: {reason}", ()))
    return found


def _judge(item: Distribution, listed: Listed | None, cells: tuple[str, ...]) -> Iterable[Finding]:
    if listed is None:
        said = f"{item.file} is gone from the index: a build from nothing would fail"
        yield _finding("gone", Severity.ERROR, item.file, said, cells)
    elif listed.sha256 and listed.sha256 != item.sha256:
        said = f"{item.file} has another hash: locked {item.sha256[:12]}, the index has {listed.sha256[:12]}"
        yield _finding("hash-changed", Severity.ERROR, item.file, said, cells)
    elif not listed.sha256:
        yield _finding("no-hash", Severity.UNKNOWN, item.file, f"{item.file}: the index states no hash of it", cells)
    if listed and listed.yanked:
        said = f"{item.name} {item.version} was withdrawn (yanked): {item.file} installs still, by its hash"
        yield _finding("yanked", Severity.ERROR, item.file, said, cells)


def _finding(kind: str, severity: Severity, subject: str, text: str, cells: tuple[str, ...]) -> Finding:
    return Finding(check=Check.FILES, kind=kind, severity=severity, subject=subject, text=text, cells=cells)
