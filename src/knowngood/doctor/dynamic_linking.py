"""Shared libraries as their ELF files describe them, and what ld.so would make of them. Pure, given the libraries.

A library that another one needs is searched for as ld.so does: among those that are loaded under that name, then in
DT_RPATH of the file and of those that loaded it, in LD_LIBRARY_PATH, in DT_RUNPATH, in ldconfig's cache and in the
system's folders. The folders of NVIDIA's wheels come last, because torch and others load from there what they miss. A
process that imports an extension has imported torch before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath
from typing import Protocol

from knowngood.core.hosts import DEFAULT_HOST, detect_host_architecture
from knowngood.facts.gpu_code import GpuCode

_MULTIARCH = (detect_host_architecture() or DEFAULT_HOST).multiarch
_SYSTEM_FOLDERS = (f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclass(frozen=True, kw_only=True)
class SharedLibrary:
    """What the dynamic linker reads of a library, and the GPU code in it."""

    path: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    """DT_RPATH: searched before LD_LIBRARY_PATH."""
    runpath: tuple[str, ...] = ()
    """DT_RUNPATH: searched after LD_LIBRARY_PATH."""
    defined: frozenset[bytes] = frozenset()
    undefined: Mapping[bytes, str] = field(default_factory=dict)
    """Symbol -> its version or an empty text, in the order of the table; weak symbols, which may be missing, are not
    in it."""
    only_called: frozenset[bytes] = frozenset()
    """The undefined symbols that can be bound at their first call; none in a library that binds all at loading."""
    demanded_versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Library -> versions of its symbols that this one was linked with: `libc.so.6` -> `GLIBC_2.34`."""
    provided_versions: frozenset[str] = frozenset()
    """The versions of its own symbols."""
    importable: bool = False
    """Python can import it as a module."""
    numpy_1: bool = False
    """It uses the C interface of NumPy 1 only."""
    code: Mapping[GpuCode, int] = field(default_factory=dict)
    """The GPU code of a fatbin -> how many fatbins have exactly that; the most frequent first."""

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def linked_name(self) -> str:
        """The name under which others find it when it is loaded: its soname, else the name of the file."""
        return self.soname or self.name

    def newest_demanded(self, prefix: str) -> str | None:
        """Return the newest version of a family that it needs: `GLIBC_` gives `2.34`."""
        return newest_version(prefix, (version for versions in self.demanded_versions.values() for version in versions))

    def newest_provided(self, prefix: str) -> str | None:
        """Return the newest version of a family that it has."""
        return newest_version(prefix, self.provided_versions)


def newest_version(prefix: str, versions: Iterable[str]) -> str | None:
    """Return the newest of the versions that begin with `prefix`, without the prefix; `None` without any."""
    pattern = re.compile(re.escape(prefix) + r"(\d+(?:\.\d+)*)")
    numbers = [match[1] for version in versions if (match := pattern.fullmatch(version))]
    return max(numbers, key=version_numbers, default=None)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons: `2.34` gives `(2, 34)`."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


class LibrarySource(Protocol):
    """Where the linker gets libraries from."""

    def library(self, path: str) -> SharedLibrary | None:
        """Return the library at a path; `None` when this machine could not load one from there."""
        ...

    def cached(self, name: str) -> str | None:
        """Return the path that ldconfig's cache has for a name."""
        ...


@dataclass(frozen=True, kw_only=True)
class LibraryClosure:
    """A library with everything that is loaded because of it."""

    libraries: tuple[SharedLibrary, ...]
    """The library itself comes first."""
    missing: tuple[tuple[str, str], ...]
    """(name of a library that is not found, path of the one that needs it)"""


@dataclass(frozen=True, kw_only=True)
class LinkResult:
    """What keeps a library from being loaded; true when nothing does."""

    missing: tuple[tuple[str, str], ...] = ()
    """(name of a library that is not found, path of the one that needs it)"""
    undefined: tuple[str, ...] = ()
    """Symbols in the words of ld.so: the name, and `, version libnvJitLink.so.12` where it has a version."""
    later: tuple[str, ...] = ()
    """Undefined symbols that are missed only when they are called."""
    versions: tuple[tuple[str, str], ...] = ()
    """(version of symbols that is demanded, path of the library that lacks it)"""

    def __bool__(self) -> bool:
        return not (self.missing or self.undefined or self.versions)


