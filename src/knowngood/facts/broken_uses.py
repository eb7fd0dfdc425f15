"""Which uses of one package break with which releases of another, computed from the atlas of both. Pure.

A use is broken with a release of the callee that lacks the name, whose signature lacks a keyword that is passed, which
returns another number of values than are unpacked, or which passes a keyword that an overriding method does not take.
Only what is certain counts: the use must fit some release, the sources must tell, and the guards around it must be
decided by the callee's release (`guard_conditions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import RowKind
from knowngood.facts.atlas_lookup import find_parameter, parse_signature
from knowngood.facts.base_methods import BaseMethods, OpenAtlas
from knowngood.facts.broken_use_table import BrokenUse, UseFailure
from knowngood.facts.guard_program import RunningCode
from knowngood.facts.module_reach import find_reached_modules
from knowngood.facts.use_collector import fits_unpacking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from knowngood.facts.atlas_lookup import AtlasLookup, NamePresence

_INHERITED = "super"
"""The module in the target of a use of a method that a class has from its bases."""


@dataclass(frozen=True, kw_only=True)
class _Use:
    """One use in the caller's rows."""

    module: str
    target: str
    shape: str
    place: str
    guard: str
    callers: int


def find_broken_uses(
    caller: AtlasLookup,
    open_callee: OpenAtlas,
    is_shared: Callable[[str], bool] = lambda _: False,
) -> dict[str, list[BrokenUse]]:
    """Return the callee's package -> uses of it that break, in the order of the caller's modules.

    `open_callee` gives the atlas that has a top-level module, or `None`. `is_shared` says whether another package has a
    module too (flash-attn-4 has `flash_attn.cute`): what is missing in one may come from the other.
    """
    search = _Search(caller, open_callee, is_shared)
    for module in list(caller.file.modules()):
        if module.startswith("@"):
            for use in search.list_uses(module):
                search.judge_use(use)
        else:
            search.judge_overrides(module)
    return {package: list(table.values()) for package, table in sorted(search.broken.items())}


class _Search:
    """Collects what breaks of one caller."""

    def __init__(self, caller: AtlasLookup, open_callee: OpenAtlas, is_shared: Callable[[str], bool]) -> None:
        self.broken: dict[str, dict[tuple[str, str, UseFailure, str, bool, int], BrokenUse]] = {}
        self._caller = caller
        self._open = open_callee
        self._is_shared = is_shared
        self._bases = BaseMethods(caller, open_callee)
        self._running = RunningCode(caller)
        self._reach = find_reached_modules(caller)
        self._calls: dict[str, dict[str, list[tuple[str, int]]]] = {}

    def list_uses(self, module: str) -> Iterator[_Use]:
        """Yield the uses in a module's rows, with those of inherited methods traced to the packages that have them."""
        own = module[1:]
        for text, place, guard, callers in self._caller.file.rows(module):
            target, _, shape = text.partition(" ")
            top, _, path = target.partition(":")
            if top != _INHERITED:
                yield _Use(module=own, target=target, shape=shape, place=place, guard=guard, callers=callers)
                continue
            owner, _, method = path.rpartition(".")
            for home, releases in self._bases.find_owners(own, owner, method).items():
                if releases & callers:
                    yield _Use(
                        module=own,
                        target=f"{home}.{method}",
                        shape=shape,
                        place=place,
                        guard=guard,
                        callers=releases & callers,
                    )

    def judge_use(self, use: _Use) -> None:
        """Take a use when some releases of its callee break it."""
        callee = self._find_callee(use.target)
        if callee is None:
            return
        failing = list(_find_failures(callee, use.target, use.shape))
        if not failing:
            return
        for callers, running in self._running.find_releases(
            use.guard, use.module, use.callers, callee, at_import=not use.place
        ):
            for failure, detail, callees in failing:
                if callees & running:
                    self._take(callee, replace(use, callers=callers), failure, detail, callees & running)

    def judge_overrides(self, module: str) -> None:
        """Take the methods of a module's classes that do not take what a base of another package passes to them."""
        rows = self._caller.file.rows(module)
        classes = {path for path, kind, bases, _ in rows if kind == RowKind.CLASS and bases}
        for path, kind, signature, mask in rows:
            owner, _, method = path.rpartition(".")
            if kind != RowKind.FUNCTION or owner not in classes or method.startswith("__"):
                continue
            for home, releases in self._bases.find_owners(module, owner, method).items():
                callee = self._find_callee(home) if releases & mask else None
                if callee is None:
                    continue
                use = _Use(
                    module=module,
                    target=f"{home}.{method}",
                    shape="",
                    place=path,
                    guard="",
                    callers=releases & mask,
                )
                for keyword, callees in self._find_refused(callee, home, method, signature):
                    self._take(callee, use, UseFailure.OVERRIDE, keyword, callees)

    def _find_callee(self, target: str) -> AtlasLookup | None:
        place = target.partition(":")[0]
        callee = self._open(place.partition(".")[0])
        if callee is None or callee.file.package == self._caller.file.package or self._is_shared(place):
            return None
        return callee

    def _find_refused(self, callee: AtlasLookup, home: str, method: str, signature: str) -> Iterator[tuple[str, int]]:
        """Yield the keywords that a base passes to its own method and a signature refuses, with the base's releases."""
        names = parse_signature(signature)
        calls = self._list_calls(callee, home).get(method, ())
        if not calls or any(name.startswith("**") for name in names):
            return
        refused: dict[str, int] = {}
        for shape, mask in calls:
            for keyword in _keywords(shape):
                if keyword not in names:
                    refused[keyword] = refused.get(keyword, 0) | mask
        there = callee.find_name(f"{home.replace(':', '.')}.{method}").present
        yield from ((keyword, mask) for keyword, mask in refused.items() if there & ~mask)

    def _list_calls(self, callee: AtlasLookup, home: str) -> Mapping[str, list[tuple[str, int]]]:
        """Return method -> shape and releases of the calls that a class makes of its own methods."""
        if home not in self._calls:
            calls = self._calls[home] = dict[str, list[tuple[str, int]]]()
            followed = BaseMethods(callee, self._open)
            for place, releases in callee.find_name(home.replace(":", ".")).homes.items():
                module, _, owner = place.partition(":")
                for part, name, here in followed.list_ancestors(module, owner) if owner else ():
                    for path, kind, shape, mask in callee.file.rows(part):
                        if kind == RowKind.CALL and path.rpartition(".")[0] == name and mask & here & releases:
                            calls.setdefault(path.rpartition(".")[2], []).append((shape, mask & here & releases))
        return self._calls[home]

    def _take(self, callee: AtlasLookup, use: _Use, failure: UseFailure, detail: str, callees: int) -> None:
        key = (use.module, use.target, failure, detail, bool(use.place), callees)
        table = self.broken.setdefault(callee.file.package, {})
        before = table.get(key)
        mask = use.callers | (before.callers if before else 0)
        table[key] = BrokenUse(
            module=use.module,
            target=use.target,
            failure=failure,
            detail=detail,
            place=before.place if before else use.place,
            callers=mask,
            reached=mask & self._reach.get(use.module, 0) if not use.place else 0,
            callees=callees,
        )


