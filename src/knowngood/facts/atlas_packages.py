"""Which packages and releases the atlas has: the rule in `facts/atlas/packages.yaml`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core import yaml_document
from knowngood.core.errors import InputError

ATLAS_PACKAGES_FILE = "facts/atlas/packages.yaml"
_KEYS = {"since", "packages", "series"}


@dataclass(frozen=True, kw_only=True)
class AtlasField:
    """The packages of the atlas, and from when on their releases are read."""

    since: str
    """The day, `2024-01-01`, from which final releases are read."""
    modules: Mapping[str, str]
    """Normalized name of a package -> its top-level module."""
    series: Mapping[str, Version] = field(default_factory=dict)
    """Normalized name of a package -> the release from which only the last of each series is read."""

    def package(self, name: str, floor: Version | None = None) -> AtlasPackage:
        """Return what to read of one of the packages, from a floor of matrix.yaml on too."""
        return AtlasPackage(
            name=name, module=self.modules[name], since=self.since, floor=floor, series=self.series.get(name)
        )


@dataclass(frozen=True, kw_only=True)
class AtlasPackage:
    """A package of the atlas with the releases of interest."""

    name: str
    module: str
    """The module below which its own modules lie, such as `trl`; other modules of its wheels are not read."""
    since: str
    """The day from which releases are read."""
    floor: Version | None = None
    """The release from which older ones are read too."""
    series: Version | None = None
    """The release from which the last of each series is read, and no other, whatever its day."""


def parse_atlas_field(text: str, file: str) -> AtlasField:
    """Return the rule in the text of `packages.yaml`; `InputError` with the line of what is wrong."""
    source = yaml_document.parse_yaml(text, file)
    data = source.data if isinstance(source.data, Mapping) else {}
    since, packages = data.get("since"), data.get("packages")
    problems = [source.problem([key], f"there is no key {key}", key=True) for key in data.keys() - _KEYS]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(since)):
        problems.append(source.problem(["since"], "`since` is a day such as 2024-01-01"))
    if not isinstance(packages, Mapping) or not packages:
        problems.append(source.problem(["packages"], "`packages` gives the top-level module of each package"))
        packages = {}
    for name, module in packages.items():
        if not str(module).isidentifier():
            problems.append(source.problem(["packages", name], f"{module} is not the name of a module"))
    modules: dict[str, str] = {canonicalize_name(str(name)): str(module) for name, module in packages.items()}
    series = dict[str, Version]()
    for name, version in (data.get("series") or {}).items():
        try:
            series[canonicalize_name(str(name))] = Version(str(version))
        except InvalidVersion:
            problems.append(source.problem(["series", name], f"{version} is not a release"))
        if canonicalize_name(str(name)) not in modules:
            problems.append(source.problem(["series", name], "`packages` does not have it"))
    if problems:
        raise InputError(problems)
    return AtlasField(since=str(since), modules=modules, series=series)
