"""What a package's own setup must be told, so that it compiles for one architecture and for nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.cell import Cell
from knowngood.errors import KnowngoodError

MEMORY = 7 << 30
"""Bytes a job: NVIDIA's device compiler was seen to hold 6.2 GB over one of flash-attn's files."""

TOOLS = ("ninja", "packaging", "psutil", "setuptools<81", "wheel")
"""What builds an extension of torch; older torch imports `pkg_resources`, which setuptools 81 took out."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one package is compiled."""

    env: Mapping[str, str] = field(default_factory=dict)
    switch: str | None = None
    """The environment variable by which its setup takes architectures, `90;100`; torch's own where it has none."""
    requires: tuple[str, ...] = ()
    """What its setup needs beside `TOOLS`."""
    plain: bool = False
    """Its wheel keeps the version as published, since the package compares it; the build tag says what it is for."""


RECIPES: Mapping[str, Recipe] = {
    "flash-attn": Recipe(
        # Else its setup looks for a wheel of its own, and compiles every file with four threads.
        env={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "NVCC_THREADS": "1"},
        switch="FLASH_ATTN_CUDA_ARCHS",
    ),
    "transformer-engine-torch": Recipe(
        env={"NVTE_FRAMEWORK": "pytorch", "NVTE_PYTORCH_FORCE_BUILD": "TRUE"},
        switch="NVTE_CUDA_ARCHS",
        requires=("pybind11",),
        plain=True,  # transformer_engine/common asserts that its version is, to the letter, its core's
    ),
}


def recipe(package: str) -> Recipe:
    """The recipe of a package; an extension that torch's own build helper understands needs none."""
    return RECIPES.get(package, Recipe())


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is compiled for."""

    codes: tuple[str, ...]
    """Architectures as nvcc numbers them, `90`."""
    env: Mapping[str, str]
    note: str = ""
    """What a reader should know: that the GPU runs another architecture's code."""


_TAKEN = re.compile(r"""["'](\d{2,3})["'] in cuda_archs\(\)""")
_COMPILED = re.compile(r"code=sm_(\d{2,3})")


def target(package: str, version: str, setup: str, gpu: str) -> Target:
    """What to tell the setup of this release, whose text is `setup`, for a GPU such as `sm_86`.

    Raises `KnowngoodError` when the release has no code that this GPU runs.
    """
    number = gpu.removeprefix("sm_")
    setup = re.sub(r"(?m)^\s*#.*$", "", setup)
    switch = recipe(package).switch
    if switch is None:
        return Target(codes=(number,), env={"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"})
    if switch in setup:
        taken = tuple(dict.fromkeys(_TAKEN.findall(setup)))
    elif always := tuple(dict.fromkeys(_COMPILED.findall(setup))):
        _serving(package, version, always, number)
        said = f"{package} {version} takes no architecture: it compiles for {_listed(always)} whatever is asked"
        return Target(codes=always, env={}, note=said)
    else:
        taken = ()
    if not taken:  # the setup takes any, or has no device code
        return Target(codes=(number,), env={switch: number})
    code = _serving(package, version, taken, number)
    note = "" if code == number else f"{gpu} runs sm_{code} code; {switch} takes {_listed(taken)}"
    return Target(codes=(code,), env={switch: code}, note=note)


def _serving(package: str, version: str, codes: tuple[str, ...], number: str) -> str:
    """The newest of `codes` that runs on the GPU: of the same major architecture, and no later minor."""
    fits = [code for code in codes if code[:-1] == number[:-1] and int(code) <= int(number)]
    if not fits:
        raise KnowngoodError(
            f"{package} {version} has no code for sm_{number}: its setup compiles for {_listed(codes)}, and code runs "
            "on its own major architecture only; take a cell without it"
        )
    return max(fits, key=int)


def _listed(codes: tuple[str, ...]) -> str:
    return ", ".join(f"sm_{code}" for code in codes)


def local_version(cell: Cell, codes: tuple[str, ...], *, cxx11abi: bool) -> str:
    """What the wheel was built for, as flash-attn's own releases spell it, and for which architectures."""
    torch = ".".join(cell.torch.split(".")[:2])
    sms = "".join(f".sm{code}" for code in codes)
    return f"cu{cell.cuda.split('.')[0]}torch{torch}cxx11abi{str(cxx11abi).lower()}{sms}"


def fitting(cores: int, available: int, each: int) -> int:
    """How many compilers a machine can run at once: one a core, as many as fit into memory."""
    return min(cores, available // each)


def jobs(cores: int, available: int, each: int, asked: int | None) -> int:
    """How many compilers run at once: as many as fit, and no more than asked for.

    Raises `KnowngoodError` when not one fits.
    """
    most = fitting(cores, available, each)
    if most < 1:
        raise KnowngoodError(
            f"one compile job wants {each / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free; "
            "free some, or say with --memory-per-job that less will do"
        )
    return min(most, asked or most)
