"""A cell: one point of the matrix, with a value on every axis.

Its id is its only name: `sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311`, and
`...-py311-xtuner0.1.23` with a framework, `...-py311-aarch64` for a host that is not x86-64.
`parse_cell(str(cell)) == cell` holds for every cell. The id is also a file name, an image tag and a shell
word, so its alphabet is `[a-z0-9.-]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from knowngood.core.errors import UsageError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture


class Axis(StrEnum):
    """The axes of the matrix, with the names that matrix.yaml, SELECT and image labels use."""

    GPU = "gpu"
    CUDA = "cuda"
    TORCH = "torch"
    TRANSFORMERS = "transformers"
    FLASH_ATTN = "flash-attn"
    TRITON = "triton"
    PYTHON = "python"
    HOST = "host"
    FRAMEWORK = "framework"


NO_FLASH_ATTN = "0"
"""The value of the flash-attn axis for a cell without any flash-attn package."""

NO_FRAMEWORK = "none"
"""The value of the framework axis for a cell without a framework."""

# The major version on the flash-attn axis -> the distribution of that family.
_FLASH_ATTN_PACKAGES = {2: "flash-attn", 4: "flash-attn-4"}

AXIS_PACKAGES = ("torch", "triton", "transformers", *_FLASH_ATTN_PACKAGES.values())
"""The distributions whose versions are axes. The framework of a cell is one more."""

_ID = re.compile(
    r"sm(?P<sm>[1-9]\d{1,2})"
    r"-cu(?P<cuda_major>\d{2})(?P<cuda_minor>\d)"
    r"-torch(?P<torch>[a-z0-9.]+)"
    r"-tf(?P<transformers>[a-z0-9.]+)"
    r"-fa(?P<flash_attn>[a-z0-9.]+)"
    r"-triton(?P<triton>[a-z0-9.]+)"
    r"-py(?P<python_major>\d)(?P<python_minor>\d{1,2})"
    r"(-(?P<host>aarch64))?"
    r"(-(?P<framework>[a-z]+(-[a-z]+)*\d[a-z0-9.]*))?",
    re.ASCII,
)
_FRAMEWORK = re.compile(r"(?P<package>[a-z]+(-[a-z]+)*)(?P<version>\d[a-z0-9.]*)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination. Versions are normalized PEP 440 text without epoch or local part."""

    gpu: str
    """The compute capability, such as `sm_90`."""
    cuda: str
    """The CUDA release that torch was built with, such as `13.0`."""
    torch: str
    transformers: str
    flash_attn: str = NO_FLASH_ATTN
    """`2.8.3.post2` (family 2), `4.0.0b36` (family 4) or `0` (neither)."""
    triton: str
    python: str
    """The release of Python, such as `3.11`."""
    framework: str = NO_FRAMEWORK
    """The training framework on top of the stack, such as `xtuner0.1.23`, or `none`."""
    host: HostArchitecture = DEFAULT_HOST
    """The processor of the hosts that the image runs on."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"sm_[1-9][0-9]{1,2}", self.gpu):
            raise UsageError(f"{self.gpu!r} is not a GPU architecture; one is written like sm_90")
        if not re.fullmatch(r"[0-9]{2}\.[0-9]", self.cuda):
            raise UsageError(f"{self.cuda!r} is not a CUDA release; one is written like 13.0")
        if not re.fullmatch(r"3\.[0-9]{1,2}", self.python):
            raise UsageError(f"{self.python!r} is not a Python release; one is written like 3.11")
        for name in ("torch", "transformers", "triton"):
            validate_version(getattr(self, name), name)
        if self.flash_attn != NO_FLASH_ATTN:
            flash_attn_package(self.flash_attn)
        if self.framework != NO_FRAMEWORK:
            parse_framework(self.framework)
        if self.host not in tuple(HostArchitecture):
            raise UsageError(f"{self.host!r} is no host of a cell; they are {' and '.join(HostArchitecture)}")

    def __str__(self) -> str:
        suffix = "" if self.host == DEFAULT_HOST else f"-{self.host}"
        suffix += "" if self.framework == NO_FRAMEWORK else f"-{self.framework}"
        return (
            f"{self.gpu.replace('_', '')}-cu{self.cuda.replace('.', '')}-torch{self.torch}"
            f"-tf{self.transformers}-fa{self.flash_attn}-triton{self.triton}-py{self.python.replace('.', '')}{suffix}"
        )

    @property
    def flash_attn_package(self) -> str | None:
        """The distribution that the flash-attn axis names, or `None` for `fa0`."""
        return None if self.flash_attn == NO_FLASH_ATTN else flash_attn_package(self.flash_attn)

    @property
    def framework_pin(self) -> tuple[str, str] | None:
        """The distribution and version of the framework, or `None` for a cell without one."""
        return None if self.framework == NO_FRAMEWORK else parse_framework(self.framework)

    def axes(self) -> dict[Axis, str]:
        """Return every axis with its value, in the order of the id.

        The host is left out where it is x86-64, and the framework where there is none.
        """
        axes = {
            Axis.GPU: self.gpu,
            Axis.CUDA: self.cuda,
            Axis.TORCH: self.torch,
            Axis.TRANSFORMERS: self.transformers,
            Axis.FLASH_ATTN: self.flash_attn,
            Axis.TRITON: self.triton,
            Axis.PYTHON: self.python,
        }
        axes |= {} if self.host == DEFAULT_HOST else {Axis.HOST: str(self.host)}
        return axes if self.framework == NO_FRAMEWORK else axes | {Axis.FRAMEWORK: self.framework}

    @property
    def merit(self) -> tuple[Version, Version, bool]:
        """What puts equally proven cells in an order: the newest last, and what needs no compiler after what does."""
        return Version(self.torch), Version(self.transformers), self.flash_attn_package != "flash-attn"

    def without_flash_attn(self) -> Cell:
        """Return the same cell with no flash-attn package (its `fa0` twin)."""
        return replace(self, flash_attn=NO_FLASH_ATTN)

    def without_framework(self) -> Cell:
        """Return the same cell with no framework."""
        return replace(self, framework=NO_FRAMEWORK)

    def on_host(self, host: HostArchitecture) -> Cell:
        """Return the same cell for another host."""
        return replace(self, host=host)


def parse_cell(text: str) -> Cell:
    """Return the cell with this id.

    Raises `UsageError` when `text` is not an id, or not in the normal spelling.
    """
    match = _ID.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a cell id; one is written like "
            "sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311"
        )
    cell = Cell(
        gpu=f"sm_{match['sm']}",
        cuda=f"{match['cuda_major']}.{match['cuda_minor']}",
        torch=match["torch"],
        transformers=match["transformers"],
        flash_attn=match["flash_attn"],
        triton=match["triton"],
        python=f"{match['python_major']}.{match['python_minor']}",
        framework=match["framework"] or NO_FRAMEWORK,
        host=HostArchitecture(match["host"] or DEFAULT_HOST),
    )
    if str(cell) != text:
        raise UsageError(f"{text!r} is not the normal spelling of a cell id; write {cell}")
    return cell


@lru_cache(maxsize=4096)  # ten thousand cells have only a few hundred versions
def validate_version(text: str, what: str) -> str:
    """Return `text` when it is a normalized PEP 440 version without epoch and local part.

    Raises `UsageError` otherwise; `what` is the name of the package or axis for the message.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a version of {what} (PEP 440), as in 2.11.0 or 4.0.0b36") from None
    if version.epoch or version.local:
        raise UsageError(f"{what} {text}: write a public version, without epoch and local part")
    if str(version) != text:
        raise UsageError(f"{what} {text}: write the normalized version {version}")
    return text


def flash_attn_package(version: str) -> str:
    """Return the distribution for a version on the flash-attn axis. Raises `UsageError` for an unknown family."""
    major = Version(validate_version(version, "flash-attn")).major
    if major not in _FLASH_ATTN_PACKAGES:
        families = " and ".join(f"{number} ({package})" for number, package in _FLASH_ATTN_PACKAGES.items())
        raise UsageError(f"flash-attn {version}: the package index has the families {families}; 0 means no flash-attn")
    return _FLASH_ATTN_PACKAGES[major]


def parse_framework(text: str) -> tuple[str, str]:
    """Return the distribution and the version that `xtuner0.1.23` names. Raises `UsageError` for any other text."""
    match = _FRAMEWORK.fullmatch(text)
    if match is None or text in tuple(HostArchitecture):  # which an id would read as the host
        raise UsageError(f"{text!r} is not a framework with its version; one is written like xtuner0.1.23")
    return match["package"], validate_version(match["version"], match["package"])
