"""Uses of one package by another that their releases break, from the stored tables: boxes and findings. Pure.

Of packages with facts, pairs of which one cannot be imported are boxes, so that `pick` and suggestions avoid
them too. What breaks only in a module, and what breaks between other packages, are findings about settled releases.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.rule import Rule
from knowngood_facts.compat.rule_boxes import Box
from knowngood_facts.compat.value_domain import ReleaseDomain, ValueDomain, iterate_bits
from knowngood_facts.facts.broken_use_table import BrokenUse, BrokenUseTable, UseFailure

USES = "uses:"
"""With this begins the id of a finding about a pair."""

CALLS = "calls:"
"""With this begins the id of the finding about functions that fail when they run."""

ReadTable = Callable[[str], BrokenUseTable | None]
"""Returns the table of a caller, or `None` when there is none.

Asked for `trl==0.7.1` it is that of one release, which a user read beside those of the atlas."""


def no_broken_uses(_: str) -> BrokenUseTable | None:
    """Return `None`: no caller has a table."""


_SHOWN = 2
"""So many uses of a pair are named; `knowngood api --breaks` lists all."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A release of a caller and one of a callee, as places in the lists of a table."""

    table: BrokenUseTable
    callee: str
    mine: int
    theirs: int
    in_atlas: bool = True
    """Whether the table is of the atlas, so that `api` can list its uses."""

    def describe_command(self, mine: str, theirs: str) -> str:
        """Return the command that lists all uses of the pair; empty where none does."""
        command = f"`knowngood api --breaks {self.table.package}=={mine} {self.callee}=={theirs}`"
        return command if self.in_atlas else ""

    @property
    def stops(self) -> list[BrokenUse]:
        """The uses that make the import of the whole package fail."""
        uses = _stopping_uses(self.table, self.callee)
        return [use for use in uses if self._is_broken(use, self.mine, self.theirs) and self.stops_import(use)]

    @property
    def uses(self) -> list[BrokenUse]:
        """The uses that break at an import: first of the package, then of a module that it does not import itself."""
        broken = (use for use in self.table.uses[self.callee] if self._is_broken(use, self.mine, self.theirs))
        return sorted(broken, key=lambda use: (not self.stops_import(use), not self.is_exported(use)))

    def stops_import(self, use: BrokenUse) -> bool:
        """Return whether a use that breaks makes the import of the whole package fail, or of what it is for."""
        return bool(use.stopping >> self.mine & 1)

    def is_exported(self, use: BrokenUse) -> bool:
        """Return whether a use that breaks makes the import of a name fail that the package exports lazily."""
        return bool(use.exported >> self.mine & 1)

    def nearest_callee(self) -> str | None:
        """Return the nearest release of the callee with which this caller can be imported, or `None`."""
        releases = self.table.callees[self.callee]
        places = _by_distance(self.theirs, releases)
        return next((releases[place] for place in places if self._is_importable(self.mine, place)), None)

    def nearest_caller(self) -> str | None:
        """Return the nearest release of the caller that can be imported with this callee, or `None`."""
        releases = self.table.releases
        places = _by_distance(self.mine, releases)
        return next((releases[place] for place in places if self._is_importable(place, self.theirs)), None)

    def _is_importable(self, mine: int, theirs: int) -> bool:
        uses = self.table.uses[self.callee]
        return not any(use.stopping >> mine & 1 and self._is_broken(use, mine, theirs) for use in uses)

    @staticmethod
    def _is_broken(use: BrokenUse, mine: int, theirs: int) -> bool:
        return not use.place and bool(use.callers >> mine & 1 and use.callees >> theirs & 1)


@dataclass(frozen=True, kw_only=True)
class ExcludedReleases:
    """Releases of one package that do not go with a release of another, of which one imports the other."""

    releases: Sequence[str]
    """Those that somebody read, oldest first."""
    mask: int
    """Those of them that do not go with the other package, as bits."""
    reason: Finding
    """Why, in the words for the newest of them."""

    @classmethod
    def of(cls, releases: Sequence[str], mask: int, newest: _Pair) -> ExcludedReleases:
        """Return these releases with the finding about a pair."""
        return cls(releases=releases, mask=mask, reason=_pair_finding(newest, newest.stops))

    def mask_in(self, domain: ValueDomain) -> int:
        """Return the values of a domain that are these releases."""
        masks = _releases_in_domain(domain, self.releases, self.mask)
        return masks.read | masks.between


