"""Which GPUs run the code in a compiled wheel: read from the bytes of its libraries, without a GPU.

A library of flash-attn has a fatbin for each of its source files. Each of them must have code for the GPU: otherwise
some head dimensions fail when they are first used, and all others work.
"""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood.compat.rule_relations import code_runs_on_gpu
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError
from knowngood.facts import gpu_code
from knowngood.facts.gpu_code import GpuCode


@dataclass(frozen=True, kw_only=True)
class LibraryCode:
    """The GPU code of a library in a wheel."""

    file: str
    fatbins: tuple[GpuCode, ...]
    """One for each source file with device code, in most builds."""


def read_folder_code(folder: Path) -> list[LibraryCode]:
    """Return the libraries below a folder that have GPU code, in the order of their paths."""
    libraries = []
    for library in sorted(folder.rglob("*.so*")):
        if not library.stat().st_size:
            continue
        with (
            library.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as whole,
        ):
            fatbins = tuple(code for code in gpu_code.iterate_fatbins(whole) if code.sass or code.ptx)
        if fatbins:
            libraries.append(LibraryCode(file=library.relative_to(folder).as_posix(), fatbins=fatbins))
    return libraries


def read_wheel_code(wheel: Path) -> list[LibraryCode]:
    """Return the libraries in a wheel that have GPU code; `KnowngoodError` when it is not a wheel."""
    with local_files.scratch_folder() as scratch:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch, [name for name in archive.namelist() if ".so" in name])
        except zipfile.BadZipFile as error:
            raise KnowngoodError(f"{wheel.name} is not a wheel: {error}") from None
        return read_folder_code(scratch)


def list_architectures(libraries: Iterable[LibraryCode]) -> list[str]:
    """Return the architectures, as numbers, for which libraries have machine code, in order. Pure."""
    codes = frozenset().union(*(code.sass for library in libraries for code in library.fatbins))
    return gpu_code.sort_architectures(frozenset(code for code in codes if code.isdigit()))


def find_unrunnable_code(libraries: Sequence[LibraryCode], gpu: str) -> list[str]:
    """Return a sentence for each library with a fatbin of which this GPU (`sm_86`) runs nothing. Pure."""
    problems = []
    for library in libraries:
        lacking = [code for code in library.fatbins if not code_runs_on_gpu(gpu, code.sass, code.ptx)]
        if lacking:
            has = ", ".join(dict.fromkeys(gpu_code.describe_gpu_code(code) for code in lacking))
            count = f"{len(lacking)} of its {len(library.fatbins)} fatbins have" if library.fatbins[1:] else "it has"
            problems.append(f"{library.file} has no code that runs on {gpu}: {count} {has}")
    return problems


def require_runnable_code(file: str, libraries: Sequence[LibraryCode], gpu: str) -> None:
    """Raise `KnowngoodError` when a GPU does not run all GPU code of the wheel with this file name."""
    if problems := find_unrunnable_code(libraries, gpu):
        raise KnowngoodError(f"{file} cannot be used on {gpu}: {'; '.join(problems)}; remove it")
