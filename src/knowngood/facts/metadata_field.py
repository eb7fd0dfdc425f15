"""Which packages the field has: the seeds in `facts/metadata/seeds.yaml`, and all that their releases require. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from knowngood.core import yaml_document
from knowngood.core.errors import InputError
from knowngood.facts.package_metadata import PackageMetadata
from knowngood.index.wheel_metadata import linux_environment

SEEDS_FILE = "facts/metadata/seeds.yaml"
_TARGETS = tuple(product([f"3.{minor}" for minor in range(8, 16)], ["x86_64", "aarch64"]))
"""The Pythons and machines for which a requirement may hold; one that holds for none of them is not followed."""


@dataclass(frozen=True, kw_only=True)
class MetadataField:
    """The rule by which packages and releases are chosen."""

    seeds: tuple[str, ...]
    """The packages to start from, by their names in lower case with single dashes (PEP 503)."""
    at_most: int
    """The most packages that following requirements may give."""


def parse_metadata_field(text: str, file: str) -> MetadataField:
    """Return the rule in the text of `seeds.yaml`; `InputError` with the line of what is wrong."""
    source = yaml_document.parse_yaml(text, file)
    data = source.data if isinstance(source.data, Mapping) else {}
    seeds, at_most = data.get("seeds"), data.get("at_most")
    problems = []
    names = [str(name) for name in seeds] if isinstance(seeds, list) else []
    if not names:
        problems.append(source.problem(["seeds"], "`seeds` is the list of the packages to start from"))
    if not re.fullmatch(r"[1-9]\d{0,4}", str(at_most)):
        problems.append(source.problem(["at_most"], "`at_most` is a number of packages"))
    problems += [source.problem([key], f"there is no key {key}", key=True) for key in data.keys() - _KEYS]
    if problems:
        raise InputError(problems)
    return MetadataField(seeds=tuple(dict.fromkeys(map(canonicalize_name, names))), at_most=int(str(at_most)))


_KEYS = {"seeds", "at_most"}


def find_required_packages(package: PackageMetadata, extras: Iterable[str]) -> dict[str, set[str]]:
    """Return normalized name -> extras of all that any release requires on Linux, with these extras of its own."""
    required: dict[str, set[str]] = {}
    wanted = ("", *sorted(extras))
    for text in {text for release in package.releases.values() for text in release.requirements}:
        requirement = _parse_requirement(text)
        if requirement is not None and any(_may_hold(text, extra) for extra in wanted):
            name = canonicalize_name(requirement.name)
            required.setdefault(name, set()).update(canonicalize_name(extra) for extra in requirement.extras)
    return required


@cache
def _parse_requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


@cache
def _may_hold(text: str, extra: str) -> bool:
    """Whether a requirement holds for some Linux machine and Python, with this extra."""
    requirement = _parse_requirement(text)
    if requirement is None or requirement.marker is None:
        return requirement is not None
    try:
        return any(
            requirement.marker.evaluate(linux_environment(python, machine) | {"extra": extra})
            for python, machine in _TARGETS
        )
    except UndefinedEnvironmentName:
        return False
