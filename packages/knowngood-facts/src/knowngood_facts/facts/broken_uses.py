"""Which uses of one package break with which releases of another, computed from the atlas of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_text
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.facts.atlas_file import AtlasFile, RowKind
from knowngood_facts.facts.atlas_harvest import parse_atlas_field
from knowngood_facts.facts.atlas_lookup import (
    AtlasLookup,
    find_owner,
    find_parameter,
    list_owners,
    open_atlas,
    parse_signature,
)
from knowngood_facts.facts.broken_use_table import (
    BrokenUse,
    BrokenUseTable,
    UseFailure,
)
from knowngood_facts.facts.guard_program import RunningCode
from knowngood_facts.facts.use_collector import fits_unpacking

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from knowngood_facts.facts.atlas_lookup import NamePresence

_CLASSES_AND_IMPORTS = lazy_pattern(
    rf"(?m)^([^\t\n]*)\t([{RowKind.CLASS}{RowKind.IMPORT}{RowKind.STAR}])\t([^\t\n]+)\t"
)
_NAMES_OF_BASES = lazy_pattern(r"[^.:,?]+")
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
    purposes: Collection[str] = (),
    among: Collection[str] | None = None,
) -> dict[str, list[BrokenUse]]:
    """Return the callee's package -> uses of it that break, in the order of the caller's modules.

    `open_callee` gives the atlas that has a top-level module, or `None`. `is_shared` says whether another package has a
    module too (flash-attn-4 has `flash_attn.cute`): what is missing in one may come from the other. `purposes` are the
    names of the caller that people install it for. `among` are the packages whose use is judged; None for all.
    """
    search = _Search(caller, open_callee, is_shared, purposes, among)
    for module in list(caller.file.modules()):
        if module.startswith("@"):
            for use in search.list_uses(module):
                search.judge_use(use)
        elif module in search.deriving:
            search.judge_overrides(module)
    return {package: list(table.values()) for package, table in sorted(search.broken.items())}


class _Search:
    """Collects what breaks of one caller."""

    def __init__(
        self,
        caller: AtlasLookup,
        open_callee: OpenAtlas,
        is_shared: Callable[[str], bool],
        purposes: Collection[str],
        among: Collection[str] | None,
    ) -> None:
        self.broken: dict[str, dict[tuple[str, str, UseFailure, str, bool, int], BrokenUse]] = {}
        self._caller = caller
        self._open = open_callee
        self._is_shared = is_shared
        self._purposes = purposes
        self._among = among
        self._judged: dict[str, bool] = {}
        self._bases = BaseMethods(caller, open_callee)
        self._running = RunningCode(caller)
        self._calls: dict[str, dict[str, list[tuple[str, int]]]] = {}

    @cached_property
    def _exports(self) -> Mapping[str, ModuleExports]:
        return find_exports(self._caller, self._purposes)

    @cached_property
    def _reach(self) -> Mapping[str, int]:
        return find_reached_modules(self._caller)

    @cached_property
    def deriving(self) -> Mapping[str, set[str]]:
        """Module -> its classes that may derive from a class of a judged package.

        Bases are followed by their last names alone, whatever module these are of: that takes too many classes rather
        than too few, and in a hundredth of the time that following imports takes.
        """
        classes: dict[str, set[str]] = {}
        named: dict[str, set[str]] = defaultdict(set)
        todo: list[str] = []
        for module, text in self._caller.file.sections():
            for path, kind, detail in _CLASSES_AND_IMPORTS.findall(text) if not module.startswith("@") else ():
                name, target = path.rpartition(".")[2], detail.removesuffix("?")
                if kind == RowKind.CLASS:
                    classes.setdefault(module, set()).add(path)
                    for part in _NAMES_OF_BASES.findall(target):
                        named[part].add(name)
                elif self._is_judged(target):
                    todo.append(name)
                elif name != (last := _NAMES_OF_BASES.findall(target)[-1]):
                    named[last].add(name)
        if "*" not in todo:  # what a star imports has any name
            used: set[str] = set()
            while todo:
                if (name := todo.pop()) not in used:
                    used.add(name)
                    todo += named[name]
            kept = {
                module: {path for path in paths if path.rpartition(".")[2] in used} for module, paths in classes.items()
            }
            return {module: paths for module, paths in kept.items() if paths}
        return classes

    def _is_judged(self, target: str) -> bool:
        """Whether the use of a module or a name is judged: its package is one of those, and not the caller itself."""
        top = _first_name(target)
        if top not in self._judged:
            callee = self._open(top)
            package = callee.file.package if callee is not None else self._caller.file.package
            self._judged[top] = package != self._caller.file.package and (self._among is None or package in self._among)
        return self._judged[top]

    def list_uses(self, module: str) -> Iterator[_Use]:
        """Yield the uses in a module's rows, with those of inherited methods traced to the packages that have them."""
        own = module[1:]
        for text, place, guard, callers in self._caller.file.rows(module):
            target, _, shape = text.partition(" ")
            top, _, path = target.partition(":")
            if top != _INHERITED:
                if self._is_judged(target):
                    yield _Use(module=own, target=target, shape=shape, place=place, guard=guard, callers=callers)
                continue
            owner, _, method = path.rpartition(".")
            if owner not in self.deriving.get(own, ()):
                continue
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
        classes = self.deriving[module]
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
        return self._open(_first_name(place)) if self._is_judged(place) and not self._is_shared(place) else None

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
        exports = self._exports.get(use.module, ModuleExports()) if not use.place else ModuleExports()
        table[key] = BrokenUse(
            module=use.module,
            target=use.target,
            failure=failure,
            detail=detail,
            place=before.place if before else use.place,
            callers=mask,
            reached=mask & self._reach.get(use.module, 0) if not use.place else 0,
            callees=callees,
            needed=mask & exports.needed,
            exported=mask & exports.exported,
            exports=", ".join(list(exports.names)[:_NAMED_EXPORTS]) if mask & exports.exported else "",
        )


