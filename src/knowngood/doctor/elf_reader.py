"""Reads shared libraries: headers, dynamic symbols, and the headers of their GPU code. An edge: it reads files only.

Nothing is loaded. Of a library of a gigabyte, a few megabytes are read. pyelftools reads the headers; the symbol tables
are read here in bulk, because pyelftools takes 2.5 s for the 79,000 symbols of `libtorch_cpu.so` and this takes 0.2 s.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection
from elftools.elf.sections import Section

from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture
from knowngood.doctor.dynamic_linking import SharedLibrary
from knowngood.facts.gpu_code import GpuCode, iterate_fatbins

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
