"""Which GPU code a CUDA library carries: found in its bytes as they stream past, without an ELF in hand.

A fatbin is a header (magic, version, header size, size of what follows) and entries, each PTX text or a cubin with
the architecture it is for. The layout is not documented; it was checked against NVIDIA's `cuobjdump --list-elf`
(docs/decisions/0301-torch-gpu-code.md). nvcc's architecture flags are a string that torch compiles in.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_PTX, _CUBIN = 1, 2
_ARCH_SPECIFIC = 0x100000  # of an entry's flags: sm_90a, not sm_90
_LARGEST = 256 << 20  # bytes of one fatbin; more is not one
_FLAGS = re.compile(rb"(?:-gencode;arch=compute_\w+,code=\w+;?)+")
_GENCODE = re.compile(rb"code=(sm|compute)_(\w+)")
_LONGEST_FLAG = 100  # bytes
_PIECE = 1 << 20  # bytes looked through at a time
_OVERLAP = 16 << 10  # bytes kept of what passed, so that no string is cut


@dataclass(frozen=True, kw_only=True)
class Code:
    """Architectures, as NVIDIA writes them without prefix: `80`, `90a`."""

    sass: frozenset[str]
    """Machine code for exactly these."""
    ptx: frozenset[str]
    """Portable code from these upwards, compiled by the driver."""


def entries(fatbin: bytes | memoryview) -> Code:
    """The code in one fatbin; `ValueError` when its entries do not add up to its size."""
    _, _, header, size = _HEADER.unpack_from(fatbin)
    at, end = header, header + size
    found: dict[int, set[str]] = {_PTX: set(), _CUBIN: set()}
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch, _, _, flags = _ENTRY.unpack_from(fatbin, at)
        if header < _ENTRY.size or at + header + size > end:
            raise ValueError("a fatbin's entry reaches beyond its end")
        if kind in found:
            found[kind].add(f"{arch}a" if flags & _ARCH_SPECIFIC else str(arch))
        at += header + size
    return Code(sass=frozenset(found[_CUBIN]), ptx=frozenset(found[_PTX]))


def in_section(section: memoryview) -> Iterator[Code]:
    """The code of every fatbin in an ELF section that holds nothing else, by their headers alone."""
    at = _next(section, 0)
    while at + _HEADER.size <= len(section):
        end = at + _HEADER.size + _HEADER.unpack_from(section, at)[3]
        try:
            yield entries(section[at:end])
        except (ValueError, struct.error):
            end = at + 1
        at = _next(section, end)


def _next(section: memoryview, at: int) -> int:
    """Where the next fatbin begins: right here, as a rule."""
    while at < len(section):
        if section[at : at + len(_MAGIC)] == _MAGIC:
            return at
        found = bytes(section[at : at + _PIECE]).find(_MAGIC)
        if found >= 0:
            return at + found
        at += _PIECE - len(_MAGIC) + 1
    return len(section)


@dataclass
class Scanner:
    """Reads a library piece by piece."""

    enough: int
    """Stop after this many fatbins."""
    fatbins: list[Code] = field(default_factory=list)
    flags: Code | None = None
    """What nvcc was told to build, when the string has passed."""
    _rest: bytes = b""
    _strings: bytes = b""

    def feed(self, piece: bytes) -> bool:
        """Take the next piece; `True` when enough was seen."""
        if self.flags is None:
            self._look_for_strings(piece)
        data = self._rest + piece
        at = 0
        while len(self.fatbins) < self.enough:
            start = data.find(_MAGIC, at)
            if start < 0:
                at = max(at, len(data) - len(_MAGIC) + 1)
                break
            if start + _HEADER.size > len(data):
                at = start
                break
            size = _HEADER.unpack_from(data, start)[3]
            end = start + _HEADER.size + size
            if size > _LARGEST:
                at = start + 1
            elif end > len(data):
                at = start
                break
            else:
                at = self._take(data, start, end)
        self._rest = data[at:]
        return self.flags is not None and len(self.fatbins) >= self.enough

    def _take(self, data: bytes, start: int, end: int) -> int:
        try:
            code = entries(data[start:end])
        except (ValueError, struct.error):
            return start + 1
        if code.sass or code.ptx:
            self.fatbins.append(code)
        return end

    def _look_for_strings(self, piece: bytes) -> None:
        data = self._strings + piece
        for match in _FLAGS.finditer(data):
            if match.end() + _LONGEST_FLAG <= len(data):  # else it may go on in the next piece
                self.flags = flags_code(match[0])
        self._strings = data[-_OVERLAP:]


def flags_code(flags: bytes) -> Code:
    """What `-gencode;arch=compute_80,code=sm_80;...` asks for."""
    asked = _GENCODE.findall(flags)
    return Code(
        sass=frozenset(arch.decode() for kind, arch in asked if kind == b"sm"),
        ptx=frozenset(arch.decode() for kind, arch in asked if kind == b"compute"),
    )


def in_order(architectures: frozenset[str]) -> list[str]:
    """Sorted by number, then suffix: 75, 80, 90, 90a, 100."""
    return sorted(architectures, key=lambda arch: (int(arch.rstrip("af")), arch))
