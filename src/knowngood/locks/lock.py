"""A lock: the full set of hash-pinned distributions of a cell, and its slices, the layers. Pure.

A layer's name holds a hash of its content, so cells that need the same distributions name the same layer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood.cell import Cell
from knowngood.errors import KnowngoodError, UsageError

HEADER = "# Written by `knowngood lock` from matrix.yaml; do not edit.\n"

_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[a-z0-9.+!]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"  # (?P<file>[^\s/]+\.(whl|tar\.gz)) (?P<size>[0-9]+) bytes"
)
_BUILD_TAG = re.compile(r"-\d+cu\d{2,3}torch[\d.]+cxx11abi(true|false)[^-]*-")
_GROUP = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_CUDA_SUFFIX = re.compile(r"-cu(\d{2})$")


@dataclass(frozen=True, kw_only=True, order=True)
class Distribution:
    """One wheel of a lock, or a source archive that becomes one as its layer is made."""

    name: str
    """Canonical, as in `nvidia-cudnn-cu13`."""
    version: str
    file: str
    sha256: str
    size: int
    """Bytes of the file."""

    @property
    def made_here(self) -> bool:
        """A wheel that `knowngood compile` made: its local version or build tag says for what, and no index has it."""
        return "+" in self.version or _BUILD_TAG.search(self.file) is not None

    @property
    def source(self) -> bool:
        """A source archive."""
        return not self.file.endswith(".whl")

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}  # {self.file} {self.size} bytes"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Distributions that become one image layer."""

    group: str
    """The key in matrix.yaml's `layers`."""
    distributions: tuple[Distribution, ...]

    def __post_init__(self) -> None:
        if not _GROUP.fullmatch(self.group):
            raise UsageError(f"{self.group!r} is not the name of a layer")

    @property
    def name(self) -> str:
        """The group, its version where one distribution makes the layer, and a hash of the content."""
        version = self.distributions[0].version.split("+")[0] + "-" if len(self.distributions) == 1 else ""
        return f"{self.group}-{version}{digest(self.distributions)[:12]}"

    @property
    def size(self) -> int:
        """Bytes of its wheels."""
        return sum(item.size for item in self.distributions)

    def requirements(self) -> str:
        """The text of `docker/layers/<name>/requirements.txt`."""
        return HEADER + "".join(f"{item}\n" for item in self.distributions)


def digest(distributions: Iterable[Distribution]) -> str:
    """SHA-256 over names, versions and hashes: the identity of a lock or a layer."""
    lines = sorted(f"{item.name}=={item.version} {item.sha256}\n" for item in distributions)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def parse_requirements(text: str, file: str) -> tuple[Distribution, ...]:
    """What `Layer.requirements` wrote. Raises `UsageError` with the line for anything else."""
    distributions = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise UsageError(f"{file}:{number}:1: not a line that `knowngood lock` writes; run it again")
        distributions.append(
            Distribution(
                name=match["name"],
                version=match["version"],
                file=match["file"],
                sha256=match["sha256"],
                size=int(match["size"]),
            )
        )
    return tuple(distributions)


def split(
    distributions: Iterable[Distribution],
    groups: Mapping[str, Sequence[str]],
    *,
    on_top: str | None = None,
    of: Collection[Distribution] = (),
) -> tuple[Layer, ...]:
    """Each distribution into the first group with a glob that matches its name; the groups' order stays.

    Where there is a framework `on_top`, what the cell without it (`of`) does not have is one more layer, of that name.
    """
    members: dict[str, list[Distribution]] = {group: [] for group in [*groups, *([on_top] if on_top else [])]}
    for item in sorted(distributions):
        if on_top and item not in of:
            members[on_top].append(item)
            continue
        group = next((key for key, globs in groups.items() if _matches(item.name, globs)), None)
        if group is None:
            raise UsageError(f"matrix.yaml: no glob in `layers` matches {item.name}; end the section with '*'")
        members[group].append(item)
    return tuple(Layer(group=key, distributions=tuple(value)) for key, value in members.items() if value)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def check(distributions: Iterable[Distribution], cell: Cell) -> None:
    """The lock says what the cell says, with one CUDA in it; raises `KnowngoodError` that names what differs."""
    versions = {item.name: Version(item.version) for item in distributions}
    pins = {"torch": cell.torch, "transformers": cell.transformers, "triton": cell.triton}
    if cell.flash_attn_package:
        pins[cell.flash_attn_package] = cell.flash_attn
    pins |= dict([cell.framework_pin] if cell.framework_pin else [])
    problems = []
    for name, wanted in pins.items():
        found = versions.get(canonicalize_name(name))
        if found is None or found.public != wanted:
            problems.append(f"{name} is {found or 'absent'} in the lock, {wanted} in the cell")
    for name, version in versions.items():
        suffix = _CUDA_SUFFIX.search(name)
        if suffix and suffix[1] != cell.cuda.split(".")[0]:
            problems.append(f"{name} {version} is for CUDA {suffix[1]}")
        elif re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name) and not str(version).startswith(f"{cell.cuda}."):
            problems.append(f"{name} {version} is not of CUDA {cell.cuda}")
    if problems:
        raise KnowngoodError(
            f"{cell}: the lock is not the cell: {'; '.join(problems)}; "
            "correct the cell, or say in matrix.yaml's amendments what to require or exclude"
        )