def _first_name(target: str) -> str:
    """Return `lib` for `lib.part:name`."""
    return target.partition(":")[0].partition(".")[0]


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


_DEPTH = 8
"""How many classes are followed one after another."""

OpenAtlas = Callable[[str], AtlasLookup | None]
"""Gives the atlas that has a top-level module, or `None`."""


class BaseMethods:
    """Follows the bases of one package's classes."""

    def __init__(self, caller: AtlasLookup, open_callee: OpenAtlas) -> None:
        self._caller = caller
        self._open = open_callee
        self._rows: dict[str, dict[str, list[tuple[str, str, int]]]] = {}
        self._homes: dict[tuple[str, str], dict[str, int]] = {}

    def find_owners(self, module: str, owner: str, method: str) -> dict[str, int]:
        """Return `lib.part:Base` -> releases of the caller in which `super().method` in a class is that base's.

        Bases of packages that the atlas does not have, and methods that the caller's own classes define, are left out.
        """
        owners: dict[str, int] = {}
        self._walk(module, owner, method, self._caller.every, owners, _DEPTH)
        return owners

    def list_ancestors(self, module: str, owner: str, depth: int = _DEPTH) -> Iterator[tuple[str, str, int]]:
        """Yield module, class and releases of a class and of those of its ancestors that are the package's own."""
        yield module, owner, self._caller.every
        for bases, mask in self._classes(module, owner) if depth else ():
            for base in bases:
                for home, releases in self._find_homes(module, base).items():
                    if self._is_own(home):
                        place, _, name = home.partition(":")
                        for other, path, both in self.list_ancestors(place, name, depth - 1):
                            yield other, path, both & releases & mask

    def _walk(  # noqa: PLR0913, PLR0917 - one step through the tree of bases
        self, module: str, owner: str, method: str, mask: int, owners: dict[str, int], depth: int
    ) -> int:
        """Add to `owners` for the releases in `mask`; return those that are settled, by whomever."""
        settled = 0
        for bases, releases in self._classes(module, owner) if depth else ():
            todo = mask & releases
            for base in bases:
                for home, there in self._find_homes(module, base).items():
                    here = todo & there
                    if here:
                        done = self._settle(home, method, here, owners, depth)
                        todo &= ~done
                        settled |= done
        return settled

    def _settle(self, home: str, method: str, mask: int, owners: dict[str, int], depth: int) -> int:
        """Look for a method in one base; return the releases in which it has it, or may have it."""
        place, _, name = home.partition(":")
        if self._is_own(home):
            defined = mask & self._releases_with(place, f"{name}.{method}")
            return defined | self._walk(place, name, method, mask & ~defined, owners, depth - 1)
        callee = self._open(place.partition(".")[0])
        if callee is None:
            return mask
        presence = callee.find_name(f"{place}.{name}.{method}")
        if not presence.present:
            return mask if presence.unclear else 0
        owners[home] = owners.get(home, 0) | mask
        return mask

    def _releases_with(self, module: str, path: str) -> int:
        releases = 0
        for _, _, mask in self._read(module).get(path, ()):
            releases |= mask
        return releases

    def _is_own(self, home: str) -> bool:
        return home.partition(":")[0].partition(".")[0] == self._caller.file.root

    def _classes(self, module: str, owner: str) -> Iterator[tuple[list[str], int]]:
        """Yield the bases of a class, as written, with the releases."""
        for kind, bases, mask in self._read(module).get(owner, ()):
            if kind == RowKind.CLASS:
                yield [base for base in bases.split(",") if base not in {"", "?", "object"}], mask

    def _find_homes(self, module: str, base: str) -> dict[str, int]:
        """Return where a base is defined: `module:Class` -> releases; empty for builtins and the standard library."""
        key = (module, base)
        if key not in self._homes:
            homes = self._caller.find_name(f"{module}.{base}").homes
            self._homes[key] = {home: mask for home, mask in homes.items() if ":" in home}
        return self._homes[key]

    def _read(self, module: str) -> dict[str, list[tuple[str, str, int]]]:
        if module not in self._rows:
            rows = self._rows[module] = dict[str, list[tuple[str, str, int]]]()
            for path, kind, detail, mask in self._caller.file.rows(module):
                rows.setdefault(path, []).append((kind, detail, mask))
        return self._rows[module]


