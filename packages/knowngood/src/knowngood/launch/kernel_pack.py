"""A pack of kernels: what Triton, Inductor and FlashAttention 4 compiled in a cell's image on one kind of GPU. Pure.

They keep compiled kernels under `/cache`, under hashes of source, versions, options and architecture, so a kernel that
does not fit a program is never looked up. Two things are in no hash, and are in the description of a pack instead: the
path (Triton's lists of files name it), which is `/cache` in every image, and the CPU, for which Inductor compiles with
`-march=native`. A pack is a tar file, compressed with xz; the same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from knowngood.core.errors import KnowngoodError

KERNEL_FOLDERS = ("triton", "inductor", "flash-attention")
"""The folders under `/cache` to which the images' environment leads the compilers."""
NO_GPU = "cpu"
"""What takes the place of a GPU's name on a machine without one."""
_DESCRIPTION = "knowngood-kernels.json"
_SCHEMA = "knowngood/kernels/1"
_LITTER = re.compile(r"(^|/)(__pycache__|locks?|tmp\.[^/]*)(/|$)|\.(lock|tmp|pyc|gch)$|(^|/)\.[^/]*$")
"""What is of no use to another process: locks, parts of files, bytecode."""
_LARGEST = 1 << 30
"""Bytes of an unpacked pack; more is refused."""


@dataclass(frozen=True, kw_only=True)
class KernelMachine:
    """What decides whether kernels that were compiled on one machine run on another."""

    gpu: str
    """The name of the GPU as NVML gives it, or `cpu`."""
    capability: str = ""
    """The compute capability, such as `sm_90`; empty without a GPU."""
    driver: str = ""
    cpu_flags: tuple[str, ...] = ()
    """The instruction sets of the CPU, sorted."""


@dataclass(frozen=True, kw_only=True)
class KernelPack:
    """Compiled kernels of a cell on one kind of GPU."""

    cell: str
    image: str
    """The digest of the cell's image in which they were compiled."""
    machine: KernelMachine
    made: str
    """The time at which the kernels were compiled, in UTC."""
    seconds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By setting: the seconds of the first step with an empty cache (`cold`) and with this pack (`warm`)."""
    files: Mapping[str, bytes]
    """The content of each file by its path below `/cache`."""

    @cached_property
    def data(self) -> bytes:
        """The bytes of the pack's file."""
        return lzma.compress(_write_tar({_DESCRIPTION: self._description(), **self.files}, 0, 0), preset=6)

    @property
    def sha256(self) -> str:
        """The hash of the pack's file."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def name(self) -> str:
        """The name of the pack's file; one image has one pack for each kind of GPU."""
        return f"{self.image.removeprefix('sha256:')[:12]}-{slug_machine(self.machine.gpu)}.tar.xz"

    def archive(self, user: int, group: int) -> bytes:
        """Return a tar file of the kernels and their folders, which belong to this user."""
        return _write_tar(self.files, user, group)

    def describe_misfit(self, machine: KernelMachine) -> str:
        """Return why the kernels may not be used on a machine; empty when they may."""
        if machine.gpu != self.machine.gpu:
            return f"they were compiled on {self.machine.gpu}, and this is {machine.gpu}"
        if missing := sorted(set(self.machine.cpu_flags) - set(machine.cpu_flags)):
            return f"this machine's CPU lacks {', '.join(missing[:3])}, which the one that compiled them has"
        return ""

    def document(self) -> dict[str, Any]:
        """Return the pack without its files, as JSON values."""
        return {
            "cell": self.cell,
            "image": self.image,
            "gpu": self.machine.gpu,
            "capability": self.machine.capability,
            "driver": self.machine.driver,
            "made": self.made,
            "seconds": {name: dict(values) for name, values in self.seconds.items()},
            "files": len(self.files),
            "bytes": len(self.data),
            "sha256": self.sha256,
        }

    def _description(self) -> bytes:
        machine = self.machine
        document = {
            "schema": _SCHEMA,
            "cell": self.cell,
            "image": self.image,
            "gpu": machine.gpu,
            "capability": machine.capability,
            "driver": machine.driver,
            "cpu_flags": list(machine.cpu_flags),
            "made": self.made,
            "seconds": self.seconds,
        }
        return json.dumps(document, sort_keys=True).encode()


def slug_machine(gpu: str) -> str:
    """Return the name of a GPU as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def select_kernel_files(archive: bytes) -> dict[str, bytes]:
    """Return the files of a tar file of one of `KERNEL_FOLDERS` that another process can use."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.isreg() and not _LITTER.search(member.name):
                file = tar.extractfile(member)
                assert file is not None  # noqa: S101 - a regular file has content
                files[member.name] = file.read()
    return files


def parse_kernel_pack(data: bytes, name: str) -> KernelPack:
    """Return the pack in the bytes of its file.

    Raises `KnowngoodError` when they are none, or hold a path that a pack may not have; `name` is for the message.
    """
    try:
        files = dict(_read_tar(lzma.LZMADecompressor(), data))
        document = json.loads(files.pop(_DESCRIPTION))
        if document["schema"] != _SCHEMA:
            raise KnowngoodError(f"{name} is a pack of another version ({document['schema']}); make it again")
        machine = KernelMachine(
            gpu=document["gpu"],
            capability=document["capability"],
            driver=document["driver"],
            cpu_flags=tuple(document["cpu_flags"]),
        )
        return KernelPack(
            cell=document["cell"],
            image=document["image"],
            machine=machine,
            made=document["made"],
            seconds=document["seconds"],
            files=files,
        )
    except (lzma.LZMAError, tarfile.TarError, KeyError, TypeError, ValueError, EOFError) as error:
        raise KnowngoodError(f"{name} is not a pack of kernels, or is damaged ({error}); remove it") from None


def parse_cpu_flags(text: str) -> tuple[str, ...]:
    """Return the instruction sets that `/proc/cpuinfo` lists, sorted."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return tuple(sorted(match[1].split())) if match else ()


def _read_tar(decompressor: lzma.LZMADecompressor, data: bytes) -> Iterator[tuple[str, bytes]]:
    raw = decompressor.decompress(data, max_length=_LARGEST)
    if not decompressor.eof:
        raise ValueError("it ends early or is too large")
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if member.isdir():
                continue
            if not member.isreg() or not _is_allowed(member.name, parts):
                raise ValueError(f"it holds {member.name!r}")
            file = tar.extractfile(member)
            assert file is not None  # noqa: S101 - a regular file has content
            yield member.name, file.read()


def _is_allowed(name: str, parts: Collection[str]) -> bool:
    first = next(iter(parts), "")
    return name == _DESCRIPTION or (len(parts) > 1 and first in KERNEL_FOLDERS and ".." not in parts)


def _write_tar(files: Mapping[str, bytes], user: int, group: int) -> bytes:
    """Return a tar file of these files and their folders: sorted, without times, and owned by these ids."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted({*files, *_folders(files)}):
            member = tarfile.TarInfo(name)
            member.uid, member.gid = user, group
            if name in files:
                member.size, member.mode = len(files[name]), 0o644
                tar.addfile(member, io.BytesIO(files[name]))
            else:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
    return buffer.getvalue()


def _folders(paths: Iterable[str]) -> set[str]:
    return {str(parent) for path in paths for parent in PurePosixPath(path).parents if str(parent) != "."}
