"""Finds programs and libraries in an image that are for another processor than the image is."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import HostArchitecture
from knowngood.engine import image_store

if TYPE_CHECKING:
    from knowngood.core.image_record import ImageRecord
    from knowngood.engine.container_engine import Engine

_MACHINES = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
"""The number of a processor in the head of an ELF file -> its name. Code for GPUs and for BPF has other numbers."""
_HEAD = struct.Struct("<16sHH")
_LOADABLE = (2, 3)
"""The types of ELF files that the kernel or the dynamic linker loads: programs and shared libraries."""


def name_processor(head: bytes) -> str | None:
    """Return the processor that a program or library is for, by the first bytes of its file.

    The result is `None` for any other file: no ELF file, one for linking, or code for a GPU.
    """
    if len(head) < _HEAD.size or not head.startswith(b"\x7fELF"):
        return None
    _, kind, machine = _HEAD.unpack_from(head)
    return _MACHINES.get(machine) if kind in _LOADABLE else None


def find_foreign_libraries(layer: Path, host: HostArchitecture) -> Iterator[tuple[str, str]]:
    """Yield path and processor of each program or library of a layer that is not for `host`.

    The layer is a tar file, compressed with zstd or not at all. Raises `OSError` or `tarfile.TarError` when it cannot
    be read.
    """
    with layer.open("rb") as raw:
        packed = raw.read(4) == b"\x28\xb5\x2f\xfd"
        raw.seek(0)
        if not packed:
            yield from _foreign_members(raw, host)
            return
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(raw) as stream:
            yield from _foreign_members(stream, host)


def _foreign_members(stream: IO[bytes] | Any, host: HostArchitecture) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            processor = name_processor(file.read(_HEAD.size)) if file else None
            if processor not in (None, str(host)):
                yield "/" + member.name.strip("/"), str(processor)


def check_image_processor(engine: Engine, tag: str, record: ImageRecord, host: HostArchitecture) -> None:
    """Read every layer of an image, and raise `KnowngoodError` that names what is not for the image's `host`."""
    problems = []
    with local_files.scratch_folder() as scratch:
        for layer in record.layers:
            path = image_store.find_blob_file(engine, tag, layer.digest, scratch)
            problems += [f"{file} of {layer.name} is for {name}" for file, name in find_foreign_libraries(path, host)]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise KnowngoodError(f"{tag} is for {host}, and cannot run there: {'; '.join(problems[:5])}{more}")
