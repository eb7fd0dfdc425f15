"""In which releases of a package a name is there, or a function takes a keyword: asked of this machine's atlases."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from knowngood_facts.facts.atlas_file import EXPORTS, AtlasFile, RowKind
from knowngood_facts.facts.fact_store import facts_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_DEPTH = 12
"""How many imports or base classes are followed one after another."""

_STANDARD_SINCE = 4
"""The reader that keeps imports of the standard library; a file that an older one began lacks some of them."""

_DEFINITIONS = {
    RowKind.CLASS: "class",
    RowKind.FUNCTION: "function",
    RowKind.PROPERTY: "property",
    RowKind.VALUE: "variable",
    RowKind.ATTRIBUTE: "attribute",
    RowKind.KEY: "key",
    RowKind.MODULE: "module",
}


@dataclass(kw_only=True)
class NamePresence:
    """Where a dotted name is, over all releases."""

    present: int = 0
    """The releases that have it."""
    unclear: int = 0
    """The releases in which the sources do not show it: a base class or a star import of another package, or code that
    makes names when it runs."""
    kinds: dict[str, int] = field(default_factory=dict)
    """`class`, `function` and so on -> releases."""
    signatures: dict[str, int] = field(default_factory=dict)
    """Parameters -> releases."""
    homes: dict[str, int] = field(default_factory=dict)
    """`module:path` of the definition -> releases."""

    def copy(self) -> NamePresence:
        """Return the same, to be changed."""
        return NamePresence(
            present=self.present,
            unclear=self.unclear,
            kinds=dict(self.kinds),
            signatures=dict(self.signatures),
            homes=dict(self.homes),
        )

    def add(self, other: NamePresence, mask: int) -> None:
        """Join what is known of another name, for the releases in `mask`."""
        self.present |= other.present & mask
        self.unclear |= other.unclear & mask
        for mine, theirs in (
            (self.kinds, other.kinds),
            (self.signatures, other.signatures),
            (self.homes, other.homes),
        ):
            for key, releases in theirs.items():
                if releases & mask:
                    mine[key] = mine.get(key, 0) | (releases & mask)


class AtlasLookup:
    """Answers questions about the names of one package."""

    def __init__(self, file: AtlasFile) -> None:
        self.file = file
        self.every = (1 << len(file.releases)) - 1
        self._module = lru_cache(maxsize=4096)(self._read_module)
        self._put_modules = cache(self._list_put_modules)
        self._places: dict[tuple[str, tuple[str, ...], int], NamePresence] = {}

    def find_name(self, dotted: str) -> NamePresence:
        """Return where `package.module.Class.method` or `package.module.TABLE[key]` is, if anywhere."""
        name, bracket, key = dotted.partition("[")
        parts = name.split(".")
        parts[-1] += bracket + key
        presence = NamePresence()
        for count in range(len(parts), 0, -1):
            module = ".".join(parts[:count])
            if not self._module(module):
                continue
            presence.add(self._find_in_module(module, tuple(parts[count:]), _DEPTH), self.every & ~presence.present)
        presence.unclear |= self._find_put_modules(parts)
        presence.unclear &= ~presence.present
        return presence

    def _find_put_modules(self, parts: Sequence[str]) -> int:
        """Return the releases that may put a module into `sys.modules` which has this name, or is around it."""
        names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        releases = 0
        for package in names:
            for pattern, mask in self._put_modules(package):
                if any(name.count(".") == pattern.count(".") and fnmatchcase(name, pattern) for name in names[1:]):
                    releases |= mask
        return releases

    def _list_put_modules(self, package: str) -> list[tuple[str, int]]:
        """Return pattern and releases of the modules that a module may put into `sys.modules`."""
        return [
            (row.removeprefix("sys.modules[").removesuffix("]"), mask)
            for row, items in self._module(package).items()
            if row.startswith("sys.modules[")
            for _, _, mask in items
        ]

    def definitions_of(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield every `module:path` that ends with a name, with its releases: definitions only, no imports."""
        for kind in (RowKind.CLASS, RowKind.FUNCTION, RowKind.VALUE, RowKind.KEY):
            for module, (path, _, _, mask) in self.file.find_rows(f"{name}\t{kind}\t"):
                if not module.startswith("@"):
                    yield f"{module}:{path}", mask

    def _read_module(self, module: str) -> dict[str, list[tuple[str, str, int]]]:
        """Return path -> (kind, detail, releases) of everything in a module."""
        rows: dict[str, list[tuple[str, str, int]]] = {}
        for path, kind, detail, mask in self.file.rows(module):
            rows.setdefault(path, []).append((kind, detail.removesuffix("?"), mask))
        return rows

    def _find_in_module(self, module: str, path: tuple[str, ...], depth: int) -> NamePresence:
        """Find a path in a module, once; star imports and base classes ask for the same again and again."""
        key = module, path, depth
        if key not in self._places:
            self._places[key] = self._search_module(module, path, depth)
        return self._places[key].copy()

    def _search_module(self, module: str, path: tuple[str, ...], depth: int) -> NamePresence:
        presence = NamePresence()
        rows = self._module(module)
        if not rows or depth <= 0:
            return presence
        if not path:
            for _, flags, mask in rows.get("", ()):
                self._take(presence, module, "", (RowKind.MODULE, "", mask))
                presence.unclear |= mask if "x" in flags else 0
            return presence
        for row in rows.get(path[0], ()):
            self._follow_row(presence, module, path, row, depth)
        if self.every & ~presence.present:
            self._look_further(presence, module, path, depth)
        presence.unclear &= ~presence.present
        return presence

    def _follow_row(
        self, presence: NamePresence, module: str, path: tuple[str, ...], row: tuple[str, str, int], depth: int
    ) -> None:
        """Join what one row of a module says about a name, or about what is inside it."""
        first, rest = path[0], path[1:]
        kind, detail, mask = row
        match RowKind(kind):
            case RowKind.IMPORT:
                presence.unclear |= 0 if detail or self.file.reader >= _STANDARD_SINCE else self.every
                presence.add(self._follow(detail, rest, depth - 1), mask)
            case RowKind.LAZY:
                presence.add(self._follow(f"{detail}:{first}", rest, depth - 1), mask)
            case _ if not rest and kind in _DEFINITIONS:
                self._take(presence, module, first, row)
            case RowKind.CLASS:
                presence.add(self._find_member(module, first, rest, depth - 1), mask)
            case RowKind.VALUE | RowKind.FUNCTION:
                presence.unclear |= mask
            case _:
                pass

    def _look_further(self, presence: NamePresence, module: str, path: tuple[str, ...], depth: int) -> None:
        """Names that a star import, a lazy folder, a submodule or `__getattr__` gives."""
        rows = self._module(module)
        first = path[0]
        for kind, detail, mask in rows.get("*", ()):
            if kind == RowKind.STAR and self._is_public(detail, first):
                presence.add(self._follow_star(detail, path, depth - 1), mask & ~presence.present)
            elif kind == RowKind.LAZY_FOLDER and mask & ~presence.present:
                for exporter, _, _, releases in self.file.rows(f"{EXPORTS}{first}"):
                    if exporter.startswith(detail + "."):
                        exported = self._find_in_module(exporter, path, depth - 1)
                        presence.add(exported, mask & releases & ~presence.present)
        submodule = f"{module}.{first}"
        if self._module(submodule):
            presence.add(self._find_in_module(submodule, path[1:], depth - 1), self.every & ~presence.present)
        answering = sum(mask for _, flags, mask in rows.get("", ()) if "g" in flags)  # with `__getattr__`
        listed = sum(mask for kind, _, mask in rows.get(first, ()) if kind == RowKind.EXPORT) & answering
        if listed & ~presence.present:
            presence.add(self._find_listed(module, path, depth - 1), listed & ~presence.present)
        presence.unclear |= self._find_patterns(module, first, depth - 1) & ~presence.present
        if not self._module(submodule):  # a submodule that is gone does not come from `__getattr__`
            presence.unclear |= answering & ~presence.present
        presence.unclear |= sum(mask for _, flags, mask in rows.get("", ()) if "x" in flags) & ~presence.present

    def _find_patterns(self, module: str, name: str, depth: int) -> int:
        """Return the releases in which the class of what takes a module's place makes names such as this one."""
        releases = 0
        for kind, stand_in, mask in self._module(module).get("__getattr__", ()):
            owner = tuple(stand_in.split("."))
            is_asked = kind == RowKind.VALUE and stand_in and name != owner[0]
            for home, there in self._find_in_module(module, owner, depth).homes.items() if is_asked else ():
                place, _, path = home.partition(":")
                for row, items in self._module(place).items():
                    if row.startswith(f"{path}.__getattr__[") and fnmatchcase(name, row.partition("[")[2].rstrip("]")):
                        releases |= mask & there & sum(having for _, _, having in items)
        return releases

    def _find_listed(self, module: str, path: tuple[str, ...], depth: int) -> NamePresence:
        """Find what `__getattr__` gives for a name in `__all__`: the class or function of that name below the module.

        Of several, the name is there and what it has inside is not known. Where there is none, the name may be made
        while the module runs, as torch.stack, or be left over in `__all__`.
        """
        first, rest = path[0], path[1:]
        once = several = 0
        homes: dict[str, int] = {}
        for kind in (RowKind.CLASS, RowKind.FUNCTION):
            for place, (_, _, _, mask) in self.file.find_rows(f"{first}\t{kind}\t"):
                if place.startswith(f"{module}."):
                    homes[f"{place}:{first}"] = homes.get(f"{place}:{first}", 0) | mask
        for mask in homes.values():
            several |= once & mask
            once |= mask
        listed = NamePresence()
        for home, mask in homes.items():
            listed.add(self._follow(home, rest, depth), mask & ~several)
        listed.unclear |= self.every & ~once
        if rest:
            listed.unclear |= several
        else:
            self._take(listed, module, first, (RowKind.EXPORT, "", several))
        return listed

    def _is_public(self, module: str, name: str) -> bool:
        """Whether `from module import *` may give a name."""
        exported = (kind == RowKind.EXPORT for kind, _, _ in self._module(module).get(name, ()))
        return not name.startswith("_") or any(exported)

    def _follow(self, target: str, rest: tuple[str, ...], depth: int) -> NamePresence:
        """Follow an import; one of another package is there, and what it has inside is not known here.

        `target` is empty for the standard library.
        """
        module, _, name = target.partition(":")
        path = (*((name,) if name else ()), *rest)
        if module.partition(".")[0] != self.file.root:
            outside = NamePresence()
            if rest:
                outside.unclear = self.every
            else:
                outside.present = self.every
                outside.kinds["import"] = self.every
                outside.homes |= {target: self.every} if target else {}
            return outside
        inside = self._find_in_module(module, path, depth)
        if not rest:  # the import itself proves the name, or the module could not be imported
            hidden = self.every & ~inside.present
            inside.present |= hidden
            inside.unclear &= ~hidden
            inside.kinds["import"] = inside.kinds.get("import", 0) | hidden
            inside.homes[target] = inside.homes.get(target, 0) | hidden
        return inside

    def _follow_star(self, module: str, path: tuple[str, ...], depth: int) -> NamePresence:
        if module.partition(".")[0] != self.file.root or not self._module(module):
            return NamePresence(unclear=self.every)
        return self._find_in_module(module, path, depth)

    def _find_member(self, module: str, owner: str, rest: tuple[str, ...], depth: int) -> NamePresence:
        """Find `rest` in a class, and where it lacks it, in its bases."""
        presence = NamePresence()
        path = f"{owner}.{rest[0]}"
        for kind, detail, mask in self._module(module).get(path, ()):
            if kind not in _DEFINITIONS:
                continue
            if len(rest) == 1:
                self._take(presence, module, path, (kind, detail, mask))
            elif kind == RowKind.CLASS:
                presence.add(self._find_member(module, path, rest[1:], depth - 1), mask)
            else:
                presence.unclear |= mask
        if depth > 0:
            for kind, bases, mask in self._module(module).get(owner, ()):
                if kind == RowKind.CLASS:
                    for base in filter(None, bases.split(",")):
                        self._inherit(presence, module, base, rest, mask & ~presence.present, depth)
        presence.unclear &= ~presence.present
        return presence

    def _inherit(  # noqa: PLR0913, PLR0917 - one step of `_find_member`
        self, presence: NamePresence, module: str, base: str, rest: tuple[str, ...], mask: int, depth: int
    ) -> None:
        """Join what one base class has, for the releases in `mask`."""
        if not mask or base == "object":
            return
        if base == "?":
            presence.unclear |= mask
            return
        path = tuple(base.split("."))
        reached = self._find_in_module(module, path, depth - 1)
        inherited = self._find_in_module(module, (*path, *rest), depth - 1)
        presence.add(inherited, mask)
        tops = {re.split(r"[.:]", home, maxsplit=1)[0] for home in reached.homes}
        if tops != {self.file.root}:
            presence.unclear |= mask & ~inherited.present

    @staticmethod
    def _take(presence: NamePresence, module: str, path: str, row: tuple[str, str, int]) -> None:
        kind, detail, mask = row
        presence.present |= mask
        word = _DEFINITIONS.get(RowKind(kind), "name")
        presence.kinds[word] = presence.kinds.get(word, 0) | mask
        home = f"{module}:{path}" if path else module
        presence.homes[home] = presence.homes.get(home, 0) | mask
        if kind == RowKind.FUNCTION:
            presence.signatures[detail] = presence.signatures.get(detail, 0) | mask