@dataclass(kw_only=True)
class DynamicLinker:
    """The dynamic linker of one process."""

    source: LibrarySource
    library_path: Sequence[str] = ()
    """The folders of LD_LIBRARY_PATH."""
    wheel_folders: Sequence[str] = ()
    """Folders of libraries in wheels, `site-packages/nvidia/*/lib`."""
    loaded: Mapping[str, SharedLibrary] = field(default_factory=dict)
    """Name -> the library that is loaded under it before any other."""
    global_scope: Sequence[SharedLibrary] = ()
    """The libraries whose symbols all others see: the interpreter and what it is linked with."""
    _closures: dict[str, LibraryClosure] = field(default_factory=dict)

    def closure(self, library: SharedLibrary) -> LibraryClosure:
        """Return what is loaded because of a library, breadth first, in the order of ld.so."""
        if library.path not in self._closures:
            self._closures[library.path] = self._collect(library)
        return self._closures[library.path]

    def _collect(self, root: SharedLibrary) -> LibraryClosure:
        chains: list[tuple[SharedLibrary, ...]] = [(root,)]
        by_name = {root.linked_name: root}
        missing = []
        for chain in chains:  # which grows
            for name in chain[-1].needed:
                if name in by_name:
                    continue
                library = self.find_library(name, chain)
                if library is None:
                    missing.append((name, chain[-1].path))
                    continue
                if library.soname not in by_name:
                    chains.append((*chain, library))
                by_name[name] = by_name[library.linked_name] = library
        return LibraryClosure(libraries=tuple(chain[-1] for chain in chains), missing=tuple(dict.fromkeys(missing)))

    def find_library(self, name: str, chain: Sequence[SharedLibrary]) -> SharedLibrary | None:
        """Return the library for a name that the last of a chain of loaders needs; `None` when it is not found."""
        if "/" in name:
            return self.source.library(name)
        if name in self.loaded:
            return self.loaded[name]
        last = chain[-1]
        rpath = [] if last.runpath else [folder for item in reversed(chain) for folder in _expanded_rpath(item)]
        for folder in (*rpath, *self.library_path, *_expand_origin(last, last.runpath)):
            if library := self.source.library(normpath(join(folder, name))):
                return library
        cached = self.source.cached(name)
        if cached and (library := self.source.library(cached)):
            return library
        for folder in (*_SYSTEM_FOLDERS, *self.wheel_folders):
            if library := self.source.library(normpath(join(folder, name))):
                return library
        return None

    def link(self, library: SharedLibrary, beside: Sequence[SharedLibrary] = (), *, lazily: bool = False) -> LinkResult:
        """Return whether a library could be loaded.

        The libraries `beside` are loaded before it, and it sees their symbols. With `lazily`, functions are bound when
        they are called.
        """
        closure = self.closure(library)
        scope = {item.path: item for item in (*self.global_scope, *closure.libraries)}
        for other in beside:
            scope |= {item.path: item for item in self.closure(other).libraries}
        names = {name for item in scope.values() for name in (item.soname, item.name)}
        tables = [item.defined for item in scope.values()]
        undefined = {
            symbol: version
            for symbol, version in library.undefined.items()
            if not any(symbol in table for table in tables)
        }
        later = library.only_called if lazily else frozenset()
        by_name = {item.linked_name: item for item in closure.libraries}
        return LinkResult(
            missing=tuple((name, by) for name, by in closure.missing if name not in names),
            undefined=_format_symbols({name: version for name, version in undefined.items() if name not in later}),
            later=_format_symbols({name: version for name, version in undefined.items() if name in later}),
            versions=tuple(
                (version, by_name[name].path)
                for name, versions in library.demanded_versions.items()
                if name in by_name and (provided := by_name[name].provided_versions)
                for version in versions
                if version not in provided
            ),
        )


def _format_symbols(symbols: Mapping[bytes, str]) -> tuple[str, ...]:
    return tuple(
        name.decode(errors="replace") + (f", version {version}" if version else "") for name, version in symbols.items()
    )


def _expanded_rpath(library: SharedLibrary) -> list[str]:
    return [] if library.runpath else _expand_origin(library, library.rpath)


def _expand_origin(library: SharedLibrary, folders: Sequence[str]) -> list[str]:
    origin = dirname(library.path)
    return [folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders]
