"""torch's wheels: what they pin, what they need of the system, and which GPU code they carry.

Only the wheel for Linux x86_64 is read, and of it the METADATA, `torch/version.py`, `libc10*.so` and the first part
of `libtorch_cuda.so`, up to its first fatbins: some 20 MB of 300 to 550.
"""

from __future__ import annotations

import re
from typing import Any

from packaging.version import Version

from knowngood.fatbin import Scanner, in_order
from knowngood.harvest import metadata
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.index import Unreadable
from knowngood.harvest.reading import Published, Reader, Reading, by_tags
from knowngood.torchfiles import build_constants, cxx11abi

_ENOUGH = 12  # fatbins to read of a library that has 250 to 500


def read(artefact: Artefact, published: Published, reading: Reading) -> None:
    """Fill in the facts of one torch release (see `knowngood.models.Torch` for their meaning)."""
    reading.take("pythons", lambda: metadata.pythons(published.files))
    reading.take("free_threaded", lambda: metadata.free_threaded(published.files))
    reading.take("wheel_size", lambda: artefact.size)
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ".dist-info/METADATA")))
    reading.take("requires_python", lambda: core.requires_python)
    build = build_constants(text(artefact, "torch/version.py"))
    reading.take("cuda", lambda: build.get("cuda"))
    reading.take("git", lambda: build.get("git_version"))
    pins = core.on(_python_of(artefact.file.name))
    reading.take("triton", lambda: pinned(metadata.bounds(pins.get("triton"))))
    reading.take("triton_requires", lambda: metadata.bounds(pins.get("triton")) or None)
    for fact, prefix in (("cudnn", "nvidia-cudnn"), ("nccl", "nvidia-nccl")):
        reading.take(
            fact,
            lambda prefix=prefix: next(  # type: ignore[misc]
                (metadata.exact(pin) for name, pin in pins.items() if name.startswith(prefix)), None
            ),
        )
    reading.take("requires", lambda: metadata.requirement_map(pins))
    reading.take("triton_min_major", lambda: triton_min_major(artefact))
    reading.take("cxx11abi", lambda: cxx11abi(artefact.read("torch/lib/libc10.so")))
    code = reading.take("gpu_code", lambda: artefact.derived(f"gpu-code-{_ENOUGH}", lambda: gpu_code(artefact)))
    if code is not None:
        reading.facts |= reading.facts.pop("gpu_code")
    reading.take("glibc_tag", lambda: metadata.glibc_of_tags(artefact.file.name))
    reading.take("glibc", lambda: glibc(artefact))


def triton_min_major(artefact: Artefact) -> int | None:
    """The least major compute capability on which torch.compile uses triton: `major >= 7` in its own check."""
    for member in ("torch/_dynamo/device_interface.py", "torch/utils/_triton.py", "torch/_inductor/scheduler.py"):
        if member in artefact.members:
            match = re.search(r"\.major\s*(?:>=|<)\s*(\d+)", text(artefact, member))
            if match:
                return int(match[1])
    return None


def glibc(artefact: Artefact) -> str:
    """The least glibc by the platform tag and by the symbol versions that torch's base libraries name.

    The tag alone says too little: wheels up to torch 2.6 are tagged manylinux1 (glibc 2.5) and are not.
    """
    named = [metadata.glibc_of_tags(artefact.file.name) or "2.0"]
    for library in ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so"):
        named += [found.decode() for found in re.findall(rb"\0GLIBC_(2\.\d+)(?=[\0.])", artefact.read(library))]
    return str(max(map(Version, named)))


def gpu_code(artefact: Artefact) -> dict[str, Any]:
    """The architectures in the fatbins that `libtorch_cuda.so` begins with, which must be those nvcc was told."""
    scanner = Scanner(enough=_ENOUGH)
    for piece in artefact.stream("torch/lib/libtorch_cuda.so"):
        if scanner.feed(piece):
            break
    if scanner.flags is None or not scanner.fatbins:
        raise Unreadable("libtorch_cuda.so has no architecture flags or no fatbin where they are expected")
    sass = frozenset.intersection(*(code.sass for code in scanner.fatbins))
    ptx = frozenset.intersection(*(code.ptx for code in scanner.fatbins))
    if (sass, ptx) != (scanner.flags.sass, scanner.flags.ptx):
        flags = in_order(scanner.flags.sass) + in_order(scanner.flags.ptx)
        raise Unreadable(f"the fatbins carry {in_order(sass)}, PTX {in_order(ptx)}; nvcc was told {flags}")
    return {
        "sass": in_order(sass),
        "ptx": in_order(ptx),
        "fatbins_read": len(scanner.fatbins),
    }


def pinned(specifier: str) -> str | None:
    """The triton that a specifier leads to: the version of `==`, or the base of `~=`."""
    operator, version = specifier[:2], specifier[2:]
    return version if operator in {"==", "~="} and "," not in version else None


def _python_of(wheel: str) -> str:
    """`3.11` for a wheel of cp311."""
    interpreter = min(tag.interpreter for tag in metadata.tags(wheel))
    return f"{interpreter[2]}.{interpreter[3:]}"


READER = Reader(
    package="torch",
    revision=4,
    choose=by_tags("-cp311-cp311-", "-cp310-cp310-", "-cp39-cp39-", "-cp312-cp312-"),
    read=read,
)
