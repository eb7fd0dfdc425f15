"""Reads shared libraries from their ELF files, and says what ld.so would make of them."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture
from knowngood.index.gpu_code import GpuCode, iterate_fatbins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elftools.elf.sections import Section

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


_LDCONFIG = "/sbin/ldconfig"
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_DF_BIND_NOW, _DF_1_NOW = 8, 1
_WEAK = 2
_TORCH_PYTHON = "libtorch_python.so"
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_MACHINES = {HostArchitecture.X86_64: ("EM_X86_64", "x86-64"), HostArchitecture.AARCH64: ("EM_AARCH64", "AArch64")}
"""Processor -> what an ELF file calls it, and what ldconfig does."""
_MACHINE, _CACHED_KIND = _MACHINES[detect_host_architecture() or DEFAULT_HOST]
_SECTION_TYPES = (
    "SHT_PROGBITS",
    "SHT_STRTAB",
    "SHT_SYMTAB",
    "SHT_DYNSYM",
    "SHT_DYNAMIC",
    "SHT_RELA",
    "SHT_GNU_verneed",
    "SHT_GNU_verdef",
    "SHT_GNU_versym",
)
_MALFORMED = (
    struct.error,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    ArithmeticError,
    MemoryError,
)
"""What is raised while tables with impossible numbers are read."""


class DamagedLibraryError(Exception):
    """A file is damaged, so no machine could load it; the text says in what way."""


def read_library(path: Path) -> SharedLibrary | None:
    """Return the library in a file; `None` for one of another machine, or one that is not ELF (a linker script).

    Raises:
        DamagedLibraryError: the file is empty, cut short or otherwise damaged.
    """
    with path.open("rb") as file:
        start = file.read(4)
        if start != b"\x7fELF":
            if not start or start == b"\0\0\0\0":
                raise DamagedLibraryError("the file is empty" if not start else "the file is full of zeros")
            return None
        try:
            elf = ELFFile(file)
            if elf.header["e_machine"] != _MACHINE or elf.elfclass != 64:
                return None
            return _LibraryReader(elf, file, path).read()
        except (ELFError, OSError, *_MALFORMED) as error:
            raise DamagedLibraryError(f"the file is damaged: {error or type(error).__name__}") from None


class _LibraryReader:
    """Reads one file of this machine's kind."""

    def __init__(self, elf: ELFFile, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._sections = _list_sections(elf, path.stat().st_size)

    def read(self) -> SharedLibrary:
        tags, binds_at_once = self._read_dynamic()
        demanded, provided, numbers = self._read_versions()
        defined, undefined = self._read_symbols(numbers)
        importable = any(symbol.startswith(b"PyInit_") for symbol in defined)
        uses_numpy = importable or self._path.name == _TORCH_PYTHON
        return SharedLibrary(
            path=str(self._path),
            soname=next(iter(tags["soname"]), ""),
            needed=tuple(tags["needed"]),
            rpath=_split_folders(tags["rpath"]),
            runpath=_split_folders(tags["runpath"]),
            defined=defined,
            undefined=undefined,
            only_called=frozenset() if binds_at_once else self._read_called() & undefined.keys(),
            demanded_versions=demanded,
            provided_versions=provided,
            importable=importable,
            numpy_1=uses_numpy and self._needs_numpy_1(),
            code=self._read_gpu_code(),
        )

    def _bytes(self, name: str) -> bytes:
        section = self._sections.get(name)
        if section is None:
            return b""
        self._file.seek(section["sh_offset"])
        return self._file.read(section["sh_size"])

    def _read_dynamic(self) -> tuple[dict[str, list[str]], bool]:
        """Return the texts of the dynamic section, and whether it demands that all symbols are bound at loading."""
        tags: dict[str, list[str]] = {"needed": [], "soname": [], "rpath": [], "runpath": []}
        flags = {"DT_FLAGS": _DF_BIND_NOW, "DT_FLAGS_1": _DF_1_NOW}
        binds_at_once = False
        section = self._sections.get(".dynamic")
        for tag in section.iter_tags() if section else ():  # type: ignore[attr-defined]
            kind = str(tag.entry.d_tag)
            for name, texts in tags.items():
                if kind == f"DT_{name.upper()}":
                    texts.append(getattr(tag, name))
            if kind == "DT_BIND_NOW" or tag.entry.d_val & flags.get(kind, 0):
                binds_at_once = True
        return tags, binds_at_once

    def _read_versions(self) -> tuple[dict[str, tuple[str, ...]], frozenset[str], dict[int, str]]:
        """Return demanded versions by library, versions of its own, and number in the table -> demanded version."""
        demanded: dict[str, tuple[str, ...]] = {}
        provided: frozenset[str] = frozenset()
        numbers: dict[int, str] = {}
        for section in self._sections.values():
            if isinstance(section, GNUVerNeedSection):
                for need, items in section.iter_versions():
                    versions = list(items)
                    demanded[str(need.name)] = tuple(item.name for item in versions)
                    numbers |= {item["vna_other"]: item.name for item in versions}
            elif isinstance(section, GNUVerDefSection):
                provided = frozenset(next(items).name for _, items in section.iter_versions())
        return demanded, provided, numbers

    def _read_symbols(self, versions: Mapping[int, str]) -> tuple[frozenset[bytes], dict[bytes, str]]:
        """Return the defined symbols, and the undefined ones with their versions."""
        names = self._bytes(".dynstr")
        find = names.find
        defined, undefined = set(), {}
        version_of_symbol = array("H", self._bytes(".gnu.version"))
        for index, (at, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(self._bytes(".dynsym"))):
            name = names[at : find(b"\0", at)]
            if section:
                defined.add(name)
            elif name and info >> 4 != _WEAK:
                undefined[name] = versions.get(version_of_symbol[index], "") if version_of_symbol else ""
        return frozenset(defined), undefined

    def _read_called(self) -> frozenset[bytes]:
        """Return the symbols in the table of calls to which no other relocation refers."""
        table, names = self._bytes(".dynsym"), self._bytes(".dynstr")
        called = set()
        for index in _symbol_indexes(self._bytes(".rela.plt")) - _symbol_indexes(self._bytes(".rela.dyn")):
            at = _SYMBOL.unpack_from(table, index * _SYMBOL.size)[0]
            called.add(names[at : names.find(b"\0", at)])
        return frozenset(called)

    def _needs_numpy_1(self) -> bool:
        """Return whether it names the module with the C interface of NumPy 1, and not that of NumPy 2.

        A library that was compiled with the headers of NumPy 2 names both.
        """
        constants = self._bytes(".rodata")
        return b"numpy.core._multiarray_umath" in constants and b"numpy._core._multiarray_umath" not in constants

    def _read_gpu_code(self) -> dict[GpuCode, int]:
        counts: Counter[GpuCode] = Counter()
        for section in (self._sections[name] for name in _FATBIN_SECTIONS if name in self._sections):
            if not section["sh_size"]:
                continue
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                start = section["sh_offset"]
                with view[start : start + section["sh_size"]] as part:
                    counts.update(code for code in iterate_fatbins(part) if code.sass or code.ptx)
        return dict(counts.most_common())


def _list_sections(elf: ELFFile, size: int) -> dict[str, Section]:
    """Return the sections that are read, by name; raises `DamagedLibraryError` when the file ends before one does."""
    header = elf.header
    end = header["e_shoff"] + header["e_shnum"] * header["e_shentsize"]
    sections: dict[str, Section] = {}
    for number in range(elf.num_sections() if end <= size else 0):
        try:
            section = elf.get_section(number, _SECTION_TYPES)
        except ELFError:  # a section of another type; pyelftools would read the whole of a hash table
            continue
        sections[section.name] = section
        end = max(end, section["sh_offset"] + section["sh_size"])
    if end > size:
        raise DamagedLibraryError(f"the file is cut short: it has {size:,} bytes, and its headers speak of {end:,}")
    return sections


def _split_folders(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(folder for text in texts for folder in text.split(":") if folder)


def _symbol_indexes(relocations: bytes) -> set[int]:
    return {index for _, _, index, _ in _RELOCATION.iter_unpack(relocations)}


@cache
def _load_demangler() -> Any | None:
    """Return `__cxa_demangle` of this machine's C++ library; `None` without that library."""
    try:
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


def demangle_symbol(symbol: str) -> str:
    """Return a C++ symbol as it is written in the source; the symbol itself when it cannot be demangled here."""
    demangle = _load_demangler()
    if demangle is None or not symbol.startswith("_Z"):
        return symbol
    text = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
    if not text:
        return symbol
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))


