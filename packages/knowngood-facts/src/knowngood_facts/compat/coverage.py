"""What nobody read of what an answer depends on, and up to which day the rest was read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.core.nearest_names import find_nearest_name
from knowngood_facts.compat.dependency_markers import parse_dependency
from knowngood_facts.compat.metadata_store import has_metadata
from knowngood_facts.compat.query_resolution import QueryResolution, list_compiled_wheels
from knowngood_facts.compat.resolution_findings import list_names
from knowngood_facts.compat.value_domain import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from knowngood_facts.compat.metadata_store import ReleaseDeclaration
    from knowngood_facts.compat.query import Query, UnreadLine
    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.universe import Universe

_COMPILED_WORDS = re.compile("torch|cuda|cu1[123]|nvidia|triton|flash|attn|kernel|gpu|tensor")
"""A package that nobody read and whose name has one of these may be compiled against torch or CUDA."""


_TRIED_WITHIN = timedelta(days=183)
"""Names are taken away after they were deprecated for some releases, which takes most packages half a year or more."""


Release = tuple[str, str]
"""A package and its version."""


class UnreadKind(StrEnum):
    """What was not read of a package."""

    METADATA = "metadata"
    """What its releases require, and which wheels they have."""
    GPU_CODE = "gpu-code"
    """What its binaries have for which GPU."""
    REQUIREMENTS = "requirements"
    """What a release requires that states it only when it is built."""
    NAMES = "names"
    """The Python names that it has, and that it uses of others."""


@dataclass(frozen=True, kw_only=True)
class UnreadPart:
    """Something of a package that nobody read."""

    package: str
    release: str
    """A version, a specifier, or empty for any."""
    kind: UnreadKind
    because: str
    """What was not looked at therefore, and why; the same words for all packages for which it is the same."""
    matters: bool
    """Whether the answer is unknown therefore. A helper that nothing constrains does not matter."""

    def document(self) -> dict[str, Any]:
        """Return the part as `--json` prints it."""
        return {
            "package": self.package,
            "release": self.release,
            "part": str(self.kind),
            "because": self.because,
            "matters": self.matters,
        }


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How far an answer looked."""

    snapshot: str = ""
    """The day of the newest release that was read; empty where nothing was."""
    parts: tuple[UnreadPart, ...] = ()
    pairs_to_read: tuple[tuple[Release, Release], ...] = ()
    """The releases whose names are to be read, so that the answer can say what breaks between the two of a pair."""
    lines: tuple[UnreadLine, ...] = field(default=())
    """The lines of files of requirements that could not be used."""
    lines_matter: bool = False
    """Whether one of these lines is of more than a helper that nobody read."""

    @property
    def is_complete(self) -> bool:
        """Whether each part that matters was read."""
        return not self.lines_matter and not any(part.matters for part in self.parts)

    @property
    def names_to_read(self) -> tuple[str, ...]:
        """The packages whose metadata is to be read from the index, so that the answer can say more."""
        return tuple(dict.fromkeys(part.package for part in self.parts if part.kind is UnreadKind.METADATA))

    def document(self) -> dict[str, Any]:
        """Return the keys that `check --json` and `pick --json` have of it."""
        unread = [*(line.document() for line in self.lines), *(part.document() for part in self.parts)]
        return {"snapshot": self.snapshot} | ({"unread": unread} if unread else {})

    def text_lines(self) -> list[str]:
        """Return the lines for people: what was not read, what matters first, and the day of the snapshot."""
        groups: dict[tuple[bool, str, str], list[str]] = {}
        for part in self.parts:
            groups.setdefault((not part.matters, part.kind, part.because), []).append(f"{part.package} {part.release}")
        shown = [
            f"not read: {_KIND_TEXTS[UnreadKind(kind)]}{list_names(map(str.strip, names))}: {because}"
            for (_, kind, because), names in sorted(groups.items(), key=lambda group: group[0][0])
        ]
        until = [f"read until: {self.snapshot}"] if self.snapshot else []
        return [*(f"not read: {line}" for line in self.lines), *shown, *until]


_KIND_TEXTS = {
    UnreadKind.METADATA: "",
    UnreadKind.GPU_CODE: "the GPU code of ",
    UnreadKind.REQUIREMENTS: "what is required by ",
    UnreadKind.NAMES: "the names in ",
}


def find_coverage(placement: QueryPlacement, query: Query, resolved: QueryResolution | None) -> Coverage:
    """Return what nobody read of the packages of a query, and of what they require."""
    pairs = list(_list_unjudged_pairs(placement, resolved)) if resolved is not None else []
    parts = [
        *_find_unread_kernel(query),
        *_find_unread_packages(placement),
        *_find_unread_requirements(placement, query, resolved),
        *_find_unread_code(placement),
        *(_find_undeclared(placement, resolved) if resolved is not None else ()),
        *_find_unread_names(placement.universe, pairs),
    ]
    return Coverage(
        snapshot=placement.universe.metadata.day,
        parts=tuple(parts),
        pairs_to_read=tuple(
            (pair.caller, pair.callee) for pair in pairs if placement.universe.read_releases(pair.callee[0])
        ),
        lines=query.unread,
        lines_matter=any(
            line.package is None or _may_matter(placement.universe, line.package) is not None for line in query.unread
        ),
    )