def find_broken_pairs(
    versions: Mapping[str, str], read: ReadTable, callers: Collection[str] | None = None
) -> list[Finding]:
    """Return a finding for each pair of these releases of which one needs at an import what the other lacks.

    It is an error when importing the caller fails, or what it is for; a warning when a name fails that it exports
    lazily; and an information when another module fails, which importing the caller does not import. Of uses inside
    functions `find_failing_calls` tells.

    Args:
        versions: package -> release, of the packages whose release is settled.
        read: gives the table of a caller.
        callers: the packages whose imports are looked at; all of them when it is left out.
    """
    return [_pair_finding(pair, uses) for pair in _list_judged_pairs(versions, read, callers) if (uses := pair.uses)]


def _list_judged_pairs(
    versions: Mapping[str, str], read: ReadTable, callers: Collection[str] | None = None
) -> Iterator[_Pair]:
    """Yield the pairs of these releases of which a table tells what breaks: that of the atlas, else that of a user."""
    for caller in versions if callers is None else [name for name in versions if name in callers]:
        judged, version = set[str](), versions[caller]
        for key in (caller, f"{caller}=={version}"):
            table = read(key)
            mine = None if table is None else _place_of(version, table.releases)
            if table is None or mine is None:
                continue
            for callee in [name for name in table.callees if name in versions and name not in judged]:
                theirs = _place_of(versions[callee], table.callees[callee])
                if theirs is not None:
                    judged.add(callee)
                    yield _Pair(table=table, callee=callee, mine=mine, theirs=theirs, in_atlas=key == caller)


def find_failing_calls(versions: Mapping[str, str], read: ReadTable) -> Iterator[Finding]:
    """Yield one information about all functions of these releases that fail when they run, if there are any.

    Args:
        versions: package -> release, of the packages that a query names.
        read: gives the table of a caller.
    """
    texts, packages, first = [], dict[str, str](), ""
    for pair in _list_judged_pairs(versions, read):
        caller, callee = pair.table.package, pair.callee
        uses = [
            use for use in pair.table.uses[callee] if use.callers >> pair.mine & 1 and use.callees >> pair.theirs & 1
        ]
        places = dict.fromkeys(use.place for use in uses if use.place)
        if places:
            texts.append(f"{len(places)} of {caller} with {callee} (`{next(iter(places))}`)")
            packages |= {name: versions[name] for name in (caller, callee)}
            command = pair.describe_command(versions[caller], versions[callee])
            first = first or (f"; {command} lists them" if command else "")
    if texts:
        more = f" and of {len(texts) - _SHOWN} more pairs" if len(texts) > _SHOWN else ""
        yield Finding(
            id=CALLS + "+".join(packages),
            kind="fact",
            severity="info",
            packages=packages,
            because=f"functions that fail where they run: {', '.join(texts[:_SHOWN])}{more}{first}",
            source=("the sources of both",),
            confidence="artefact",
        )


def boxes_of_broken_pairs(
    packages: Collection[str], domains: Mapping[str, ValueDomain], read: ReadTable
) -> Iterator[Box]:
    """Yield boxes of the releases of which one cannot be imported with the other; one for each wording of the reason.

    Args:
        packages: those with facts; only pairs of these are in boxes.
        domains: package -> its releases.
        read: gives the table of a caller.
    """
    for caller in packages:
        table = read(caller)
        for callee in table.callees if table is not None else ():
            if table is not None and callee in packages:
                for because, mine, theirs in _broken_releases(table, callee):
                    callers = _releases_in_domain(domains[caller], table.releases, mine)
                    callees = _releases_in_domain(domains[callee], table.callees[callee], theirs)
                    for read_both, masks in (
                        (True, (callers.read, callees.read)),
                        (False, (callers.between, callees.read | callees.between)),
                        (False, (callers.read, callees.between)),
                    ):
                        if all(masks):
                            rule = _pair_rule(caller, callee, because, read_both=read_both)
                            yield Box(rule=rule, masks=dict(zip((caller, callee), masks, strict=True)))


