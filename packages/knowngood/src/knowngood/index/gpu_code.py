"""Which GPU code a CUDA library contains, found in its bytes while they are streamed, without its ELF sections.

A fatbin is a header (magic, version, header size, size of what follows) and entries. Each entry is PTX text or a cubin,
with the architecture it is for. The layout is not documented; it was checked against NVIDIA's `cuobjdump --list-elf`
(docs/decisions/0302-torch-gpu-code.md). torch also compiles nvcc's architecture flags into the library, as text.
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
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 0x100000, 0x200000  # of an entry's flags: sm_90a and sm_100f, not sm_90 and sm_100
_LARGEST = 256 << 20  # bytes of one fatbin; more is not one
_FLAGS = re.compile(rb"(?:-gencode;arch=compute_\w+,code=\w+;?)+")
_GENCODE = re.compile(rb"code=(sm|compute)_(\w+)")
_LONGEST_FLAG = 100  # bytes
_PIECE = 1 << 20  # bytes looked through at a time
_OVERLAP = 16 << 10  # bytes kept of what passed, so that no string is cut


@dataclass(frozen=True, kw_only=True)
class GpuCode:
    """The architectures that code is for, as NVIDIA writes them without prefix: `80`, `90a`, `100f`."""

    sass: frozenset[str]
    """Machine code for exactly these."""
    ptx: frozenset[str]
    """PTX: portable code that the driver compiles for these and newer ones."""


def parse_fatbin(fatbin: bytes | memoryview) -> GpuCode:
    """Return the code in one fatbin; `ValueError` when its entries do not add up to its size."""
    _, _, header, size = _HEADER.unpack_from(fatbin)
    at, end = header, header + size
    architectures: dict[int, set[str]] = {_PTX: set(), _CUBIN: set()}
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch, _, _, flags = _ENTRY.unpack_from(fatbin, at)
        if header < _ENTRY.size or at + header + size > end:
            raise ValueError("a fatbin's entry reaches beyond its end")
        if kind in architectures:
            suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
            architectures[kind].add(f"{arch}{suffix}")
        at += header + size
    return GpuCode(sass=frozenset(architectures[_CUBIN]), ptx=frozenset(architectures[_PTX]))


def iterate_fatbins(section: memoryview) -> Iterator[GpuCode]:
    """Yield the code of every fatbin in an ELF section that contains nothing else, reading only the headers."""
    at = _next(section, 0)
    while at + _HEADER.size <= len(section):
        end = at + _HEADER.size + _HEADER.unpack_from(section, at)[3]
        try:
            yield parse_fatbin(section[at:end])
        except (ValueError, struct.error):
            end = at + 1
        at = _next(section, end)


def _next(section: memoryview, at: int) -> int:
    """Return where the next fatbin begins, which is usually right at `at`."""
    while at < len(section):
        if section[at : at + len(_MAGIC)] == _MAGIC:
            return at
        offset = bytes(section[at : at + _PIECE]).find(_MAGIC)
        if offset >= 0:
            return at + offset
        at += _PIECE - len(_MAGIC) + 1
    return len(section)


@dataclass
class FatbinScanner:
    """Finds the fatbins of a library that is fed to it piece by piece."""

    enough: int
    """Stop after this many fatbins."""
    fatbins: list[GpuCode] = field(default_factory=list)
    flags: GpuCode | None = None
    """What nvcc's flags name, as soon as they have been found."""
    _rest: bytes = b""
    _strings: bytes = b""

    def feed(self, piece: bytes) -> bool:
        """Take the next piece and return whether enough fatbins and the flags have been found."""
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
            code = parse_fatbin(data[start:end])
        except (ValueError, struct.error):
            return start + 1
        if code.sass or code.ptx:
            self.fatbins.append(code)
        return end

    def _look_for_strings(self, piece: bytes) -> None:
        data = self._strings + piece
        for match in _FLAGS.finditer(data):
            if match.end() + _LONGEST_FLAG <= len(data):  # else it may go on in the next piece
                self.flags = parse_nvcc_flags(match[0])
        self._strings = data[-_OVERLAP:]


def parse_nvcc_flags(flags: bytes) -> GpuCode:
    """Return what `-gencode;arch=compute_80,code=sm_80;...` asks for."""
    targets = _GENCODE.findall(flags)
    return GpuCode(
        sass=frozenset(arch.decode() for kind, arch in targets if kind == b"sm"),
        ptx=frozenset(arch.decode() for kind, arch in targets if kind == b"compute"),
    )


def sort_architectures(architectures: frozenset[str]) -> list[str]:
    """Sort architectures by number, then by suffix: 75, 80, 90, 90a, 100."""
    return sorted(architectures, key=lambda arch: (int(arch.rstrip("af")), arch))


def describe_gpu_code(code: GpuCode) -> str:
    """Return the architectures of a fatbin: `sm_75, sm_80; PTX 90`."""
    parts = [", ".join(f"sm_{arch}" for arch in sort_architectures(code.sass))] if code.sass else []
    parts += [f"PTX {', '.join(sort_architectures(code.ptx))}"] if code.ptx else []
    return "; ".join(parts)