def find_reached_modules(caller: AtlasLookup, start: str = "") -> Mapping[str, int]:
    """Return module -> releases, as bits, in which importing `start` imports it too.

    `start` is a module of the caller, with the packages around it; its top-level module when empty.
    """
    reach: dict[str, int] = {}
    todo = [(parent, caller.every) for parent in _with_parents(start or caller.file.root)]
    while todo:
        module, releases = todo.pop()
        new = releases & ~reach.get(module, 0)
        if not new:
            continue
        reach[module] = reach.get(module, 0) | new
        todo += [(other, mask & new) for other, mask in _imports_of(caller, module).items() if mask & new]
    return reach


_NAMED_EXPORTS = 3


@dataclass(kw_only=True)
class ModuleExports:
    """The names that a package exports lazily and that importing a module gives, with the releases as bits."""

    needed: int = 0
    """The releases in which a name that people install the package for needs the module."""
    exported: int = 0
    """The releases that export a name of the module, or need it."""
    names: dict[str, None] = field(default_factory=dict)


def find_exports(caller: AtlasLookup, purposes: Collection[str]) -> Mapping[str, ModuleExports]:
    """Return what the top-level module of a package exports lazily of each of its modules.

    Of the names in `purposes`, every module that importing them imports counts; of others, the one that has the name.
    """
    exports: dict[str, ModuleExports] = defaultdict(ModuleExports)
    lazy = ((name, *row) for name, rows in _lazy_names(caller, caller.file.root).items() for row in rows)
    for name, module, mask in sorted(lazy, key=lambda row: row[0] not in purposes):
        for home, releases in _find_lazy_homes(caller, name, module, mask):
            reached = find_reached_modules(caller, home) if name in purposes else {home: releases}
            for other, here in reached.items():
                if here & releases:
                    exports[other].names[name] = None
                    exports[other].exported |= here & releases
                    exports[other].needed |= here & releases if name in purposes else 0
    return exports