@dataclass(kw_only=True)
class ParameterPresence:
    """What the signatures of one function say of one parameter, over all releases, as bits."""

    accepted: int = 0
    """The releases that take it as a keyword."""
    named: int = 0
    """Those of them that name it, and do not merely take any keyword."""
    required: int = 0
    """Those of them in which it has no default."""
    refused: int = 0
    """The releases whose signature neither has it nor takes any keyword."""
    names: dict[str, int] = field(default_factory=dict)
    """Every parameter that some release has -> those releases."""
    words: tuple[str, ...] = ()
    """The deprecation's own words that name the parameter."""
    successor: str = ""
    """The parameter that takes its place, by those words."""


def find_parameter(lookup: AtlasLookup, dotted: str, parameter: str) -> ParameterPresence:
    """Return where a parameter of a function, a method or a class is.

    A class without `__init__` is taken for a dataclass, whose fields are its parameters.
    """
    presence = ParameterPresence()
    reached = lookup.find_name(dotted)
    signatures = dict(reached.signatures)
    constructed = reached.kinds.get("class", 0)
    owner = dotted.removesuffix(".__init__")
    if constructed or owner != dotted:
        made = lookup.find_name(f"{owner}.__init__")
        signatures = dict(made.signatures)
        if owner != dotted:
            constructed = lookup.find_name(owner).kinds.get("class", 0)
    names = presence.names
    written = 0
    for signature, mask in signatures.items():
        written |= mask
        parameters = parse_signature(signature)
        for name in parameters:
            if name != "self" and not name.startswith("*"):
                names[name] = names.get(name, 0) | mask
        if parameter in parameters:
            presence.accepted |= mask
            presence.named |= mask
            presence.required |= 0 if parameters[parameter] else mask
        elif not any(name.startswith("**") for name in parameters):
            presence.refused |= mask
        else:
            presence.accepted |= mask
    fields = constructed & ~written
    if fields:
        here = lookup.find_name(f"{owner}.{parameter}").kinds.get("variable", 0)
        presence.accepted |= here & fields
        presence.named |= here & fields
        presence.refused |= fields & ~here
        for name, mask in _fields(lookup, lookup.find_name(owner).homes):
            names[name] = names.get(name, 0) | (mask & fields)
    _take_deprecations(presence, _find_words(lookup, dotted, owner, parameter), parameter)
    return presence


