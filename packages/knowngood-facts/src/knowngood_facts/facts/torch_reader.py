"""The wheels of torch and torchaudio: what they pin, need and call, and which GPU code they contain."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from packaging.version import Version

from knowngood.index import cxx_standard, wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, PublishedFile, UnreadableError, read_text_member
from knowngood.index.gpu_code import FatbinScanner, sort_architectures
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts.fact_reader import AdditionalWheel, FactReader, ReleaseReading
from knowngood_facts.facts.torch_files import detect_cxx11abi, parse_build_constants

_CUDA_LIBRARY = "torch/lib/libtorch_cuda.so"
_PYTHON_LIBRARY = "torch/lib/libtorch_python.so"
_NUMPY_API = re.compile(rb"numpy\.(_?core)\._multiarray_umath")
_CHOOSE_WHEEL = choose_wheel_by("-cp311-cp311-", "-cp310-cp310-", "-cp39-cp39-", "-cp312-cp312-")
_CUDA_CHECK = re.compile(rb"_ZN3c104cuda29c10_cuda_check_implementation\w+")
_STABLE_HEADER = "torch/include/torch/csrc/stable/c/shim.h"
_STABLE_FUNCTION = re.compile(r"^\s*AOTI_TORCH_EXPORT\b[^;(]*?\b(torch_\w+)\s*\(", re.MULTILINE)
_FATBINS = 12  # to read of a library that has 250 to 500


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """torch's wheel for Linux x86_64, as the default index serves it (for CPython 3.11 where there is one).

    An architecture is written as NVIDIA's tools do, without `sm_`: `80`, `90a`, `100f`.
    """

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel, `3.11`; the tags of the release's wheels."""
    free_threaded: tuple[str, ...] | None
    """The same for the free-threaded ABI, `3.13t`."""
    cuda: str | None
    """CUDA release it was compiled with, `13.0`; `torch/version.py`."""
    cudnn: str | None
    """Exact pin, `9.19.0.56`; METADATA."""
    nccl: str | None
    """Exact pin, `2.28.9`; METADATA."""
    triton: str | None
    """Release of triton that it pins on Linux (the base of a `~=`), `3.6.0`; METADATA."""
    triton_requires: str | None
    """PEP 440 specifier on triton: exact up to torch 2.13, compatible-release since; METADATA."""
    triton_min_major: int | None
    """Lowest major compute capability on which `torch.compile` uses triton; its own check, in Python."""
    glibc: str | None
    """Lowest glibc, `2.28`: the tag's, or what `libc10.so` and `libc10_cuda.so` need where that is higher."""
    cxx11abi: bool | None
    """Whether its C++ interface has the `std::string` of C++11; exported symbols of `libc10.so`."""
    sass: tuple[str, ...] | None
    """Architectures that every kernel has machine code for; the first fatbins of `libtorch_cuda.so`, compared with the
    nvcc flags compiled into it. Single kernels have more (`90a`, `100a`), which are not listed."""
    ptx: tuple[str, ...] | None
    """The same for PTX, from which the driver compiles for newer GPUs."""
    git: str | None
    """Commit it was built from; `torch/version.py`."""
    numpy_1_only: bool | None
    """Whether it was compiled with NumPy 1, so that it cannot exchange arrays with NumPy 2; `libtorch_python.so`, which
    looks for NumPy 2's module, `numpy._core`, only when it was compiled with NumPy 2."""
    aarch64_cuda: str | None
    """CUDA release of its wheel for Linux aarch64, `13.0`; `none` when that is built for the CPU only. That wheel's
    `torch/version.py`, and whether `libtorch_cuda.so` is in it."""
    aarch64_sass: tuple[str, ...] | None
    """What `sass` is, of the wheel for aarch64; empty when that is built for the CPU only."""
    aarch64_ptx: tuple[str, ...] | None
    """What `ptx` is, of the wheel for aarch64."""
    stable_functions: tuple[str, ...] | None
    """The functions `torch_...` of its stable C interface, which libraries may call that were compiled with another
    torch; `stable/c/shim.h`. Before torch 2.10 there are none."""
    cuda_check: str | None
    """The name, as the linker has it, of the function by which its headers check a call of CUDA. A CUDA extension that
    is compiled against these headers loads only on a torch that exports the same; `libc10_cuda.so`."""
    cxx_minimum: int | None
    """The C++ standard that its headers demand of an extension, 17 for C++17; `ATen/ATen.h`."""


