"""What the releases of a package declare, and the modules and commands that its newest release installs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, cast, get_args

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.local_files import cache_folder
from knowngood.core.package_names import canonical_name
from knowngood_facts.facts.fact_store import facts_folder

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "knowngood/metadata/1"
SUFFIX = ".txt"

MetadataSource = Literal["wheel", "sdist", "dynamic", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseMetadata:
    """What one release declares."""

    version: str
    requires_python: str
    """PEP 440 specifier; empty when every Python is allowed."""
    requirements: tuple[str, ...]
    """Requires-Dist with markers and extras, in the spelling of `packaging`; one that does not parse as it was written.
    """
    extras: tuple[str, ...]
    """The names of its extras (Provides-Extra), as written."""
    wheels: tuple[str, ...]
    """The tags of each wheel as in its file name, `cp311-cp311-manylinux_2_28_x86_64`, without the build tag."""
    has_sdist: bool
    yanked: bool
    """Whether the index withdrew it: all of its files are yanked."""
    source: MetadataSource
    """What the requirements were read from.

    `dynamic`: an sdist's, which it calls dynamic (PEP 643): it states what its own build gave, and another may differ.
    `none`: they are not known, because such an sdist states none.
    """
    uploaded: str
    """The day of its first file, `2024-07-08`; empty when the index states none."""


def _damage(label: str, line: int, why: str) -> InputError:
    text = f"this is not a file of metadata ({why}); restore it, or delete it and run `knowngood harvest --metadata`"
    return InputError([InputProblem(file=label, line=line, column=1, text=text)])


class StoredReleases(Mapping[str, ReleaseMetadata]):
    """The blocks of a file: the versions are known at once; all differences are applied at the first look-up."""

    def __init__(self, blocks: list[str], label: str, first_line: int) -> None:
        self._blocks = {block.split(None, 1)[0] if block.strip() else "": block for block in blocks}
        self._label = label
        self._first_line = first_line
        self._decoded: dict[str, ReleaseMetadata] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __contains__(self, version: object) -> bool:
        return version in self._blocks

    def __getitem__(self, version: str) -> ReleaseMetadata:
        release = self._decoded.get(version)
        if release is None:
            release = self._decoded[version] = self._decode(version)
        return release

    def _decode(self, version: str) -> ReleaseMetadata:
        head, python, requirements, extras, wheels = self._states[version]
        words = head.split(" ")
        is_known = words[2] != "none"
        return ReleaseMetadata(
            version=version,
            requires_python=python,
            requirements=tuple(sorted(requirements)) if is_known else (),
            extras=tuple(sorted(extras)) if is_known else (),
            wheels=tuple(sorted(wheels)),
            has_sdist="sdist" in words[3:],
            yanked="yanked" in words[3:],
            source=cast("MetadataSource", words[2]),
            uploaded=words[1].removeprefix("-"),
        )

    @cached_property
    def requirements(self) -> Mapping[str, int]:
        """Requirement, as in a release -> the releases that state it, as bits in the order of the file."""
        since: dict[str, int] = {}
        masks: dict[str, int] = {}
        unknown = 0
        for place, block in enumerate(self._blocks.values()):
            unknown |= (" none" in block.partition("\n")[0]) << place
            for line in block.split("\n") if "\nr" in block else ():
                if line.startswith("r+ "):
                    since[line[3:]] = place
                elif line.startswith("r- ") and line[3:] in since:
                    first = since.pop(line[3:])
                    masks[line[3:]] = masks.get(line[3:], 0) | (1 << place) - (1 << first)
        for line, first in since.items():
            masks[line] = masks.get(line, 0) | (1 << len(self._blocks)) - (1 << first)
        return {line: mask & ~unknown for line, mask in masks.items()}

    @cached_property
    def _states(self) -> dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
        """The first line of each release, and what holds in it, in no order."""
        current: dict[str, dict[str, None]] = {"r": {}, "x": {}, "w": {}}
        fixed: dict[str, tuple[str, ...]] = {"r": (), "x": (), "w": ()}
        added = {f"{kind}+ ": values for kind, values in current.items()}
        ended = {f"{kind}- ": values for kind, values in current.items()}
        python = ""
        states = {}
        number = self._first_line
        for version, block in self._blocks.items():
            head, *lines = block.split("\n")
            if len(words := head.split(" ", 3)) < 3 or words[2] not in get_args(MetadataSource):
                raise _damage(self._label, number, f"`= {head}` names no version, day and source")
            for offset, line in enumerate(lines, 1):
                code, value = line[:3], line[3:]
                if code in added:
                    added[code][value] = None
                elif code == "py ":
                    python = value
                elif code in ended and value in ended[code]:
                    del ended[code][value]
                else:
                    raise _damage(self._label, number + offset, f"`{line}` cannot follow the lines before it")
            for kind, values in current.items():
                if f"\n{kind}" in block:
                    fixed[kind] = tuple(values)
            states[version] = (head, python, fixed["r"], fixed["x"], fixed["w"])
            number += 1 + len(lines)
        return states


@dataclass(frozen=True, kw_only=True)
class PackageMetadata:
    """All known releases of a package."""

    name: str
    """The name in lower case with single dashes, as the index spells it in addresses (PEP 503)."""
    releases: StoredReleases
    """Version -> what it declares, oldest first; decoded when a value is first asked for."""

    @property
    def requirements(self) -> Mapping[str, int]:
        """Requirement, as in a release -> the releases that state it, as bits in the order of `releases`."""
        return self.releases.requirements


def metadata_folder() -> Path:
    """Return the folder of the metadata that this installation uses."""
    return facts_folder() / "metadata"


def list_metadata_packages(folder: Path | None = None) -> list[str]:
    """Return the normalized names of the packages that there is metadata about, sorted."""
    paths = (folder or metadata_folder()).glob(f"*{SUFFIX}")
    return sorted(path.name.removesuffix(SUFFIX) for path in paths)


def read_package_metadata(name: str, folder: Path | None = None) -> PackageMetadata | None:
    """Return the metadata of a package, read once in a process; `None` when there is none about it.

    Raises:
        InputError: the file is damaged.
    """
    return _read_package(canonical_name(name), folder or metadata_folder())


def read_newest_metadata(name: str, folder: Path, own: Path) -> PackageMetadata | None:
    """Return the metadata of a package from the folder that knows more of its releases, the user's own where both do.

    Raises:
        InputError: a file is damaged.
    """
    common, refreshed = read_package_metadata(name, folder), read_package_metadata(name, own)
    if common is None or refreshed is None:
        return refreshed or common
    return common if len(common.releases) > len(refreshed.releases) else refreshed


def refreshed_folder() -> Path:
    """Return the folder of this user for the metadata that `--refresh` reads; it is in the cache."""
    return cache_folder() / "facts" / "metadata"


def forget_read_metadata() -> None:
    """Let files that were written since be read again in this process."""
    _read_package.cache_clear()


SNAPSHOT_FILE = "snapshot"
"""Beside the files: the day on which the index was last asked about all of them, `2026-11-19`."""


def read_snapshot_day(folder: Path) -> str:
    """Return the day on which the index was last asked about all packages in a folder; empty where nothing says it."""
    try:
        return read_data_text(folder / SNAPSHOT_FILE).strip()
    except FileNotFoundError:
        return ""


def parse_package_metadata(text: str, label: str) -> PackageMetadata:
    """Return the metadata in the text of a file; `label` names it in the message of an `InputError`."""
    head, *blocks = text.removesuffix("\n").split("\n= ")
    schema, _, name = head.partition("\n")[0].partition(" ")
    if schema != SCHEMA or not name:
        why = f"the first line is not `{SCHEMA} NAME`"
        raise _damage(label, 1, why)
    releases = StoredReleases(blocks, label, head.count("\n") + 2)
    if len(releases) != len(blocks):
        raise _damage(label, 1, "a release stands in it twice")
    return PackageMetadata(name=name, releases=releases)


@cache
def _read_package(name: str, folder: Path) -> PackageMetadata | None:
    if not re.fullmatch(r"[a-z0-9-]+", name):
        return None
    path = folder / f"{name}{SUFFIX}"
    try:
        text = read_data_text(path)
    except FileNotFoundError:
        return None
    return parse_package_metadata(text, str(path))


NAMES_SCHEMA = "knowngood/wheel-names/1"
WHEEL_NAMES_FILE = "wheels/names.txt"


@dataclass(frozen=True, kw_only=True)
class InstalledNames:
    """What one release installs by name."""

    version: str
    modules: tuple[str, ...] = ()
    """Top-level modules; below a folder that several packages share, with the part that is this package's."""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WheelNames:
    """What packages install by name."""

    packages: Mapping[str, InstalledNames] = field(default_factory=dict)

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Module -> the package that installs it; of a package and its variants, the plain one."""
        return _invert((module, name) for name, names in self.packages.items() for module in names.modules)

    @cached_property
    def commands(self) -> Mapping[str, str]:
        """Command -> the package that installs it; of a package and its variants, the plain one."""
        return _invert((command, name) for name, names in self.packages.items() for command in names.commands)


@cache
def read_wheel_names(path: Path | None = None) -> WheelNames:
    """Return what is known of packages' names; nothing where the file is not there."""
    place = path or facts_folder() / WHEEL_NAMES_FILE
    try:
        return parse_wheel_names(read_data_text(place), str(place))
    except FileNotFoundError:
        return WheelNames()


