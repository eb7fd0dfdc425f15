"""What a new release breaks: uses between it and the newest releases of others that went with the release before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name

from knowngood.core.package_names import parse_requirement_text
from knowngood.index.wheel_metadata import linux_environment
from knowngood_facts.facts.broken_use_answer import describe_use
from knowngood_facts.facts.package_metadata import read_package_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from knowngood_facts.compat.broken_pairs import ReadTable
    from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable
    from knowngood_facts.reports.index_changes import UpstreamRelease

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class NewBreak:
    """A pair with a new release of which one uses what the other lacks."""

    pair: Mapping[str, str]
    """Package -> release: first the one that uses, then the one that is used."""
    imports: tuple[BrokenUse, ...]
    """What fails at an import, first what makes the import of the whole package fail, or what it is for."""
    stops: bool
    """Whether there is such a use."""
    functions: int
    """In how many functions something fails when they run."""
    declared: bool
    """Whether the metadata of one of the two excludes the other, so that no resolver installs both."""

    def __str__(self) -> str:
        texts = [f"{use.module} uses {describe_use(use)}" for use in self.imports[:_SHOWN]]
        texts += [f"{len(self.imports) - _SHOWN} more"] if len(self.imports) > _SHOWN else []
        texts += [f"{self.functions} functions fail when they run"] if self.functions else []
        note = " (its metadata excludes that)" if self.declared else ""
        return f"{' with '.join(map(' '.join, self.pair.items()))}{note}: {', '.join(texts)}"


def find_new_breaks(
    release: UpstreamRelease, before: str | None, newest: Mapping[str, str], read: ReadTable, metadata: Path
) -> list[NewBreak]:
    """Return the pairs that a new release breaks and the release before it did not, those that stop an import first.

    Args:
        release: the new release, as the one that uses and the one that is used.
        before: the release before it, if there is one.
        newest: package -> its newest release, of the packages of the atlas.
        read: gives the table of a package that uses others.
        metadata: the folder of what releases declare.
    """
    breaks = []
    for other in newest.keys() - {release.package}:
        for caller, callee in ((other, release.package), (release.package, other)):
            table = read(caller)
            pair = {name: newest[other] if name == other else release.version for name in (caller, callee)}
            old = list(_broken_uses(table, pair | {release.package: before})) if table and before else []
            uses = [use for use in _broken_uses(table, pair) if use not in old] if table else []
            mine = 1 << table.releases.index(pair[caller]) if table and uses else 0
            imports = sorted((use for use in uses if not use.place), key=lambda use: not use.stopping & mine)
            if uses:
                breaks.append(
                    NewBreak(
                        pair=pair,
                        imports=tuple(imports),
                        stops=any(use.stopping & mine for use in imports),
                        functions=len({use.place for use in uses if use.place}),
                        declared=is_excluded_by_metadata(pair, metadata),
                    )
                )
    return sorted(breaks, key=lambda item: (not item.stops, not item.imports, item.declared, *item.pair))


def _broken_uses(table: BrokenUseTable, pair: Mapping[str, str]) -> Iterator[BrokenUse]:
    """Yield the uses of a release of the callee by one of the caller that break."""
    (_, mine), (callee, theirs) = pair.items()
    releases = table.callees.get(callee, ())
    if mine in table.releases and theirs in releases:
        places = table.releases.index(mine), releases.index(theirs)
        uses = table.uses[callee]
        yield from (use for use in uses if use.callers >> places[0] & 1 and use.callees >> places[1] & 1)


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
