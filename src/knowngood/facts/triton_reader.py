"""triton's wheels: which assembler they bundle, and what they need on a machine when the first kernel runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from knowngood.facts.fact_reader import FactReader, IndexedRelease, ReleaseReading, choose_wheel_by
from knowngood.index import wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member

_RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
_LAUNCHER_SOURCES = re.compile(
    r"triton/(compiler|common/build|compiler/make_launcher|runtime/build|backends/nvidia/driver)\.(py|c)"
)
_LIBCUDA = re.compile(r"[\"'](libcuda\.so(?:\.1)?)[\"']")


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonFacts:
    """triton's wheel for Linux x86_64. It states no lowest compute capability; see `TorchFacts.triton_min_major`."""

    requires_python: str | None
    """PEP 440 specifier, from triton 3.4 on; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a wheel; tags, those of the stable ABI up to the end of `requires_python`."""
    abi3_from: str | None
    """Oldest CPython of its wheels of the stable ABI; tags."""
    glibc: str | None
    """Lowest glibc; platform tag."""
    wheel_size: int | None
    """Size of the wheel in bytes; index."""
    ptxas: str | None
    """Release of the bundled assembler, `12.8.93`; text in the binary. That of CUDA 13 no longer knows sm_70."""
    ptxas_blackwell: str | None
    """The same for the second assembler, which compiles for sm_100 and newer."""
    c_compiler: bool | None
    """Whether it looks for gcc or clang when the first kernel runs; `build.py` or `compiler.py`."""
    python_h: bool | None
    """Whether what it compiles then includes `Python.h`; the same files."""
    libcuda: str | None
    """File it must find to link with: `libcuda.so` (not every host has it), from 3.0 `libcuda.so.1`; the same files."""


def read_triton(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TritonFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("pythons", lambda: wheel_tags.supported_pythons(release.files, core.requires_python))
    reading.take("abi3_from", lambda: wheel_tags.oldest_abi3_python(release.files), optional=True)
    reading.take("glibc", lambda: wheel_tags.glibc_of_tags(artefact.file.name))
    reading.take("wheel_size", lambda: artefact.size)
    assemblers = {path.rpartition("/")[2]: path for path in artefact.members if re.search(r"/bin/ptxas[\w-]*$", path)}
    for name in ("ptxas", "ptxas-blackwell"):
        if name in assemblers:
            reading.take(name.replace("-", "_"), partial(find_assembler_release, artefact, assemblers[name]))
    sources = [read_text_member(artefact, path) for path in artefact.members if _LAUNCHER_SOURCES.fullmatch(path)]
    if not sources:
        reason = "the files that build triton's launcher are not where they were"
        reading.unknown |= dict.fromkeys(("c_compiler", "python_h", "libcuda"), reason)
        return
    reading.take("c_compiler", lambda: any('which("gcc")' in source for source in sources))
    reading.take("python_h", lambda: any("#include <Python.h>" in source for source in sources))
    reading.take("libcuda", lambda: find_launcher_libcuda(sources))


def find_launcher_libcuda(sources: list[str]) -> str | None:
    """Return the driver's file that must be found to link with: the one without `.1` where that is named too."""
    return min((name for source in sources for name in _LIBCUDA.findall(source)), default=None)


def find_assembler_release(artefact: Artefact, member: str) -> str:
    """Return the CUDA release that an assembler names, by searching its bytes; `UnreadableError` when it names none."""

    def search() -> str:
        rest = b""
        for piece in artefact.stream(member):
            match = _RELEASE.search(rest + piece)
            if match:
                return match[1].decode()
            rest = piece[-100:]
        raise UnreadableError(f"{member} names no CUDA release")

    return str(artefact.derived(f"release of {member}", search))


READERS = (
    FactReader(
        package="triton",
        revision=2,
        model=TritonFacts,
        choose=choose_wheel_by("-cp311-cp311-", "-cp310-cp310-"),
        read=read_triton,
    ),
)