def _pair_rule(caller: str, callee: str, because: str, *, read_both: bool) -> Rule:
    of = "" if read_both else "the releases around "
    return Rule(
        id=f"{USES}{caller}:{callee}",
        require={},
        because=because,
        source=(f"the sources of {of}{caller} {{{caller}}} and {callee} {{{callee}}}",),
        kind="fact",
    )


def find_excluded_releases(
    name: str, version: str, packages: Collection[str], read: ReadTable
) -> dict[str, ExcludedReleases]:
    """Return which releases of these packages cannot be imported with a release, or keep it from being imported.

    Args:
        name: a package, which may be the caller or the callee.
        version: its release.
        packages: the others.
        read: gives the table of a caller.
    """
    excluded = {}
    own = read(name)
    for other in packages:
        mine = _place_of(version, own.releases) if own is not None and other in own.callees else None
        if own is not None and mine is not None and (mask := _callees_stopping(own, other, mine)):
            pair = _Pair(table=own, callee=other, mine=mine, theirs=mask.bit_length() - 1)
            excluded[other] = ExcludedReleases.of(own.callees[other], mask, pair)
        table = read(other)
        theirs = _place_of(version, table.callees[name]) if table is not None and name in table.callees else None
        if table is not None and theirs is not None and (mask := _callers_stopped(table, name, theirs)):
            pair = _Pair(table=table, callee=name, mine=mask.bit_length() - 1, theirs=theirs)
            excluded[other] = ExcludedReleases.of(table.releases, mask, pair)
    return excluded


def _broken_releases(table: BrokenUseTable, callee: str) -> Iterator[tuple[str, int, int]]:
    """Yield the reason why a package cannot be imported, the caller's releases, and those of the callee, as masks.

    The reason has the names of both packages in braces for their releases.
    """
    groups: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    stopped = 0
    for use in _stopping_uses(table, callee):
        stopped |= use.stopping & use.callers
    for mine in iterate_bits(stopped):
        for theirs in iterate_bits(_callees_stopping(table, callee, mine)):
            pair = _Pair(table=table, callee=callee, mine=mine, theirs=theirs)
            because = _describe_pair(pair, pair.stops, f"{{{table.package}}}", f"{{{callee}}}")
            groups[because][mine] |= 1 << theirs
    for because, group in groups.items():
        callers: dict[int, int] = defaultdict(int)
        for mine, theirs in group.items():
            callers[theirs] |= 1 << mine
        yield from ((because, mine, theirs) for theirs, mine in callers.items())


def _stopping_uses(table: BrokenUseTable, callee: str) -> list[BrokenUse]:
    """Return the uses that make the import of the whole package fail, in any of its releases."""
    return [use for use in table.uses[callee] if use.stopping and not use.place]


def _callees_stopping(table: BrokenUseTable, callee: str, mine: int) -> int:
    """Return the callee's releases with which a release of the caller cannot be imported, as a mask."""
    mask = 0
    for use in _stopping_uses(table, callee):
        if use.stopping & use.callers & 1 << mine:
            mask |= use.callees
    return mask


def _callers_stopped(table: BrokenUseTable, callee: str, theirs: int) -> int:
    """Return the caller's releases that cannot be imported with a release of the callee, as a mask."""
    mask = 0
    for use in _stopping_uses(table, callee):
        if use.callees & 1 << theirs:
            mask |= use.stopping & use.callers
    return mask


class _DomainMasks(NamedTuple):
    """Values of a domain, as masks."""

    read: int
    """The releases of a table, builds of other indexes among them."""
    between: int
    """Releases that nobody read, because they were withdrawn, with two releases of the table next to them."""


