"""Reads shared libraries: headers, dynamic symbols, and the headers of their GPU code; of a gigabyte, a few megabytes.

An edge: files only, nothing is loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from array import array
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from knowngood.doctor.library import Library
from knowngood.fatbin import Code, in_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Section

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_DF_BIND_NOW, _DF_1_NOW = 8, 1
_WEAK = 2
_BEHIND_TORCH = "libtorch_python.so"
_FATBINS = (".nv_fatbin", "__nv_relfatbin")
_MACHINE = "EM_X86_64"
_TYPES = (
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


_NONSENSE = (
    struct.error,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    ArithmeticError,
    MemoryError,
)
"""What reading tables ends in whose numbers are nonsense."""


class DamagedError(Exception):
    """The file is no library that this machine could load; the text says why."""


def read(path: Path) -> Library | None:
    """A library; `None` for a file of another machine or none that is ELF (a linker script). Raises `DamagedError`."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        start = file.read(4)
        if start != b"\x7fELF":
            if not start or start == b"\0\0\0\0":
                raise DamagedError("the file is empty" if not start else "the file is of zeros")
            return None
        try:
            elf = ELFFile(file)
            if elf.header["e_machine"] != _MACHINE or elf.elfclass != 64:
                return None
            return _described(_sections(elf, path.stat().st_size), file, path)
        except (ELFError, OSError, *_NONSENSE) as error:
            raise DamagedError(f"the file is damaged: {error or type(error).__name__}") from None


def _sections(elf: ELFFile, size: int) -> dict[str, Section]:
    """The sections that are read, by name. Raises `DamagedError` for a file that ends before one of them does."""
    from elftools.common.exceptions import ELFError

    header = elf.header
    end = header["e_shoff"] + header["e_shnum"] * header["e_shentsize"]
    found: dict[str, Section] = {}
    for number in range(elf.num_sections() if end <= size else 0):
        try:
            section = elf.get_section(number, _TYPES)
        except ELFError:  # of another type: pyelftools would read the whole of a hash table
            continue
        found[section.name] = section
        end = max(end, section["sh_offset"] + section["sh_size"])
    if end > size:
        raise DamagedError(f"the file is cut short: it has {size:,} bytes, and its headers speak of {end:,}")
    return found


def _described(sections: Mapping[str, Section], file: BinaryIO, path: Path) -> Library:
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

    tags: dict[str, list[str]] = {}
    at_once = False
    if dynamic := sections.get(".dynamic"):
        for tag in dynamic.iter_tags():  # type: ignore[attr-defined]
            for name in ("needed", "soname", "rpath", "runpath"):
                if tag.entry.d_tag == f"DT_{name.upper()}":
                    tags.setdefault(name, []).append(getattr(tag, name))
            at_once = at_once or _at_once(str(tag.entry.d_tag), int(tag.entry.d_val))
    demands: dict[str, tuple[str, ...]] = {}
    versions: set[str] = set()
    numbered: dict[int, str] = {}
    for section in sections.values():
        if isinstance(section, GNUVerNeedSection):
            for need, items in section.iter_versions():
                listed = list(items)
                demands[str(need.name)] = tuple(item.name for item in listed)
                numbered |= {item["vna_other"]: item.name for item in listed}
        elif isinstance(section, GNUVerDefSection):
            versions = {next(items).name for _, items in section.iter_versions()}
    table = [sections.get(name) for name in (".dynsym", ".dynstr", ".gnu.version")]
    defined, undefined = _symbols(file, table, numbered)
    called = frozenset[bytes]() if at_once else _called(file, sections) & undefined.keys()
    importable = any(symbol.startswith(b"PyInit_") for symbol in defined)
    return Library(
        path=str(path),
        soname=next(iter(tags.get("soname", [])), ""),
        needed=tuple(tags.get("needed", [])),
        rpath=_folders(tags.get("rpath", [])),
        runpath=_folders(tags.get("runpath", [])),
        defined=defined,
        undefined=undefined,
        called=called,
        demands=demands,
        versions=frozenset(versions),
        importable=importable,
        numpy_1=(importable or path.name == _BEHIND_TORCH) and _numpy_1(file, sections.get(".rodata")),
        code=_code(file, [sections[name] for name in _FATBINS if name in sections]),
    )


