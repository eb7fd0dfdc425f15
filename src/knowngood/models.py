"""The facts that are kept of a release of each package, with unit and source.

Every field may be `None`: not known, or no such thing in that release (`Release.unknown` tells which).
"PEP 440 specifier" is text such as `>=3.10,<3.15`; an empty one allows everything.
An architecture is written as NVIDIA's tools do without `sm_`: `80`, `90a`, `100f`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Requirements = Mapping[str, str]
"""Canonical package name -> PEP 440 specifier, before it its extras in brackets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Torch:
    """torch's wheel for Linux x86_64, as the default index serves it (of CPython 3.11 where there is one)."""

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
    """Release of triton it pins on Linux (the base of a `~=`), `3.6.0`; METADATA."""
    triton_requires: str | None
    """PEP 440 specifier on triton: exact up to torch 2.14, compatible-release since; METADATA."""
    requires: Requirements | None
    """Everything it requires on Linux x86_64 with the wheel's Python; METADATA."""
    glibc: str | None
    """Least glibc, `2.28`: the platform tag's, or what `libc10.so` and `libc10_cuda.so` need where that is more."""
    glibc_tag: str | None
    """What the platform tag alone promises; up to torch 2.6 that is manylinux1's `2.5`, which is not true."""
    cxx11abi: bool | None
    """Whether its C++ interface has the `std::string` of C++11; exported symbols of `libc10.so`."""
    sass: tuple[str, ...] | None
    """Architectures whose machine code every kernel has; the first fatbins of `libtorch_cuda.so`, checked against the
    nvcc flags compiled into it. Single kernels have more (`90a`, `100a`), which is not listed."""
    ptx: tuple[str, ...] | None
    """The same for PTX, from which the driver compiles for newer GPUs."""
    fatbins_read: int | None
    """How many fatbins of `libtorch_cuda.so` were read for `sass` and `ptx`."""
    wheel_size: int | None
    """Bytes."""
    git: str | None
    """Commit it was built from; `torch/version.py`."""