def parse_wheel_names(text: str, label: str) -> WheelNames:
    """Return the names in a file's text; `label` names it in the message of an `InputError`."""
    head, *blocks = text.removesuffix("\n").split("\n= ")
    if head.partition("\n")[0] != NAMES_SCHEMA:
        missing = f"its first line is not `{NAMES_SCHEMA}`"
        why = f"this is not a file of names ({missing}); run `knowngood harvest --wheel-names`"
        raise InputError([InputProblem(file=label, line=1, column=1, text=why)])
    packages = {}
    for block in blocks:
        first, *lines = block.split("\n")
        name, _, version = first.partition(" ")
        packages[name] = InstalledNames(
            version=version,
            modules=tuple(line[2:] for line in lines if line.startswith("m ")),
            commands=tuple(line[2:] for line in lines if line.startswith("c ")),
        )
    return WheelNames(packages=packages)


def render_wheel_names(names: WheelNames) -> str:
    """Return the text of the file."""
    lines = [NAMES_SCHEMA, "regenerate: knowngood harvest --wheel-names"]
    for name, own in sorted(names.packages.items()):
        lines += [
            f"= {name} {own.version}",
            *(f"m {item}" for item in own.modules),
            *(f"c {item}" for item in own.commands),
        ]
    return "\n".join([*lines, ""])


def _invert(pairs: Iterator[tuple[str, str]]) -> dict[str, str]:
    owners: dict[str, set[str]] = {}
    for item, name in pairs:
        owners.setdefault(item, set()).add(name)
    shortest = {item: min(names, key=len) for item, names in owners.items()}
    return {item: name for item, name in shortest.items() if all(other.startswith(name) for other in owners[item])}
