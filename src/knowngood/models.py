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

Functions = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dotted name -> parameters as in the source without annotations, and the numbers of values its `return`s give.

No number: that is not to be seen in the source (it returns what a call gives). `(1, 3)`: it depends on an argument.
"""


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
    """PEP 440 specifier on triton: exact up to torch 2.13, compatible-release since; METADATA."""
    triton_min_major: int | None
    """Least major compute capability on which `torch.compile` uses triton; its own check, in Python."""
    requires: Requirements | None
    """Everything it requires on Linux x86_64 with the wheel's Python; METADATA."""
    glibc: str | None
    """Least glibc, `2.28`: the tag's, or what `libc10.so` and `libc10_cuda.so` need where that is more."""
    glibc_tag: str | None
    """What the platform tag alone promises; up to torch 2.6 that is manylinux1's `2.5`, which is not true."""
    cxx11abi: bool | None
    """Whether its C++ interface has the `std::string` of C++11; exported symbols of `libc10.so`."""
    sass: tuple[str, ...] | None
    """Architectures whose machine code every kernel has; the first fatbins of `libtorch_cuda.so`, checked against
    the nvcc flags compiled into it. Single kernels have more (`90a`, `100a`), which is not listed."""
    ptx: tuple[str, ...] | None
    """The same for PTX, from which the driver compiles for newer GPUs."""
    fatbins_read: int | None
    """How many fatbins of `libtorch_cuda.so` were read for `sass` and `ptx`."""
    wheel_size: int | None
    """Bytes."""
    git: str | None
    """Commit it was built from; `torch/version.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Triton:
    """triton's wheel for Linux x86_64. It states no least compute capability; see `Torch.triton_min_major`."""

    requires_python: str | None
    """PEP 440 specifier, from triton 3.4; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a wheel; tags, those of the stable ABI followed up to the end of `requires_python`."""
    abi3_from: str | None
    """Oldest CPython of its wheels of the stable ABI; tags."""
    requires: Requirements | None
    """METADATA."""
    glibc: str | None
    """Least glibc; platform tag."""
    wheel_size: int | None
    """Bytes."""
    ptxas: str | None
    """Release of the bundled assembler, `12.8.93`; text in the binary. CUDA 13's knows no sm_70 any more."""
    ptxas_blackwell: str | None
    """The same for the second assembler, which compiles for sm_100 and newer."""
    c_compiler: bool | None
    """It looks for gcc or clang when the first kernel runs; `build.py` or `compiler.py`."""
    python_h: bool | None
    """What it compiles then includes `Python.h`; the same files."""
    libcuda: str | None
    """File it must find to link with: `libcuda.so` (not every host has it), from 3.0 `libcuda.so.1`; the same files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformers:
    """transformers' wheel."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """Base requirements, with the oldest Python it allows; METADATA."""
    tokenizers: str | None
    """PEP 440 specifier; METADATA."""
    huggingface_hub: str | None
    """PEP 440 specifier; METADATA."""
    torch: str | None
    """PEP 440 specifier of the extra `torch`: declared, not enforced; METADATA."""
    accelerate: str | None
    """PEP 440 specifier of the extra `torch`; METADATA."""
    torch_enforced: str | None
    """Least torch, below which it acts as if there were none; `is_torch_available`. None before 4.52: any torch."""
    attention: tuple[str, ...] | None
    """Values of `attn_implementation` it knows; `modeling_utils.py`."""
    qwen2: bool | None
    """Whether it has Qwen2."""
    qwen2_attention: tuple[str, ...] | None
    """Those of `attention` that Qwen2 has; `modeling_qwen2.py`."""
    flash_attn_minimum: str | None
    """Least flash-attn that it uses on CUDA; `is_flash_attn_2_available`."""
    sdpa_torch: str | None
    """Least torch for SDPA, where that is more than `torch_enforced`; `is_torch_sdpa_available`."""
    flex_torch: str | None
    """Least torch for FlexAttention, likewise; `is_torch_flex_attn_available`."""
    flash_attention_2_module: str | None
    """Module whose presence means FlashAttention 2; `is_flash_attn_2_available`."""
    flash_attention_3_module: str | None
    """The same for 3: `flash_attn_3` up to 5.3, `flash_attn_interface` since."""
    flash_attention_4_module: str | None
    """The same for 4 (there the distribution must also be `flash-attn-4`)."""
    flash_attention_min_major: Mapping[str, int] | None
    """Family -> least major compute capability it lets pass; from 5.4, `FLASH_ATTENTION_COMPATIBILITY_MATRIX`."""
    minimums: Mapping[str, str] | None
    """Package -> least version of which it says `..._MIN_VERSION`; `import_utils.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttn:
    """flash-attn's sdist (the registry has no wheel of it)."""

    requires_python: str | None
    """PEP 440 specifier; `setup.py`."""
    requires: tuple[str, ...] | None
    """`install_requires`; `setup.py`. torch is named without bounds."""
    cuda_minimum: str | None
    """nvcc's release below which the setup refuses; `setup.py`."""
    sass: Mapping[str, str] | None
    """Architecture it can build machine code for -> least nvcc for that; `setup.py`."""
    ptx: Mapping[str, str] | None
    """The same for PTX."""
    archs_by_default: tuple[str, ...] | None
    """What `FLASH_ATTN_CUDA_ARCHS` is when not set; None where the setup does not heed it. `setup.py`."""
    newer_than_sm90: bool | None
    """Whether its check at run time lets GPUs newer than sm_90 pass. Where it does not, it tells them "only supports
    Ampere GPUs or newer", whatever it was compiled for; `flash_api.cpp`."""
    head_dim_maximum: int | None
    """Greatest head dimension; `flash_api.cpp`."""
    backward_needs_sm80_or_sm90: str | None
    """Head dimensions whose backward pass needs exactly sm_80 or sm_90, in its own words; empty: none."""
    dtypes: tuple[str, ...] | None
    """Of query, key and value; `flash_api.cpp`."""
    extensions: tuple[str, ...] | None
    """Folders of `csrc` with a setup of their own, which installing flash-attn does not build; the list of files."""
    functions: Functions | None
    """Module-level functions of its interface, padding, rotary and norm modules."""
    needs: Mapping[str, tuple[str, ...]] | None
    """Module -> foreign modules that importing it needs (torch and guarded imports left out), those of `flash_attn`
    itself not repeated. `rotary_emb`, `dropout_layer_norm`, ... are compiled extensions. A module of flash_attn that is
    named here is imported but missing from the sdist (`flash_attn.ops.triton.rotary` in 2.1.2.post3)."""
    sdist_size: int | None
    """Bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttn4:
    """flash-attn-4's wheel."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """METADATA."""
    requires_cu13: Requirements | None
    """What the extra `cu13` adds; METADATA."""
    forward_majors: tuple[int, ...] | None
    """Major compute capabilities the forward pass accepts; `_flash_attn_fwd` in `interface.py`."""
    backward_majors: tuple[int, ...] | None
    """The same for the backward pass, so for training; `_flash_attn_bwd`."""
    functions: Functions | None
    """Module-level functions of `interface.py`."""
    needs: tuple[str, ...] | None
    """Foreign modules that importing `flash_attn.cute.interface` needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerEngine:
    """One of TransformerEngine's four packages; the Python code is in all but `-torch`."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """METADATA; of `-torch` PKG-INFO, written where the sdist was made: the CUDA in its pin is that machine's."""
    extras: Mapping[str, Requirements] | None
    """Extra -> what it adds; METADATA."""
    flash_attn_minimum: str | None
    """Least flash-attn that it uses; its attention code."""
    flash_attn_minimum_blackwell: str | None
    """The same on sm_100 and newer."""
    flash_attn_maximum: str | None
    """Greatest flash-attn that it uses; its attention code."""
    flash_attn_maximum_included: bool | None
    """Whether `flash_attn_maximum` itself is still used."""
    flash_attn_names: tuple[str, ...] | None
    """Distributions whose version it asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """A release of xtuner, openrlhf or xformers."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel; None for pure Python. Tags."""
    abi3_from: str | None
    """Oldest CPython of its wheels of the stable ABI; tags."""
    requires: Requirements | None
    """METADATA."""
    model_minimums: Mapping[str, str] | None
    """Model class (short name in 0.1.19) -> least transformers with which xtuner patches it; its dispatch module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """A CUDA release (`Release.version` is its name, `13.0`) and the driver it needs on Linux."""

    minimum: str | None
    """Least driver, `525.60.13`, with minor version compatibility: the same for all minors of a CUDA major from 11.1.
    It runs what was compiled; PTX of a newer minor it cannot compile."""
    source: str | None
    """The published table, and where it was read."""


MODELS: Mapping[str, type] = {
    "torch": Torch,
    "triton": Triton,
    "transformers": Transformers,
    "flash-attn": FlashAttn,
    "flash-attn-4": FlashAttn4,
    "transformer-engine": TransformerEngine,
    "transformer-engine-torch": TransformerEngine,
    "transformer-engine-cu12": TransformerEngine,
    "transformer-engine-cu13": TransformerEngine,
    "xtuner": Framework,
    "openrlhf": Framework,
    "xformers": Framework,
    "drivers": Driver,
}
"""Package -> what its facts are."""
