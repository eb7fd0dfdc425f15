"""Wheel file names, and what builders write into a wheel's local version. Pure.

`flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl` says what it was built for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import Version

from knowngood.errors import UsageError

_LOCAL = {
    "cuda": re.compile(r"cu(\d{2,3})(?=torch|pt|cxx|$|[._-])"),
    "torch": re.compile(r"(?:torch|pt)(\d+\.?\d+)"),
    "cxx11abi": re.compile(r"abi(true|false)", re.IGNORECASE),
}


@dataclass(frozen=True, kw_only=True)
class Tags:
    """What a wheel was built for; `None` where it does not say."""

    cuda: str | None = None
    """`12` or `12.4`"""
    torch: str | None = None
    """`2.6`"""
    cxx11abi: str | None = None
    """`true` or `false`"""
    python: str | None = None
    """`3.11`"""
    abi3: bool = False
    glibc: str | None = None
    platform: str | None = None

    def constants(self) -> dict[str, str]:
        """What rules can ask, as `{wheel.cuda}`."""
        named = {"cuda": self.cuda, "torch": self.torch, "cxx11abi": self.cxx11abi}
        # A wheel of the stable ABI runs on that Python and all newer ones.
        named |= {"python": None if self.abi3 else self.python, "python_from": self.python if self.abi3 else None}
        named |= {"glibc": self.glibc}
        return {f"wheel.{name}": value for name, value in named.items() if value is not None}


def of_local(name: str, local: str | None) -> Tags | None:
    """What a local version says; of torch itself `None`, as there it names the build (see `solving.variants`)."""
    if local is None or name == "torch":
        return None
    cuda, torch, abi = (pattern.search(local) for pattern in _LOCAL.values())
    return Tags(
        cuda=_cuda(cuda[1]) if cuda else None,
        torch=_torch(torch[1]) if torch else None,
        cxx11abi=abi[1].lower() if abi else None,
    )


def parse(text: str) -> tuple[str, Version, Tags]:
    """Name, version and tags of a wheel's file name; raises `UsageError`."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, tags = parse_wheel_filename(text.replace("%2B", "+"))
    except InvalidWheelFilename as error:
        raise UsageError(f"{text!r} is not the name of a wheel: {error}") from None
    said = of_local(name, version.local) or Tags()
    python = glibc = platform = None
    abi3 = False
    for tag in tags:
        interpreter = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
        if interpreter:
            python, abi3 = f"{interpreter[1]}.{interpreter[2]}", tag.abi == "abi3"
        floor = re.match(r"manylinux_(\d+)_(\d+)_", tag.platform) or _legacy(tag.platform)
        if floor:
            glibc = f"{floor[1]}.{floor[2]}"
        platform = tag.platform
    made = Tags(
        cuda=said.cuda,
        torch=said.torch,
        cxx11abi=said.cxx11abi,
        python=python,
        abi3=abi3,
        glibc=glibc,
        platform=platform,
    )
    return name, version, made


def _legacy(platform: str) -> re.Match[str] | None:
    """manylinux1, 2010 and 2014 by the glibc they stand for (PEP 600)."""
    for name, floor in (("manylinux1", "2_5"), ("manylinux2010", "2_12"), ("manylinux2014", "2_17")):
        if platform.startswith(name):
            return re.match(r"(\d+)_(\d+)", floor)
    return None


def _cuda(digits: str) -> str:
    return digits if len(digits) == 2 else f"{digits[:-1]}.{digits[-1]}"


def _torch(text: str) -> str:
    return text if "." in text else f"{text[0]}.{text[1:]}"