def read_torch(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TorchFacts`)."""
    reading.take("pythons", lambda: wheel_tags.supported_pythons(release.files))
    reading.take("free_threaded", lambda: wheel_tags.free_threaded_pythons(release.files))
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python)
    build = parse_build_constants(read_text_member(artefact, "torch/version.py"))
    reading.take("cuda", lambda: build.get("cuda"))
    reading.take("git", lambda: build.get("git_version"))
    requirements = core.requirements_on(_python_of(artefact.file.name))
    triton = wheel_metadata.specifier_text(requirements.get("triton"))
    reading.take("triton", lambda: parse_triton_pin(triton))
    reading.take("triton_requires", lambda: triton or None)
    for fact, prefix in (("cudnn", "nvidia-cudnn"), ("nccl", "nvidia-nccl")):
        pins = [pin for name, pin in requirements.items() if name.startswith(prefix)]
        reading.take(fact, partial(wheel_metadata.exact_pin, pins[0] if pins else None))
    reading.take("triton_min_major", lambda: find_triton_min_major(artefact))
    reading.take("cxx11abi", lambda: detect_cxx11abi(artefact.read("torch/lib/libc10.so")))
    reading.take_all("gpu_code", lambda: artefact.derived(f"gpu-code-{_FATBINS}", lambda: scan_gpu_code(artefact)))
    reading.take("glibc", lambda: find_glibc(artefact))


def choose_aarch64_wheel(release: IndexedRelease) -> PublishedFile | None:
    """Choose the wheel for Linux aarch64, for CPython 3.11 where there is one."""
    wheels = [file for file in release.files if re.search(r"-cp3\d+-(many)?linux[^-]*_aarch64\.whl$", file.name)]
    return next((file for file in wheels if "-cp311-cp311-" in file.name), next(iter(wheels), None))


def read_aarch64_wheel(artefact: Artefact) -> dict[str, Any]:
    """Return which CUDA the wheel for aarch64 was built with; `UnreadableError` when its parts disagree."""
    cuda = parse_build_constants(read_text_member(artefact, "torch/version.py")).get("cuda")
    if bool(cuda) != (_CUDA_LIBRARY in artefact.members):
        raise UnreadableError(
            f"{artefact.file.name}: version.py names CUDA {cuda}, and the list of files says otherwise"
        )
    return {"aarch64_cuda": cuda or "none"}


def read_aarch64_gpu_code(artefact: Artefact) -> dict[str, Any]:
    """Return the architectures of the wheel for aarch64, none when it has no CUDA; raises as `scan_gpu_code` does."""
    if _CUDA_LIBRARY not in artefact.members:
        return {"aarch64_sass": [], "aarch64_ptx": []}
    code = artefact.derived(f"gpu-code-{_FATBINS}", lambda: scan_gpu_code(artefact))
    return {"aarch64_sass": code["sass"], "aarch64_ptx": code["ptx"]}


def read_stable_functions(artefact: Artefact) -> dict[str, Any]:
    """Return the functions that torch's header of the stable C interface declares; none when it has no such header."""
    source = read_text_member(artefact, _STABLE_HEADER) if _STABLE_HEADER in artefact.members else ""
    return {"stable_functions": sorted(set(_STABLE_FUNCTION.findall(source)))}


def read_cxx_minimum(artefact: Artefact) -> dict[str, Any]:
    """Return the C++ standard that torch's headers demand; `UnreadableError` when they do not say it."""
    standard = cxx_standard.find_demanded_standard(read_text_member(artefact, cxx_standard.HEADER))
    if standard is None:
        raise UnreadableError(f"{cxx_standard.HEADER} demands no C++ standard")
    return {"cxx_minimum": standard}


def read_cuda_check(artefact: Artefact) -> dict[str, Any]:
    """Return the linker's name of the function that checks calls of CUDA; `UnreadableError` when it is not one."""
    names = set(_CUDA_CHECK.findall(artefact.read("torch/lib/libc10_cuda.so")))
    if len(names) != 1:
        raise UnreadableError(f"libc10_cuda.so has {len(names)} functions that check calls of CUDA")
    return {"cuda_check": names.pop().decode()}


def find_triton_min_major(artefact: Artefact) -> int | None:
    """Return the lowest major compute capability on which torch.compile uses triton: `major >= 7` in its own check."""
    for member in ("torch/_dynamo/device_interface.py", "torch/utils/_triton.py", "torch/_inductor/scheduler.py"):
        if member in artefact.members:
            match = re.search(r"\.major\s*(?:>=|<)\s*(\d+)", read_text_member(artefact, member))
            if match:
                return int(match[1])
    return None


def find_glibc(artefact: Artefact) -> str:
    """Return the lowest glibc by the platform tag and by the symbol versions that torch's base libraries name.

    The tag alone promises too much: wheels up to torch 2.6 are tagged manylinux1 (glibc 2.5) and need more.
    """
    versions = [wheel_tags.glibc_of_tags(artefact.file.name) or "2.0"]
    for library in ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so"):
        versions += [name.decode() for name in re.findall(rb"\0GLIBC_(2\.\d+)(?=[\0.])", artefact.read(library))]
    return str(max(map(Version, versions)))


def scan_gpu_code(artefact: Artefact) -> dict[str, Any]:
    """Return the architectures in the first fatbins of `libtorch_cuda.so`.

    `UnreadableError` when they are not the architectures that nvcc's flags name.
    """
    scanner = FatbinScanner(enough=_FATBINS)
    for piece in artefact.stream(_CUDA_LIBRARY):
        if scanner.feed(piece):
            break
    if scanner.flags is None or not scanner.fatbins:
        raise UnreadableError("libtorch_cuda.so has no architecture flags or no fatbin where they are expected")
    sass = frozenset.intersection(*(code.sass for code in scanner.fatbins))
    ptx = frozenset.intersection(*(code.ptx for code in scanner.fatbins))
    if (sass, ptx) != (scanner.flags.sass, scanner.flags.ptx):
        flags = sort_architectures(scanner.flags.sass) + sort_architectures(scanner.flags.ptx)
        raise UnreadableError(
            f"the fatbins carry {sort_architectures(sass)}, PTX {sort_architectures(ptx)}; nvcc was told {flags}"
        )
    return {
        "sass": sort_architectures(sass),
        "ptx": sort_architectures(ptx),
    }


def read_numpy_api(artefact: Artefact) -> dict[str, Any]:
    """Return whether `libtorch_python.so` looks for the C API of NumPy 1 only; `UnreadableError` when for none."""

    def search() -> list[str]:
        names, rest = set[bytes](), b""
        for piece in artefact.stream(_PYTHON_LIBRARY):
            names.update(_NUMPY_API.findall(rest + piece))
            if len(names) > 1:
                break
            rest = piece[-100:]
        return sorted(name.decode() for name in names)

    names = artefact.derived("numpy-api", search)
    if "core" not in names:
        raise UnreadableError(f"{_PYTHON_LIBRARY} names no module of NumPy's C API")
    return {"numpy_1_only": "_core" not in names}


def parse_triton_pin(specifier: str) -> str | None:
    """Return the triton that a specifier leads to: the version of `==`, or the base of `~=`."""
    operator, version = specifier[:2], specifier[2:]
    return version if operator in {"==", "~="} and "," not in version else None


def _python_of(wheel: str) -> str:
    """Return `3.11` for a wheel of cp311."""
    interpreter = min(tag.interpreter for tag in wheel_tags.tags_of_wheel(wheel))
    return f"{interpreter[2]}.{interpreter[3:]}"


_PREFIX = "torch_"
"""How the names of the functions begin; those of the older interface (`aoti_torch_`) are not looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchaudioFacts:
    """torchaudio's wheel for Linux x86_64."""

    torch_functions: tuple[str, ...] | None
    """The functions of torch's stable C interface that its libraries call, sorted; their dynamic symbols."""


def read_torchaudio(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TorchaudioFacts`)."""
    libraries = [member for member in artefact.members if member.endswith(".so")]
    reading.take(
        "torch_functions",
        lambda: sorted({name for member in libraries for name in find_called_functions(artefact, member)}),
    )


def find_called_functions(artefact: Artefact, member: str) -> list[str]:
    """Return the functions of torch's stable C interface that a library calls.

    Raises `UnreadableError` when it is no ELF file, or has no dynamic symbols.
    """

    def find() -> list[str]:
        try:
            table = ELFFile(io.BytesIO(artefact.read(member))).get_section_by_name(".dynsym")
        except ELFError as error:
            raise UnreadableError(f"{member} is not a shared library: {error}") from None
        if not isinstance(table, SymbolTableSection):
            raise UnreadableError(f"{member} has no dynamic symbols")
        called = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF")
        needed = (symbol.name for symbol in called if symbol["st_info"]["bind"] != "STB_WEAK")
        return sorted(name for name in needed if name.startswith(_PREFIX))

    names: list[str] = artefact.derived(f"torch-functions of {member}", find)
    return names


READERS = (
    FactReader(
        package="torch",
        revision=4,
        model=TorchFacts,
        choose=_CHOOSE_WHEEL,
        read=read_torch,
        additional=(
            AdditionalWheel(
                choose=choose_aarch64_wheel,
                facts=("aarch64_cuda",),
                read=read_aarch64_wheel,
            ),
            AdditionalWheel(
                choose=choose_aarch64_wheel, facts=("aarch64_sass", "aarch64_ptx"), read=read_aarch64_gpu_code
            ),
            AdditionalWheel(choose=_CHOOSE_WHEEL, facts=("numpy_1_only",), read=read_numpy_api),
            AdditionalWheel(choose=_CHOOSE_WHEEL, facts=("stable_functions",), read=read_stable_functions),
            AdditionalWheel(choose=_CHOOSE_WHEEL, facts=("cxx_minimum",), read=read_cxx_minimum),
            AdditionalWheel(choose=_CHOOSE_WHEEL, facts=("cuda_check",), read=read_cuda_check),
        ),
    ),
    FactReader(
        package="torchaudio",
        revision=1,
        model=TorchaudioFacts,
        choose=choose_wheel_by("-cp311-cp311-", "-cp310-cp310-", "-cp312-cp312-"),
        read=read_torchaudio,
    ),
)
