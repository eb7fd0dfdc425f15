"""triton's wheels: whose assembler they bundle, and what they need of a machine when the first kernel runs."""

from __future__ import annotations

import re

from knowngood.harvest import metadata
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.index import Unreadable
from knowngood.harvest.reading import Published, Reader, Reading, by_tags

_RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
_RUNTIME = re.compile(
    r"triton/(compiler|common/build|compiler/make_launcher|runtime/build|backends/nvidia/driver)\.(py|c)"
)
_LIBCUDA = re.compile(r"[\"'](libcuda\.so(?:\.1)?)[\"']")


def read(artefact: Artefact, published: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.Triton`)."""
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ".dist-info/METADATA")))
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("pythons", lambda: metadata.pythons(published.files, core.requires_python))
    reading.take("abi3_from", lambda: metadata.abi3_from(published.files), optional=True)
    reading.take("requires", lambda: metadata.requirement_map(core.on("3.11")))
    reading.take("glibc", lambda: metadata.glibc_of_tags(artefact.file.name))
    reading.take("wheel_size", lambda: artefact.size)
    assemblers = {name.rpartition("/")[2]: name for name in artefact.members if re.search(r"/bin/ptxas[\w-]*$", name)}
    for name, fact in (("ptxas", "ptxas"), ("ptxas-blackwell", "ptxas_blackwell")):
        if name in assemblers:
            reading.take(fact, lambda name=name: release_of(artefact, assemblers[name]))  # type: ignore[misc]
    sources = [text(artefact, member) for member in artefact.members if _RUNTIME.fullmatch(member)]
    if not sources:
        reading.missing(
            ("c_compiler", "python_h", "libcuda"), "the files that build triton's launcher are not where they were"
        )
        return
    reading.take("c_compiler", lambda: any('which("gcc")' in source for source in sources))
    reading.take("python_h", lambda: any("#include <Python.h>" in source for source in sources))
    reading.take("libcuda", lambda: libcuda(sources))


def libcuda(sources: list[str]) -> str | None:
    """The file of the driver that must be found to link with: without `.1` where that is asked for."""
    return min((name for source in sources for name in _LIBCUDA.findall(source)), default=None)


def release_of(artefact: Artefact, member: str) -> str:
    """The CUDA release that an assembler says it is of, searched in its bytes."""

    def search() -> str:
        rest = b""
        for piece in artefact.stream(member):
            match = _RELEASE.search(rest + piece)
            if match:
                return match[1].decode()
            rest = piece[-100:]
        raise Unreadable(f"{member} names no CUDA release")

    return str(artefact.derived(f"release of {member}", search))


READER = Reader(package="triton", revision=2, choose=by_tags("-cp311-cp311-", "-cp310-cp310-"), read=read)