def _releases_in_domain(domain: ValueDomain, releases: Sequence[str], mask: int) -> _DomainMasks:
    """Return the values of a domain that are these releases of a table, or that lie between two of them."""
    own = [(place, domain.mask(f"=={releases[place]}")) for place in iterate_bits(mask)]
    read = between = 0
    for _, values in own:
        read |= values
    for (place, lower), (following, upper) in itertools.pairwise(own):
        if following == place + 1 and lower and upper:
            between |= (1 << upper.bit_length() - 1) - (1 << lower.bit_length())
    return _DomainMasks(read, between & ~read)


def _describe_pair(pair: _Pair, uses: Sequence[BrokenUse], mine: str, theirs: str) -> str:
    """Say which uses of a pair break, with these words for the two releases."""
    because = f"{pair.table.package} {mine} " + "; it ".join(_describe_use(pair, use) for use in uses[:_SHOWN])
    if len(uses) > _SHOWN:
        command = pair.describe_command(mine, theirs)
        because += f"; and {len(uses) - _SHOWN} more" + (f" ({command})" if command else "")
    return because


def _pair_finding(pair: _Pair, uses: Sequence[BrokenUse]) -> Finding:
    caller, callee = pair.table.package, pair.callee
    mine, theirs = pair.table.releases[pair.mine], pair.table.callees[callee][pair.theirs]
    stops = pair.stops_import(uses[0])
    fixes = [
        {"change": {name: version}, "note": note}
        for name, version, note in (
            (callee, pair.nearest_callee(), f"the nearest release with which {caller} {mine} can be imported"),
            (caller, pair.nearest_caller(), f"the nearest release that can be imported with {callee} {theirs}"),
        )
        if stops and version is not None
    ]
    return Finding(
        id=f"{USES}{caller}:{callee}",
        kind="fact",
        severity="error" if stops else "warning" if pair.is_exported(uses[0]) else "info",
        packages={caller: mine, callee: theirs},
        because=_describe_pair(pair, uses, mine, theirs),
        source=(f"the sources of {caller} {mine} and {callee} {theirs}",),
        confidence="artefact",
        fix=tuple(fixes),
    )


def _describe_use(pair: _Pair, use: BrokenUse) -> str:
    """Return ``imports `x` of `m`, gone since transformers 4.39.0: fails at `import trl.core` ``."""
    releases = pair.table.callees[pair.callee]
    since = _describe_gap(use.callees, pair.theirs, pair.callee, releases)
    module, colon, name = use.target.partition(":")
    if use.failure is UseFailure.KEYWORD:
        what = f"passes `{use.detail}` to `{use.target.replace(':', '.')}`, a parameter {since}"
    elif use.failure is UseFailure.VALUES:
        what = f"unpacks what `{use.target.replace(':', '.')}` returns into {use.detail} names, another number {since}"
    elif colon:
        what = f"uses `{name}` of `{module}`, {since}"
    else:
        what = f"imports `{module}`, {since}"
    top = use.module.partition(".")[0]
    if pair.is_exported(use) and not use.reached >> pair.mine & 1:
        return f"{what}: fails at `from {top} import {use.exports}` (in `{use.module}`)"
    if pair.stops_import(use):
        return f"{what}: fails at `import {top}`" + (f" (in `{use.module}`)" if top != use.module else "")
    return f"{what}: fails at `import {use.module}`"


def _describe_gap(missing: int, place: int, package: str, releases: Sequence[str]) -> str:
    """Say which releases around this one lack it: `gone since transformers 4.39.0`, `new in transformers 4.46.0`."""
    first = last = place
    while first and missing >> (first - 1) & 1:
        first -= 1
    while missing >> (last + 1) & 1:
        last += 1
    if last + 1 == len(releases):
        return f"gone since {package} {releases[first]}"
    if not first:
        return f"new in {package} {releases[last + 1]}"
    return f"not in {package} {releases[first]}" + (f" to {releases[last]}" if last > first else "")


def _by_distance(place: int, releases: Sequence[str]) -> list[int]:
    """Return the other places, the nearest first; of two as near, the older."""
    return sorted((other for other in range(len(releases)) if other != place), key=lambda other: abs(other - place))


def _place_of(version: str, releases: Sequence[str]) -> int | None:
    if version in releases:
        return releases.index(version)
    same = ReleaseDomain("", releases).mask(f"=={version}")
    return same.bit_length() - 1 if same else None