class MachineLibraries:
    """The libraries of this machine, each read once: a `LibrarySource` from files and ldconfig's cache."""

    def __init__(self) -> None:
        self._known: dict[str, SharedLibrary | None] = {}
        self.damaged: dict[str, str] = {}
        """Path -> why the file cannot be read."""

    def library(self, path: str) -> SharedLibrary | None:
        """Return the library at a path; for a damaged one `None`, with an entry in `damaged`."""
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: str) -> SharedLibrary | None:
        if not os.path.isfile(path):  # noqa: PTH113 - called thousands of times
            return None
        try:
            return read_library(Path(path))
        except DamagedLibraryError as error:
            self.damaged[path] = str(error)
        except OSError as error:
            self.damaged[path] = f"it cannot be read: {error.strerror}"
        return None

    def cached(self, name: str) -> str | None:
        """Return the path that ldconfig's cache has for a name."""
        return self.cache.get(name)

    @cached_property
    def cache(self) -> dict[str, str]:
        """The cache of ldconfig: name -> path, without libraries of other machines."""
        try:
            output = subprocess.run([_LDCONFIG, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return {}
        paths: dict[str, str] = {}
        for name, kind, path in re.findall(r"^\s+(\S+) \(([^)]*)\) => (.+)$", output, re.MULTILINE):
            if _CACHED_KIND in kind:
                paths.setdefault(name, path)
        return paths