def _find_failures(callee: AtlasLookup, target: str, shape: str) -> Iterator[tuple[UseFailure, str, int]]:
    """Yield how a use fails, the keyword or the number of names, and the callee's releases with which it does."""
    dotted = target.replace(":", ".")
    presence = callee.find_name(dotted)
    if not shape:
        missing = callee.every & ~presence.present & ~presence.unclear
        if missing and presence.present:
            yield UseFailure.NAME, "", missing
        return
    call, _, unpacked = shape.partition("=")
    if unpacked:
        yield from _find_misfits(callee, presence.homes, unpacked)
        return
    for keyword in _keywords(call):
        if refused := _find_refusing(callee, dotted, presence, keyword):
            yield UseFailure.KEYWORD, keyword, refused


def _find_refusing(callee: AtlasLookup, dotted: str, presence: NamePresence, keyword: str) -> int:
    """The releases whose signature lacks a keyword that another release has."""
    signatures = presence.signatures
    if not signatures and presence.kinds.get("class"):
        signatures = callee.find_name(f"{dotted}.__init__").signatures
    lacking = having = 0
    for text, mask in signatures.items():
        names = parse_signature(text)
        if keyword in names:
            having |= mask
        elif not any(name.startswith("**") for name in names):
            lacking |= mask
    if not having or not lacking & ~having:
        return 0
    return (
        lacking & ~having & find_parameter(callee, dotted, keyword).refused
    )  # a decorator may still take the old name


def _find_misfits(
    callee: AtlasLookup, homes: Mapping[str, int], unpacked: str
) -> Iterator[tuple[UseFailure, str, int]]:
    """Yield the releases in which a function returns another number of values than are unpacked."""
    fitting = other = 0
    for home, releases in homes.items():
        module, _, path = home.partition(":")
        for name, kind, counts, mask in callee.file.rows(module) if path else ():
            if name == path and kind == RowKind.RETURNS:
                fits = any(fits_unpacking(unpacked, int(count)) for count in counts.split(","))
                fitting |= mask & releases if fits else 0
                other |= 0 if fits else mask & releases
    if fitting and other & ~fitting:
        yield UseFailure.VALUES, unpacked, other & ~fitting


def _keywords(shape: str) -> list[str]:
    """The keywords in `(2,a,b,*)`."""
    return [word for word in shape.strip("()").split(",")[1:] if word != "*"]