def _take_deprecations(presence: ParameterPresence, words: Iterator[tuple[str, int]], parameter: str) -> None:
    """Note the successor, and that a decorator still takes the parameter by its old name."""
    for text, mask in words:
        if text in presence.words:
            continue
        presence.words += (text,)
        if re.match(r"(?:\w+\.)*deprecate_kwarg\b", text):
            quoted = re.findall(r"'(\w+)'", text)
            presence.successor = next((name for name in quoted if name != parameter and name in presence.names), "")
            presence.accepted |= mask
            presence.named |= mask
            presence.refused &= ~mask


def _find_words(lookup: AtlasLookup, dotted: str, owner: str, parameter: str) -> Iterator[tuple[str, int]]:
    """Yield the decorators of a function that deprecate a parameter, as written."""
    homes = lookup.find_name(dotted).homes | lookup.find_name(f"{owner}.__init__").homes
    places = {(home.partition(":")[0], home.partition(":")[2]) for home in homes}
    for place, path in places:
        for row, kind, detail, mask in lookup.file.rows(place):
            if row == path and kind == RowKind.WORDS and f"'{parameter}'" in detail:
                yield detail, mask


def parse_signature(text: str) -> dict[str, bool]:
    """Return parameter -> whether it has a default, from a signature such as `self,q,*,causal=False,**kwargs`."""
    return {part.partition("=")[0]: "=" in part for part in text.split(",") if part not in {"*", "/", ""}}