def _may_matter(universe: Universe, name: str) -> str | None:
    """Return why a package matters of whose release nothing was read, a hint for people or empty; `None` for a helper.

    It has metadata of other releases, or nearly the name of a package that has, or its name says what it is.
    """
    if universe.metadata.find_package(name) is not None:
        return ""
    near = find_nearest_name(name, (*universe.packages, *universe.metadata.names()))
    if near:
        return f" (did you mean {near}?)"
    return "" if _COMPILED_WORDS.search(name) else None


def _find_unread_kernel(query: Query) -> Iterator[UnreadPart]:
    if query.hub_kernel:
        because = "the package kernels loads it; for which torch and which GPUs it was built was not looked at"
        yield UnreadPart(package=query.hub_kernel, release="", kind=UnreadKind.GPU_CODE, because=because, matters=True)


def _find_unread_packages(placement: QueryPlacement) -> Iterator[UnreadPart]:
    """Yield the packages and extras of the query of whose release it is not known what it requires."""
    universe = placement.universe
    explicit = {package.name for package in placement.packages if package.explicit}
    for name, text in placement.uncovered.items():
        if name in placement.declared:
            continue
        package = name.partition("[")[0]
        known = universe.metadata.find_package(package)
        if known is None:
            hint = _may_matter(universe, package)
            because = "nobody read what it requires" + (hint or "")
            matters = package in explicit or hint is not None
        else:
            newest = known.domain.values[-1] if known.domain.values else NONE
            because = f"the newest release that was read is {newest}"
            matters = package in explicit or not is_helper(universe, package)
        yield UnreadPart(package=name, release=text, kind=UnreadKind.METADATA, because=because, matters=matters)
    for name, text in placement.unknown_releases.items():
        because = f"the newest release whose files were read is {universe.space.book.latest(name)}"
        yield UnreadPart(package=name, release=text, kind=UnreadKind.GPU_CODE, because=because, matters=True)
        if not any(has_metadata(universe.metadata, package) for package in placement.packages if package.name == name):
            because = "nobody read what it requires"
            yield UnreadPart(package=name, release=text, kind=UnreadKind.METADATA, because=because, matters=True)


def _find_unread_requirements(
    placement: QueryPlacement, query: Query, resolved: QueryResolution | None
) -> Iterator[UnreadPart]:
    """Yield what others require of packages that nobody read, or of releases newer than those that were read."""
    universe = placement.universe
    listed = {package.name for package in placement.packages}
    for need in resolved.supposed if resolved is not None else ():
        known = universe.metadata.find_package(need.package)
        newest = known.domain.values[-1] if known is not None else NONE
        because = f"{need.required_by} needs it, and the newest release that was read is {newest}"
        yield UnreadPart(
            package=need.package,
            release=need.specifier,
            kind=UnreadKind.METADATA,
            because=because,
            matters=not is_helper(universe, need.package),
        )
    for name in resolved.resolution.unread if resolved is not None and not resolved.findings else ():
        if name not in listed:
            because = "others require it, and any release is taken to fit"
            yield UnreadPart(package=name, release="", kind=UnreadKind.METADATA, because=because, matters=False)
    for package in query.constraints:
        if universe.metadata.find_package(package.name) is None:
            because = "the constraint on it was not looked at"
            yield UnreadPart(
                package=package.name,
                release=package.specifier,
                kind=UnreadKind.METADATA,
                because=because,
                matters=False,
            )


def _find_unread_code(placement: QueryPlacement) -> Iterator[UnreadPart]:
    """Yield the packages of the query with compiled wheels that no reader of GPU code is for."""
    universe = placement.universe
    for package in placement.packages:
        if package.name in placement.declared and list_compiled_wheels(universe.metadata, package):
            because = "only what it requires and which wheels it has was looked at"
            release = placement.declared[package.name]
            yield UnreadPart(
                package=package.name, release=release, kind=UnreadKind.GPU_CODE, because=because, matters=False
            )


def _find_undeclared(placement: QueryPlacement, resolved: QueryResolution) -> Iterator[UnreadPart]:
    """Yield the chosen releases whose requirements no artefact states; one matters where a helper would not."""
    listed = {package.name: package.explicit for package in placement.packages}
    for name, release in resolved.undeclared.items():
        because = "no artefact states it before it is built"
        of_field = name in placement.universe.packages or bool(_COMPILED_WORDS.search(name))
        yield UnreadPart(
            package=name,
            release=release,
            kind=UnreadKind.REQUIREMENTS,
            because=because,
            matters=name in listed and (listed[name] or of_field),
        )


@dataclass(frozen=True)
class _ReleasePair:
    """A release and one of a package that it may use, of which nobody judged what breaks."""

    caller: Release
    callee: Release
    unread: tuple[Release, ...]
    """Those of the two whose names the atlas lacks."""
    matters: bool