def _at_once(tag: str, value: int) -> bool:
    """Whether an entry of the dynamic section asks for all symbols as it is loaded."""
    flags = {"DT_BIND_NOW": 0, "DT_FLAGS": _DF_BIND_NOW, "DT_FLAGS_1": _DF_1_NOW}
    return tag == "DT_BIND_NOW" or bool(value & flags.get(tag, 0))


def _called(file: BinaryIO, sections: Mapping[str, Section]) -> frozenset[bytes]:
    """The symbols of its table of calls that no other relocation is about."""
    parts = [sections.get(name) for name in (".dynsym", ".dynstr", ".rela.plt", ".rela.dyn")]
    table, names, calls, others = (_bytes(file, section) if section else b"" for section in parts)

    def numbers(relocations: bytes) -> set[int]:
        return {number for _, _, number, _ in _RELOCATION.iter_unpack(relocations)}

    found = set()
    for number in numbers(calls) - numbers(others):
        at = _SYMBOL.unpack_from(table, number * _SYMBOL.size)[0]
        found.add(names[at : names.find(b"\0", at)])
    return frozenset(found)


def _folders(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(folder for text in texts for folder in text.split(":") if folder)


def _symbols(
    file: BinaryIO, sections: Sequence[Section | None], versions: Mapping[int, str]
) -> tuple[frozenset[bytes], dict[bytes, str]]:
    """Defined names, and undefined ones with their versions.

    By hand: pyelftools takes seconds for the 80,000 symbols of libtorch_cpu.
    """
    table, names, numbers = (_bytes(file, section) if section else b"" for section in sections)
    find = names.find
    defined, undefined = set(), {}
    of_symbol = array("H", numbers)
    for place, (at, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
        name = names[at : find(b"\0", at)]
        if section:
            defined.add(name)
        elif name and info >> 4 != _WEAK:
            undefined[name] = versions.get(of_symbol[place], "") if of_symbol else ""
    return frozenset(defined), undefined


def _numpy_1(file: BinaryIO, section: Section | None) -> bool:
    """What uses NumPy's C interface names the module that has it; the headers of NumPy 2 have the newer name too."""
    constants = _bytes(file, section) if section else b""
    return b"numpy.core._multiarray_umath" in constants and b"numpy._core._multiarray_umath" not in constants


def _bytes(file: BinaryIO, section: Section) -> bytes:
    file.seek(section["sh_offset"])
    return file.read(section["sh_size"])


def _code(file: BinaryIO, sections: Iterable[Section]) -> dict[Code, int]:
    found: Counter[Code] = Counter()
    for section in sections:
        if not section["sh_size"]:
            continue
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            start = section["sh_offset"]
            with view[start : start + section["sh_size"]] as part:
                found.update(code for code in in_section(part) if code.sass or code.ptx)
    return dict(found.most_common())


Demangle = Any
"""A C function, as ctypes has it."""


@cache
def _demangler() -> Demangle | None:
    try:
        made: Demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    made.restype = ctypes.c_void_p
    return made


def demangled(symbol: str) -> str:
    """A C++ name as it stands in the source, by the C++ library at hand; the symbol itself when there is none."""
    demangle = _demangler()
    if demangle is None or not symbol.startswith("_Z"):
        return symbol
    status = ctypes.c_int()
    made = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not made:
        return symbol
    try:
        return ctypes.string_at(made).decode(errors="replace")
    finally:
        libc = ctypes.CDLL(None)
        libc.free(ctypes.c_void_p(made))