def takes_positions(text: str, count: int) -> bool:
    """Return whether a function with this signature takes so many positional arguments, `self` among them."""
    places = 0
    for part in text.split(","):
        if part.startswith("*"):
            return places >= count or (part != "*" and not part.startswith("**"))
        places += part not in {"/", ""}
    return places >= count


def _fields(lookup: AtlasLookup, homes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the variables of the classes that are defined in these places, with their releases."""
    for home in homes:
        module, _, path = home.partition(":")
        for name, kind, _, mask in lookup.file.rows(module):
            if kind == RowKind.VALUE and name.startswith(f"{path}.") and not name.startswith(f"{path}._"):
                yield name.removeprefix(f"{path}."), mask


_HEADER_LIMIT = 1 << 20  # bytes


def atlas_folder() -> Path:
    """Return the folder of the atlas that this installation uses."""
    return facts_folder() / "atlas"


def list_atlas_packages(folder: Path | None = None) -> list[str]:
    """Return the packages that have a file, sorted."""
    return sorted(path.stem for path in (folder or atlas_folder()).glob("*.atlas"))


@cache
def open_atlas(package: str, folder: Path | None = None) -> AtlasLookup | None:
    """Open the file of a package; `None` when there is none. `InputError` when it is damaged."""
    path = (folder or atlas_folder()) / f"{package}.atlas"
    return AtlasLookup(AtlasFile(path)) if path.exists() else None


def find_owner(module: str, folder: Path | None = None) -> str | None:
    """Return the package whose top-level module this is (`flash-attn` for `flash_attn`), or `None`."""
    return next(iter(list_owners(module, folder)), None)


@cache
def list_owners(module: str, folder: Path | None = None) -> tuple[str, ...]:
    """Return the packages with this top-level module: first the one that is called like it."""
    folder = folder or atlas_folder()
    guess = module.replace("_", "-")
    names = sorted(list_atlas_packages(folder), key=lambda name: name != guess)
    return tuple(name for name in names if _read_header(folder / f"{name}.atlas").get("root") == module)


def list_read_releases(package: str, folder: Path) -> Sequence[str]:
    """Return the releases of a package whose names the atlas in a folder has, oldest first; none without a file."""
    path = folder / f"{package}.atlas"
    return tuple(_read_header(path).get("releases", ())) if path.exists() else ()


@cache
def _read_header(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as opened:
        line = opened.readline(_HEADER_LIMIT)
    try:
        header = json.loads(line)
    except ValueError:
        return {}
    return header if isinstance(header, dict) else {}


def forget_opened_atlas() -> None:
    """Let files that were written since be read again in this process."""
    open_atlas.cache_clear()
    list_owners.cache_clear()
    _read_header.cache_clear()
