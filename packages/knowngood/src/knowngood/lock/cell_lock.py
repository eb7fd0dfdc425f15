"""The distributions of a cell, pinned by hash, and the layers that they are split into. Pure.

A layer's name contains a hash of its content, so cells that need the same distributions share the layer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.layer_groups import compiled_group_name

LOCK_HEADER = "# Written by `knowngood lock` from matrix.yaml; do not edit.\n"

_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[a-z0-9.+!]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"  # (?P<file>[^\s/]+\.(whl|tar\.gz)) (?P<size>[0-9]+) bytes"
)
_BUILD_TAG = re.compile(r"-\d+cu\d{2,3}torch[\d.]+cxx11abi(true|false)[^-]*-")
_GROUP = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_CUDA_SUFFIX = re.compile(r"-cu(\d{2})$")


@dataclass(frozen=True, kw_only=True, order=True)
class Distribution:
    """One wheel of a lock, or a source archive that is built into a wheel when its layer is made."""

    name: str
    """Canonical name, such as `nvidia-cudnn-cu13`."""
    version: str
    file: str
    sha256: str
    size: int
    """Size of the file in bytes."""

    @property
    def made_here(self) -> bool:
        """Whether `knowngood compile` made the wheel: no index has it; its local version or build tag says so."""
        return "+" in self.version or _BUILD_TAG.search(self.file) is not None

    @property
    def source(self) -> bool:
        """Whether it is a source archive."""
        return not self.file.endswith(".whl")

    @property
    def pure(self) -> bool:
        """Whether it is a wheel for every processor; what a source archive becomes is not known before it is built."""
        return self.file.endswith("-any.whl")

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}  # {self.file} {self.size} bytes"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The distributions that become one image layer."""

    group: str
    """Key of the layer in matrix.yaml's `layers`."""
    distributions: tuple[Distribution, ...]

    def __post_init__(self) -> None:
        if not _GROUP.fullmatch(self.group):
            raise UsageError(f"{self.group!r} is not a valid layer name: lower-case letters, digits, `.` and `-`")

    @property
    def name(self) -> str:
        """Return the group, the version when the layer is one distribution, and a hash of the content."""
        version = self.distributions[0].version.split("+")[0] + "-" if len(self.distributions) == 1 else ""
        return f"{self.group}-{version}{distributions_digest(self.distributions)[:12]}"

    @property
    def size(self) -> int:
        """Return the size of the layer's wheels in bytes."""
        return sum(item.size for item in self.distributions)

    def requirements(self) -> str:
        """Return the text of `docker/layers/<name>/requirements.txt`."""
        return LOCK_HEADER + "".join(f"{item}\n" for item in self.distributions)


def distributions_digest(distributions: Iterable[Distribution]) -> str:
    """Return the SHA-256 over names, versions and hashes: the identity of a lock or a layer."""
    lines = sorted(f"{item.name}=={item.version} {item.sha256}\n" for item in distributions)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def parse_requirements(text: str, file: str) -> tuple[Distribution, ...]:
    """Parse what `Layer.requirements` wrote; `UsageError` with the line for anything else."""
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


def split_into_layers(
    distributions: Iterable[Distribution],
    groups: Mapping[str, Sequence[str]],
    *,
    framework: str | None = None,
    below: Collection[Distribution] = (),
) -> tuple[Layer, ...]:
    """Put each distribution into the first group with a glob that matches its name, in the order of the groups.

    With a `framework`, the distributions that the cell without it does not have (it has those `below`) become one more
    group with the framework's name. A group is one layer, or two where only some of its wheels are for every
    processor: the layer with the group's name has those, and images for another processor share it.
    """
    members: dict[str, list[Distribution]] = {group: [] for group in [*groups, *([framework] if framework else [])]}
    for item in sorted(distributions):
        if framework and item not in below:
            members[framework].append(item)
            continue
        group = next((key for key, globs in groups.items() if _matches(item.name, globs)), None)
        if group is None:
            raise UsageError(f"matrix.yaml: no glob in `layers` matches {item.name}; end the section with '*'")
        members[group].append(item)
    return tuple(layer for group, items in members.items() for layer in _split_by_processor(group, items))


def _split_by_processor(group: str, distributions: Sequence[Distribution]) -> Iterator[Layer]:
    """Yield the layers of a group: first what is compiled, then what is for every processor."""
    pure = tuple(item for item in distributions if item.pure)
    compiled = tuple(item for item in distributions if not item.pure)
    if compiled:
        yield Layer(group=compiled_group_name(group) if pure else group, distributions=compiled)
    if pure:
        yield Layer(group=group, distributions=pure)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def check_lock_matches_cell(distributions: Iterable[Distribution], cell: Cell) -> None:
    """Check that a lock has the versions of its cell and one release of CUDA; `KnowngoodError` names what differs."""
    versions = {item.name: Version(item.version) for item in distributions}
    pins = {"torch": cell.torch, "transformers": cell.transformers, "triton": cell.triton}
    if cell.flash_attn_package:
        pins[cell.flash_attn_package] = cell.flash_attn
    pins |= dict([cell.framework_pin] if cell.framework_pin else [])
    problems = []
    for name, wanted in pins.items():
        locked = versions.get(canonicalize_name(name))
        if locked is None or locked.public != wanted:
            problems.append(f"{name} is {locked or 'absent'} in the lock, {wanted} in the cell")
    for name, version in versions.items():
        suffix = _CUDA_SUFFIX.search(name)
        if suffix and suffix[1] != cell.cuda.split(".")[0]:
            problems.append(f"{name} {version} is for CUDA {suffix[1]}")
        elif re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name) and not str(version).startswith(f"{cell.cuda}."):
            problems.append(f"{name} {version} is not of CUDA {cell.cuda}")
    if problems:
        raise KnowngoodError(
            f"{cell}: the lock does not match the cell: {'; '.join(problems)}; "
            "correct the cell, or state in matrix.yaml's amendments what to require or exclude"
        )
