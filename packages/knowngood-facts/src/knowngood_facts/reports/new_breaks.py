"""What a new release breaks: its pairs with the newest releases of others, with which the release before it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name

from knowngood.core.package_names import parse_requirement_text
from knowngood.index.wheel_metadata import linux_environment
from knowngood_facts.compat.broken_pairs import ReadTable, find_broken_pairs
from knowngood_facts.facts.package_metadata import read_package_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from knowngood_facts.compat.findings import Finding
    from knowngood_facts.reports.index_changes import UpstreamRelease


@dataclass(frozen=True, kw_only=True)
class NewBreak:
    """A pair with a new release of which one cannot be imported with the other."""

    pair: Mapping[str, str]
    """Package -> release: first the one that fails, then the one that lacks what it needs."""
    stops: bool
    """Whether the package is of no use then; else a name fails that it exports lazily."""
    because: str
    declared: bool
    """Whether the metadata of one of the two excludes the other, so that no resolver installs both."""

    def __str__(self) -> str:
        note = "; its metadata excludes that" if self.declared else ""
        return f"{self.because} ({' with '.join(' '.join(item) for item in self.pair.items())}{note})"


def find_new_breaks(
    release: UpstreamRelease, before: str | None, newest: Mapping[str, str], read: ReadTable, metadata: Path
) -> list[NewBreak]:
    """Return the pairs that a new release breaks and the release before it did not, those that stop an import first.

    Args:
        release: the new release, as the caller and as the callee.
        before: the release before it, if there is one.
        newest: package -> its newest release, of the packages of the atlas.
        read: gives the table of a caller.
        metadata: the folder of what releases declare.
    """
    others = [(name, version) for name, version in newest.items() if name != release.package]

    def find(version: str) -> dict[str, Finding]:
        pairs = ({release.package: version, name: other} for name, other in others)
        return {
            found.id: found for pair in pairs for found in find_broken_pairs(pair, read) if found.severity in _BREAKS
        }

    known = {name: found.severity for name, found in find(before).items()} if before else {}
    breaks = [
        NewBreak(
            pair=found.packages,
            stops=found.severity == "error",
            because=found.because,
            declared=is_excluded_by_metadata(found.packages, metadata),
        )
        for name, found in find(release.version).items()
        if known.get(name) not in {"error", found.severity}
    ]
    return sorted(breaks, key=lambda item: (not item.stops, item.declared))


_BREAKS = ("error", "warning")


def is_excluded_by_metadata(pair: Mapping[str, str], folder: Path) -> bool:
    """Return whether one of two releases declares, without an extra, that it does not go with the other."""
    environment = linux_environment("3.11") | {"extra": ""}
    for name, version in pair.items():
        package = read_package_metadata(name, folder)
        declared = package.releases[version].requirements if package and version in package.releases else ()
        for text in declared:
            try:
                requirement = parse_requirement_text(text)
            except InvalidRequirement:
                continue
            other = pair.get(canonicalize_name(requirement.name))
            holds = requirement.marker is None or requirement.marker.evaluate(environment)
            if other and holds and not requirement.specifier.contains(other, prereleases=True):
                return True
    return False