def _find_unread_names(universe: Universe, pairs: Iterable[_ReleasePair]) -> Iterator[UnreadPart]:
    """Yield the releases whose names nobody read, beside the other package of the pair."""
    beside: dict[Release, list[_ReleasePair]] = {}
    for pair in pairs:
        for release in pair.unread:
            beside.setdefault(release, []).append(pair)
    for release, its_pairs in beside.items():
        name, version = release
        known = universe.read_releases(name)
        read = f"only releases from {known[0]} to {known[-1]} were read" if known else "none of its releases were"
        others = dict.fromkeys(" ".join(pair.callee if pair.caller == release else pair.caller) for pair in its_pairs)
        yield UnreadPart(
            package=name,
            release=version,
            kind=UnreadKind.NAMES,
            because=f"{read}, so an import of or by {list_names(others, 3)} may fail",
            matters=any(pair.matters for pair in its_pairs),
        )


def _list_unjudged_pairs(placement: QueryPlacement, resolved: QueryResolution) -> Iterator[_ReleasePair]:
    """Yield a listed release and one that it may use, which is listed too or chosen, where nobody judged what breaks.

    Of packages of the atlas these are all that the one requires or breaks in some release; of others those that are of
    another time than what they require, since their authors cannot have tried them together. That matters, unless
    a file lists a package that is outside the atlas, or the list leaves the other release open: an older one may do.
    """
    universe = placement.universe
    versions = dict(resolved.resolution.settled)
    versions |= {package.name: package.version for package in placement.packages if package.version}
    listed = sorted({package.name for package in placement.packages} & versions.keys())
    named = {package.name for package in placement.packages if package.explicit}
    # What the list leaves open is installed in the newest release that fits, as the resolution chose it.
    chosen = {name: text for name, text in resolved.resolution.versions.items() if universe.read_releases(name)}
    versions = chosen | versions
    lacking = {name for name in {*listed, *chosen} if _lacks_names(universe, name, versions[name])}
    for caller, callee in product(listed, sorted({*listed, *chosen})):
        if caller == callee or (callee not in listed and caller not in lacking):
            continue
        in_atlas = [bool(universe.read_releases(name)) for name in (caller, callee)]
        if not {caller, callee} & lacking or (not in_atlas[1] and is_helper(universe, callee)):
            continue
        pair = (caller, versions[caller]), (callee, versions[callee])
        if _was_judged(universe, *pair):
            continue
        apart = _is_of_another_time(universe, *pair, extras=all(in_atlas))
        table = universe.broken_uses(caller)
        if apart or (all(in_atlas) and table is not None and callee in table.callees):
            unread = [release for release in pair if release[0] in lacking and (all(in_atlas) or release[0] == caller)]
            matters = apart and callee in listed and (all(in_atlas) or {caller, callee} <= named)
            yield _ReleasePair(*pair, tuple(unread) or pair[1:], matters)


def _lacks_names(universe: Universe, name: str, version: str) -> bool:
    """Return whether the atlas has no names of a release; what lies between two that it has was withdrawn."""
    known = universe.read_releases(name)
    return not known or not Version(known[0]) <= Version(version) <= Version(f"{known[-1]}+z")


def _was_judged(universe: Universe, caller: Release, callee: Release) -> bool:
    """Return whether a user's own reading has judged two releases."""
    table = universe.broken_uses("==".join(caller))
    return table is not None and callee[1] in table.callees.get(callee[0], ())


def _is_of_another_time(universe: Universe, caller: Release, callee: Release, *, extras: bool) -> bool:
    """Return whether a release may use a package whose release is much younger or older.

    With `extras` it is asked whether the release requires the package, or an extra of it. Else the caller is outside
    the atlas, and what requires one package of the atlas may use another that comes with it.
    """
    mine, theirs = (_find_release(universe, *item) for item in (caller, callee))
    if mine is None or theirs is None or not (mine.uploaded and theirs.uploaded):
        return False
    if abs(date.fromisoformat(theirs.uploaded) - date.fromisoformat(mine.uploaded)) < _TRIED_WITHIN:
        return False
    required = [item for line in mine.requirements if (item := parse_dependency(line)) is not None]
    if extras:
        return any(item.name == callee[0] for item in required)
    names = {item.name for item in required if not item.marked_extras}
    return callee[0] in names or (any(map(universe.read_releases, names)) and bool(universe.read_releases(callee[0])))


def _find_release(universe: Universe, name: str, version: str) -> ReleaseDeclaration | None:
    known = universe.metadata.find_package(name)
    return known.declarations.releases.get(version) if known is not None else None


def is_helper(universe: Universe, name: str) -> bool:
    """Return whether a package is plain Python beside the field: its newest release has wheels for every machine only.

    And it requires nothing that has facts about GPUs.
    """
    known = universe.metadata.find_package(name)
    if known is None or not known.domain.values:
        return False
    newest = known.releases[known.domain.newest_first(known.domain.some)[0]]
    dependencies = (parse_dependency(line) for line in newest.requirements)
    return (
        bool(newest.wheels)
        and all(tag.endswith("-none-any") for tag in newest.wheels)
        and name not in universe.packages
        and not any(item is not None and item.name in universe.packages for item in dependencies)
    )
