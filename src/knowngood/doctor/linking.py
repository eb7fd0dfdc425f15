"""What the dynamic linker would find: libraries, versions of symbols, symbols. Pure, given a shelf of libraries.

The order is ld.so's: what is loaded already by that name, DT_RPATH of the file and of those that loaded it,
LD_LIBRARY_PATH, DT_RUNPATH, the cache of ldconfig, the system's folders; last the folders of NVIDIA's wheels, from
which torch and others load what they miss. A process that imports an extension has imported torch before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath
from typing import Protocol

from knowngood.doctor.library import Library

_SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


class Shelf(Protocol):
    """Where libraries lie."""

    def library(self, path: str) -> Library | None:
        """The library at a path; `None` when there is none that this machine could load."""
        ...

    def cached(self, name: str) -> str | None:
        """The path that ldconfig's cache has for a name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Closure:
    """A library with everything that is loaded for its sake."""

    libraries: tuple[Library, ...]
    """Itself first."""
    missing: tuple[tuple[str, str], ...]
    """(name of a library that is not found, path of the one that needs it)"""


@dataclass(frozen=True, kw_only=True)
class Linked:
    """Whether a library could be loaded."""

    missing: tuple[tuple[str, str], ...] = ()
    undefined: tuple[str, ...] = ()
    """As ld.so words it: the name, and `, version libnvJitLink.so.12` where it has one."""
    later: tuple[str, ...] = ()
    """Undefined too, and missed only when they are called."""
    versions: tuple[tuple[str, str], ...] = ()
    """(version of symbols that is demanded, path of the library that lacks it)"""

    def __bool__(self) -> bool:
        return not (self.missing or self.undefined or self.versions)


@dataclass(kw_only=True)
class Linker:
    """The linker of one process."""

    shelf: Shelf
    library_path: Sequence[str] = ()
    """LD_LIBRARY_PATH"""
    folders: Sequence[str] = _SYSTEM
    wheels: Sequence[str] = ()
    """Folders of libraries of wheels, `site-packages/nvidia/*/lib`."""
    loaded: Mapping[str, Library] = field(default_factory=dict)
    """Names that are loaded already."""
    everywhere: Sequence[Library] = ()
    """Those whose symbols all others see: the interpreter and what it is linked with."""
    _closures: dict[str, Closure] = field(default_factory=dict)

    def closure(self, library: Library) -> Closure:
        """What loading a library loads, breadth first, as ld.so does."""
        known = self._closures.get(library.path)
        if known is None:
            known = self._closures[library.path] = self._close(library)
        return known

    def _close(self, root: Library) -> Closure:
        chains: list[tuple[Library, ...]] = [(root,)]
        here = {root.soname or root.name: root}
        missing = []
        for chain in chains:
            library = chain[-1]
            for name in library.needed:
                if name in here:
                    continue
                found = self.find(name, chain)
                if found is None:
                    missing.append((name, library.path))
                    continue
                if found.soname not in here:
                    chains.append((*chain, found))
                here[name] = here[found.soname or found.name] = found
        return Closure(libraries=tuple(chain[-1] for chain in chains), missing=tuple(dict.fromkeys(missing)))

    def find(self, name: str, chain: Sequence[Library]) -> Library | None:
        """The library that a name stands for, needed by the last of a chain of loaders."""
        if "/" in name:
            return self.shelf.library(name)
        if name in self.loaded:
            return self.loaded[name]
        last = chain[-1]
        searched: list[str] = []
        if not last.runpath:
            searched += [folder for item in reversed(chain) if not item.runpath for folder in _origin(item, item.rpath)]
        searched += [*self.library_path, *_origin(last, last.runpath)]
        for folder in searched:
            if found := self.shelf.library(normpath(join(folder, name))):
                return found
        cached = self.shelf.cached(name)
        if cached and (found := self.shelf.library(cached)):
            return found
        for folder in (*self.folders, *self.wheels):
            if found := self.shelf.library(normpath(join(folder, name))):
                return found
        return None

    def link(self, library: Library, beside: Sequence[Library] = (), *, lazily: bool = False) -> Linked:
        """Whether a library could be loaded; `beside` are loaded before it, for it to see.

        `lazily`: functions are bound when they are called.
        """
        closure = self.closure(library)
        scope = {item.path: item for item in (*self.everywhere, *closure.libraries)}
        for other in beside:
            scope |= {item.path: item for item in self.closure(other).libraries}
        there = {name for item in scope.values() for name in (item.soname, item.name)}
        tables = [item.defined for item in scope.values()]
        undefined = {
            name: version for name, version in library.undefined.items() if not any(name in table for table in tables)
        }
        later = library.called if lazily else frozenset()
        by_name = {item.soname or item.name: item for item in closure.libraries}
        lacking = [
            (version, by_name[name].path)
            for name, versions in library.demands.items()
            if name in by_name and by_name[name].versions
            for version in versions
            if version not in by_name[name].versions
        ]
        return Linked(
            missing=tuple((name, by) for name, by in closure.missing if name not in there),
            undefined=_worded({name: text for name, text in undefined.items() if name not in later}),
            later=_worded({name: text for name, text in undefined.items() if name in later}),
            versions=tuple(lacking),
        )


def _worded(undefined: Mapping[bytes, str]) -> tuple[str, ...]:
    return tuple(
        name.decode(errors="replace") + (f", version {version}" if version else "")
        for name, version in undefined.items()
    )


def _origin(library: Library, folders: Sequence[str]) -> list[str]:
    here = dirname(library.path)
    return [folder.replace("${ORIGIN}", here).replace("$ORIGIN", here) for folder in folders]
