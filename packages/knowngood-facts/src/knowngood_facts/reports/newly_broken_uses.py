"""Which packages of the atlas a new release on the index breaks: its names are read into a copy of the atlas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from knowngood_facts.facts.broken_use_answer import describe_use
from knowngood_facts.facts.broken_use_table import BrokenUseTable, list_table_packages
from knowngood_facts.facts.broken_uses import compute_broken_uses

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood_facts.reports.index_changes import UpstreamRelease

ReadRelease = Callable[[str, str], str]
"""Reads the names of a package's release into the atlas; returns why that was not possible, else an empty text."""


def find_newly_broken_uses(
    folder: Path, releases: Sequence[UpstreamRelease], read_release: ReadRelease
) -> tuple[dict[UpstreamRelease, dict[str, str]], dict[UpstreamRelease, str]]:
    """Return for each new release the callers whose newest release it breaks, and for others why they were not judged.

    Args:
        folder: a copy of the atlas, which `read_release` changes; packages that it does not have are left out.
        releases: the new releases.
        read_release: adds one release to the copy.
    """
    unread: dict[UpstreamRelease, str] = {}
    judged = []
    for release in releases:
        if (folder / f"{release.package}.atlas").exists():
            why = read_release(release.package, release.version)
            if why:
                unread[release] = why
            else:
                judged.append(release)
    broken: dict[UpstreamRelease, dict[str, str]] = {}
    packages = {release.package for release in judged}
    for caller in list_table_packages(folder):
        if not packages - {caller}:
            continue
        table = compute_broken_uses(caller, folder, packages)
        for release in judged:
            if text := describe_newly_broken(table, release.package, release.version):
                broken.setdefault(release, {})[f"{caller} {table.releases[-1]}"] = text
    return broken, unread


def describe_newly_broken(table: BrokenUseTable, callee: str, version: str) -> str:
    """Return the imports in a caller's newest release that a release of a callee breaks and the one before does not.

    The text is empty when there is none.
    """
    releases = list(table.callees.get(callee, ()))
    if version not in releases:
        return ""
    place, newest = releases.index(version), len(table.releases) - 1
    texts = [
        f"{use.module} uses {describe_use(use)}"
        for use in table.uses[callee]
        if not use.place
        and use.callers >> newest & 1
        and use.callees >> place & 1
        and not (place and use.callees >> (place - 1) & 1)
    ]
    return ", ".join(texts)
