"""What wheel file names say: compatibility tags, and what builders write into the local version. Pure.

`flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl` says what it was built for.
`check` and `pick` import this module, so only the functions that need `packaging.utils` and `.specifiers` import them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.tags import Tag

    from knowngood.index.artefact import PublishedFile

_CUDA = lazy_pattern(r"cu(\d{2,3})(?=torch|pt|cxx|$|[._-])")
_TORCH = lazy_pattern(r"(?:torch|pt)(\d+\.?\d+)")
_CXX11ABI = lazy_pattern(r"abi(true|false)", re.IGNORECASE)
_LEGACY_GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
"""Platform tags from before PEP 600 -> the glibc that they stand for (PEP 513, 571, 599)."""


@dataclass(frozen=True, kw_only=True)
class WheelBuild:
    """What a wheel was built for; `None` where its name does not say."""

    cuda: str | None = None
    """CUDA release, such as `12` or `12.4`."""
    torch: str | None = None
    """Minor release of torch, such as `2.6`."""
    cxx11abi: str | None = None
    """Whether the C++11 ABI was used, as the text `true` or `false`."""
    python: str | None = None
    """Minor release of Python, such as `3.11`."""
    abi3: bool = False
    """Whether it uses the stable ABI, so that newer Pythons can import it too."""
    glibc: str | None = None
    """Oldest glibc that it runs with, such as `2.28`."""
    platform: str | None = None
    """Platform tag, such as `manylinux_2_28_x86_64`."""

    def constants(self) -> dict[str, str]:
        """Return the values that rules can ask for as `{wheel.cuda}`; what the name does not say is left out."""
        values = {
            "cuda": self.cuda,
            "torch": self.torch,
            "cxx11abi": self.cxx11abi,
            "python": None if self.abi3 else self.python,
            # A wheel of the stable ABI runs on that Python and all newer ones.
            "python_from": self.python if self.abi3 else None,
            "glibc": self.glibc,
        }
        return {f"wheel.{name}": value for name, value in values.items() if value is not None}


def build_from_local_version(name: str, local: str | None) -> WheelBuild | None:
    """Return what a wheel's local version says about its build, or `None` when it has none.

    The local version of torch itself names the build and not what it was built for, so that gives `None` too
    (see `compat.query_placement`).
    """
    if local is None or name == "torch":
        return None
    cuda, torch, abi = (pattern.search(local) for pattern in (_CUDA, _TORCH, _CXX11ABI))
    return WheelBuild(
        cuda=_cuda_version(cuda[1]) if cuda else None,
        torch=_torch_version(torch[1]) if torch else None,
        cxx11abi=abi[1].lower() if abi else None,
    )


def _cuda_version(digits: str) -> str:
    return digits if len(digits) == 2 else f"{digits[:-1]}.{digits[-1]}"


def _torch_version(text: str) -> str:
    return text if "." in text else f"{text[0]}.{text[1:]}"


def parse_wheel_name(text: str) -> tuple[str, Version, WheelBuild]:
    """Return the name, the version and the build of a wheel's file name; `UsageError` when it is not one."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, tags = parse_wheel_filename(text.replace("%2B", "+"))
    except InvalidWheelFilename as error:
        raise UsageError(f"{text!r} is not the name of a wheel: {error}") from None
    local = build_from_local_version(name, version.local) or WheelBuild()
    python = platform = None
    abi3 = False
    for tag in sorted(tags, key=str):
        interpreter = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
        if interpreter:
            python, abi3 = f"{interpreter[1]}.{interpreter[2]}", tag.abi == "abi3"
        platform = tag.platform
    build = WheelBuild(
        cuda=local.cuda,
        torch=local.torch,
        cxx11abi=local.cxx11abi,
        python=python,
        abi3=abi3,
        glibc=_lowest_glibc(tags),  # the wheel installs where one of its tags fits
        platform=platform,
    )
    return name, version, build


def _glibc_of_platform(platform: str) -> str | None:
    """Return the glibc that a platform tag promises to need, or `None` when it promises none."""
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    return f"{match[1]}.{match[2]}" if match else _LEGACY_GLIBC.get(platform.partition("_")[0])


def tags_of_wheel(name: str) -> frozenset[Tag]:
    """Return the tags of a wheel's file name."""
    from packaging.utils import parse_wheel_filename

    return parse_wheel_filename(name)[3]


def glibc_of_tags(name: str) -> str | None:
    """Return the lowest glibc that a wheel's platform tags promise to need (PEP 513, 571, 599, 600)."""
    return _lowest_glibc(tags_of_wheel(name))


def _lowest_glibc(tags: Iterable[Tag]) -> str | None:
    versions = [glibc for tag in tags if (glibc := _glibc_of_platform(tag.platform))]
    return min(versions, key=Version, default=None)


def supported_pythons(files: Iterable[PublishedFile], requires_python: str | None = None) -> list[str]:
    """Return the CPython releases (`3.11`) that some wheel for Linux x86_64 supports with the ordinary ABI.

    A wheel of the stable ABI supports every release from its own on that `requires_python` allows. When
    `requires_python` has no upper bound, only the wheel's own release is returned.
    """
    from packaging.specifiers import SpecifierSet

    allowed = SpecifierSet(requires_python or "")
    has_upper_bound = not allowed.contains("3.99")
    minors: set[int] = set()
    for minor, abi in _cpython_tags(files):
        if abi == "abi3" and has_upper_bound:
            minors |= {later for later in range(minor, 99) if allowed.contains(f"3.{later}.0")}
        elif abi in {f"cp3{minor}", f"cp3{minor}m", "abi3"}:
            minors.add(minor)
    return [f"3.{minor}" for minor in sorted(minors)]


def free_threaded_pythons(files: Iterable[PublishedFile]) -> list[str]:
    """Return the free-threaded CPython releases (`3.13t`) that have a wheel for Linux x86_64."""
    minors = {minor for minor, abi in _cpython_tags(files) if abi == f"cp3{minor}t"}
    return [f"3.{minor}t" for minor in sorted(minors)]


def _cpython_tags(files: Iterable[PublishedFile]) -> Iterator[tuple[int, str]]:
    """Yield the minor release of CPython 3 and the ABI of every wheel for Linux x86_64."""
    for file in files:
        for tag in tags_of_wheel(file.name) if file.is_wheel else ():
            match = re.fullmatch(r"cp3(\d+)", tag.interpreter)
            if match and tag.platform.endswith("_x86_64") and "linux" in tag.platform:
                yield int(match[1]), tag.abi
