"""bitsandbytes' wheels: for which CUDA releases they have a binary, and which GPU code is in each.

A wheel has one `libbitsandbytes_cuda126.so` for each CUDA release. At import it loads the one for torch's CUDA; newer
releases take another of the same major when that one is missing (`cextension.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from knowngood.facts import python_source
from knowngood.facts.fact_reader import FactReader, IndexedRelease, ReleaseReading, choose_wheel_by
from knowngood.facts.gpu_code import FatbinScanner, GpuCode, sort_architectures
from knowngood.index import wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member

if TYPE_CHECKING:
    from collections.abc import Iterable

_BINARY = re.compile(r"bitsandbytes/libbitsandbytes_cuda(\d\d)(\d+)\.so")
_CHOOSER = "get_cuda_bnb_library_path"
_SEARCH = "_find_cuda_libs"
_MINORS = range(10)
_FATBINS = 8  # to read of a binary that has one for each source file
_NO_FLAGS = GpuCode(sass=frozenset(), ptx=frozenset())

Architectures = Mapping[str, tuple[str, ...]]
"""CUDA release of torch -> the architectures of the binary that is loaded with it: `12.6` -> `75`, `80`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BitsandbytesFacts:
    """bitsandbytes' wheel for Linux x86_64."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel; tags."""
    glibc: str | None
    """Lowest glibc; platform tag."""
    binaries: tuple[str, ...] | None
    """The CUDA releases that have a binary of their own; the wheel's files."""
    takes_same_major: bool | None
    """Whether it loads another binary of the same CUDA major where the exact one is missing; `cextension.py`."""
    sass_by_cuda: Architectures | None
    """Machine code of the binary; its first fatbins."""
    ptx_by_cuda: Architectures | None
    """PTX that the driver compiles for newer GPUs; the same fatbins."""


def read_bitsandbytes(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `BitsandbytesFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    pythons = wheel_tags.supported_pythons(release.files, core.requires_python)
    reading.take("pythons", lambda: pythons or None, optional=True)
    reading.take("glibc", lambda: wheel_tags.glibc_of_tags(artefact.file.name))
    members = {f"{match[1]}.{match[2]}": match[0] for match in map(_BINARY.fullmatch, artefact.members) if match}
    binaries = sorted(members, key=_release_numbers)
    reading.take("binaries", lambda: binaries or None)
    source = read_text_member(artefact, "bitsandbytes/cextension.py")
    same_major = reading.take("takes_same_major", lambda: takes_same_major(source))
    if binaries and same_major is not None:
        code = {cuda: scan_binary(artefact, members[cuda]) for cuda in binaries}
        loaded = list_loaded_binaries(binaries, same_major=same_major)
        for kind in ("sass", "ptx"):
            reading.take(f"{kind}_by_cuda", partial(_code_by_cuda, code, loaded, kind))


def takes_same_major(source: str) -> bool:
    """Return whether the code that chooses the binary looks for others; `UnreadableError` when it has another form."""
    tree = python_source.parse_python(source, "cextension.py")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if _CHOOSER not in functions:
        raise UnreadableError(f"cextension.py has no {_CHOOSER}")
    names = {node.id for node in ast.walk(functions[_CHOOSER]) if isinstance(node, ast.Name)}
    if names & functions.keys() - {_SEARCH}:
        raise UnreadableError(f"{_CHOOSER} in cextension.py calls functions that are not understood")
    return _SEARCH in names


def list_loaded_binaries(binaries: Iterable[str], *, same_major: bool) -> dict[str, str]:
    """Return CUDA release of torch -> the binary that is loaded with it.

    With `same_major` it is the newest binary that is not newer, else the oldest, of that major; without, the exact one.
    """
    exact = {cuda: cuda for cuda in binaries}
    if not same_major:
        return exact
    loaded: dict[str, str] = {}
    for major in sorted({_release_numbers(cuda)[0] for cuda in exact}):
        own = sorted((cuda for cuda in exact if _release_numbers(cuda)[0] == major), key=_release_numbers)
        for minor in _MINORS:
            older = [cuda for cuda in own if _release_numbers(cuda) <= (major, minor)]
            loaded[f"{major}.{minor}"] = older[-1] if older else own[0]
    return loaded


def scan_binary(artefact: Artefact, member: str) -> dict[str, tuple[str, ...]]:
    """Return the machine code that the first fatbins of a binary all have, and the PTX that one of them has.

    `UnreadableError` when it has no fatbin. The fatbins that the linker adds repeat the machine code without the PTX.
    """

    def scan() -> dict[str, Any]:
        scanner = FatbinScanner(enough=_FATBINS, flags=_NO_FLAGS)  # nvcc leaves its flags in torch only
        for piece in artefact.stream(member):
            if scanner.feed(piece):
                break
        if not scanner.fatbins:
            raise UnreadableError(f"{member} has no fatbin")
        code = GpuCode(
            sass=frozenset.intersection(*(item.sass for item in scanner.fatbins)),
            ptx=frozenset.union(*(item.ptx for item in scanner.fatbins)),
        )
        return {"sass": sort_architectures(code.sass), "ptx": sort_architectures(code.ptx)}

    return {kind: tuple(names) for kind, names in artefact.derived(f"gpu-code of {member}", scan).items()}


def _code_by_cuda(
    code: Mapping[str, Mapping[str, tuple[str, ...]]], loaded: Mapping[str, str], kind: str
) -> dict[str, tuple[str, ...]]:
    return {cuda: code[binary][kind] for cuda, binary in loaded.items()}


def _release_numbers(cuda: str) -> tuple[int, int]:
    major, _, minor = cuda.partition(".")
    return int(major), int(minor)


READERS = (
    FactReader(
        package="bitsandbytes",
        revision=1,
        model=BitsandbytesFacts,
        choose=choose_wheel_by("manylinux"),
        read=read_bitsandbytes,
    ),
)
