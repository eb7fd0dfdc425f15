"""The settings with which a package's own setup compiles for one architecture and nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError

MEMORY_PER_JOB = 7 << 30
"""Bytes for each job: NVIDIA's device compiler was seen using 6.2 GB for one of flash-attn's files."""

BUILD_REQUIREMENTS = ("ninja", "packaging", "psutil", "setuptools<81", "wheel")
"""What building an extension of torch needs; older torch imports `pkg_resources`, which setuptools 81 removed."""


@dataclass(frozen=True, kw_only=True)
class CompileRecipe:
    """How one package is compiled."""

    env: Mapping[str, str] = field(default_factory=dict)
    switch: str | None = None
    """The environment variable in which its setup takes architectures, as in `90;100`; without one, torch's own."""
    requires: tuple[str, ...] = ()
    """What its setup needs besides `BUILD_REQUIREMENTS`."""
    plain: bool = False
    """Whether the wheel keeps its published version, because the package compares it; the build tag has the rest."""


RECIPES: Mapping[str, CompileRecipe] = {
    "flash-attn": CompileRecipe(
        # Otherwise its setup looks for a published wheel, and compiles every file with four threads.
        env={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "NVCC_THREADS": "1"},
        switch="FLASH_ATTN_CUDA_ARCHS",
    ),
    "transformer-engine-torch": CompileRecipe(
        env={"NVTE_FRAMEWORK": "pytorch", "NVTE_PYTORCH_FORCE_BUILD": "TRUE"},
        switch="NVTE_CUDA_ARCHS",
        requires=("pybind11",),
        plain=True,  # transformer_engine/common asserts that its version equals that of its core exactly
    ),
    "deepspeed": CompileRecipe(
        # Of its operators the optimizer that it takes for a GPU, since the others are seldom asked for.
        env={"DS_ACCELERATOR": "cuda", "DS_BUILD_FUSED_ADAM": "1"},
        requires=("einops", "hjson", "msgpack", "py-cpuinfo", "pydantic", "tqdm"),  # its setup imports deepspeed
        plain=True,  # deepspeed/git_version_info_installed.py says the version too
    ),
}


def find_recipe(package: str) -> CompileRecipe:
    """Return the recipe of a package; an extension that uses torch's own build helper needs none."""
    return RECIPES.get(package, CompileRecipe())


@dataclass(frozen=True, kw_only=True)
class CompileTarget:
    """The architectures that a wheel is compiled for, and how its setup is told."""

    codes: tuple[str, ...]
    """Architectures as nvcc numbers them, such as `90`."""
    env: Mapping[str, str]
    note: str = ""
    """Something that the user should know, such as that the GPU runs the code of another architecture."""


_ACCEPTED_CODE = re.compile(r"""["'](\d{2,3})["'] in cuda_archs\(\)""")
_FIXED_CODE = re.compile(r"code=sm_(\d{2,3})")


def choose_target(package: str, version: str, setup: str, gpu: str) -> CompileTarget:
    """Choose the architectures for a GPU such as `sm_86`; `setup` is the text of the release's setup.py.

    Raises `KnowngoodError` when the release has no code that this GPU runs.
    """
    number = gpu.removeprefix("sm_")
    setup = re.sub(r"(?m)^\s*#.*$", "", setup)
    switch = find_recipe(package).switch
    if switch is None:
        return CompileTarget(codes=(number,), env={"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"})
    if switch in setup:
        accepted = tuple(dict.fromkeys(_ACCEPTED_CODE.findall(setup)))
    elif always := tuple(dict.fromkeys(_FIXED_CODE.findall(setup))):
        _newest_code_for(package, version, always, number)
        note = f"{package} {version} has no setting for architectures: it always compiles for {_describe_codes(always)}"
        return CompileTarget(codes=always, env={}, note=note)
    else:
        accepted = ()
    if not accepted:  # the setup takes any architecture, or has no device code
        return CompileTarget(codes=(number,), env={switch: number})
    code = _newest_code_for(package, version, accepted, number)
    note = "" if code == number else f"{gpu} runs sm_{code} code; {switch} accepts {_describe_codes(accepted)}"
    return CompileTarget(codes=(code,), env={switch: code}, note=note)


def _newest_code_for(package: str, version: str, codes: tuple[str, ...], number: str) -> str:
    """Return the newest of `codes` that the GPU runs: the same major architecture and no later minor one."""
    fits = [code for code in codes if code[:-1] == number[:-1] and int(code) <= int(number)]
    if not fits:
        raise KnowngoodError(
            f"{package} {version} has no code for sm_{number}: its setup compiles for {_describe_codes(codes)}; code "
            "runs on its own major architecture only, so use a cell without it"
        )
    return max(fits, key=int)


def _describe_codes(codes: tuple[str, ...]) -> str:
    return ", ".join(f"sm_{code}" for code in codes)


def wheel_local_version(cell: Cell, codes: tuple[str, ...], *, cxx11abi: bool) -> str:
    """Return the local version of a wheel, as flash-attn's own releases spell it, with the architectures added."""
    torch = ".".join(cell.torch.split(".")[:2])
    sms = "".join(f".sm{code}" for code in codes)
    return f"cu{cell.cuda.split('.')[0]}torch{torch}cxx11abi{str(cxx11abi).lower()}{sms}"


def jobs_that_fit(cores: int, available: int, each: int) -> int:
    """Return how many compile jobs a machine can run at once: one for each core, as many as memory allows (bytes)."""
    return min(cores, available // each)


def choose_jobs(cores: int, available: int, each: int, limit: int | None) -> int:
    """Return how many compile jobs run at once: as many as fit, and at most `limit`.

    Raises `KnowngoodError` when memory is too small for a single one.
    """
    most = jobs_that_fit(cores, available, each)
    if most < 1:
        raise KnowngoodError(
            f"one compile job needs {each / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free; "
            "free some memory, or allow less with --memory-per-job"
        )
    return min(most, limit or most)