@cache
def _lazy_names(caller: AtlasLookup, module: str) -> Mapping[str, list[tuple[str, int]]]:
    """Return name -> the modules that a module exports it from lazily, with the releases."""
    names: dict[str, list[tuple[str, int]]] = {}
    for path, kind, detail, releases in caller.file.rows(module):
        if kind == RowKind.LAZY:
            names.setdefault(path, []).append((detail, releases))
    return names


def _find_lazy_homes(caller: AtlasLookup, name: str, module: str, mask: int) -> Iterator[tuple[str, int]]:
    """Yield the modules that have a lazily exported name, which a folder between may export lazily too."""
    left = mask
    for detail, releases in _lazy_names(caller, module).get(name, ()):
        if detail != module and releases & left:
            yield from _find_lazy_homes(caller, name, detail, releases & left)
            left &= ~releases
    if left:
        yield module, left


@cache
def _imports_of(caller: AtlasLookup, module: str) -> Mapping[str, int]:
    """Return the modules that a module imports itself, with the releases."""
    imports: dict[str, int] = {}
    for _, kind, detail, mask in caller.file.rows(module):
        if kind not in {RowKind.IMPORT, RowKind.STAR} or detail.endswith("?"):
            continue
        base, _, name = detail.partition(":")
        if base.partition(".")[0] != caller.file.root:
            continue
        for other in _with_parents(base):
            imports[other] = imports.get(other, 0) | mask
        for other, releases in _modules_of_name(caller, base, name) if name else ():
            imports[other] = imports.get(other, 0) | (mask & releases)
    return imports


def _modules_of_name(caller: AtlasLookup, base: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield the modules that `from base import name` imports beside `base`: a submodule, or what it exports lazily."""
    submodule = f"{base}.{name}"
    for path, kind, _, mask in caller.file.rows(submodule):
        if not path and kind == RowKind.MODULE:
            yield submodule, mask
    for path, kind, detail, mask in caller.file.rows(base):
        if path == name and kind == RowKind.LAZY:
            yield detail, mask


def _with_parents(module: str) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for `a.b.c`: all are imported with it."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def read_purposes(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return package -> the names that people install it for, from the list of the atlas; none where it has none."""
    try:
        text = read_data_text(folder / "packages.yaml")
    except FileNotFoundError:
        return {}
    return parse_atlas_field(text, "packages.yaml").purposes


def compute_broken_uses(
    package: str, folder: Path, among: Collection[str] | None = None, source: Path | None = None
) -> BrokenUseTable:
    """Compute the table of one package of the atlas, which takes seconds.

    Args:
        package: the package that uses others.
        folder: the atlas.
        among: the packages whose use is judged; None for all.
        source: the file with the caller's releases; None for the one in the atlas.

    Raises:
        FileNotFoundError: the atlas does not have the package.
        InputError: a file of the atlas is damaged.
    """
    # Not the one that `open_atlas` keeps: what is read of a caller is of no use for the next one, and much.
    caller = AtlasLookup(AtlasFile(source or folder / f"{package}.atlas"))
    _lazy_names.cache_clear()
    _imports_of.cache_clear()
    callees: dict[str, AtlasLookup] = {}

    def open_module(module: str) -> AtlasLookup | None:
        name = find_owner(module, folder)
        callee = open_atlas(name, folder) if name else None
        if callee is not None:
            callees[callee.file.package] = callee
        return callee

    def is_shared(module: str) -> bool:
        others = list_owners(module.partition(".")[0], folder)[1:]
        return any(other.file.rows(module) for name in others if (other := open_atlas(name, folder)) is not None)

    uses = find_broken_uses(caller, open_module, is_shared, read_purposes(folder).get(package, ()), among)
    return BrokenUseTable(
        package=package,
        releases=caller.file.releases,
        callees={name: callees[name].file.releases for name in uses},
        uses=uses,
    )
