"""What a wheel's name and METADATA state: pure parsing, shared by all readers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from knowngood.harvest.index import File, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.tags import Tag


LINUX = {
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "sys_platform": "linux",
    "os_name": "posix",
}


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The core metadata that the readers use."""

    version: str
    requires_python: str | None
    requires: tuple[Requirement, ...]

    def on(self, python: str, *, extra: str = "") -> dict[str, Requirement]:
        """Canonical name -> requirement, as they apply on Linux x86_64 with this Python."""
        environment = LINUX | {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": extra,
        }
        return {
            canonicalize_name(requirement.name): requirement
            for requirement in self.requires
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }


def parse_metadata(text: str | bytes) -> Metadata:
    """The core metadata of a METADATA or PKG-INFO file; requirements that do not parse raise `Unreadable`."""
    raw, _ = parse_email(text)
    if not raw.get("name") or not raw.get("version"):
        raise Unreadable("its metadata has no name or no version")
    try:
        requires = tuple(Requirement(line) for line in raw.get("requires_dist", ()))
    except InvalidRequirement as error:
        raise Unreadable(f"its metadata has a requirement that does not parse: {error}".splitlines()[0]) from None
    return Metadata(version=raw["version"], requires_python=raw.get("requires_python"), requires=requires)


def oldest_python(requires_python: str | None) -> str:
    """The oldest CPython 3 (`3.9`) that a specifier allows; `3.11` when it says nothing."""
    if not requires_python:
        return "3.11"
    specifier = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in range(6, 30) if specifier.contains(f"3.{minor}.99")), "3.11")


def exact(requirement: Requirement | None) -> str | None:
    """The one version that a requirement pins (`==1.2`), else `None`."""
    if requirement is None:
        return None
    clauses = list(requirement.specifier)
    if len(clauses) == 1 and clauses[0].operator == "==" and "*" not in clauses[0].version:
        return clauses[0].version
    return None


def bounds(requirement: Requirement | None) -> str:
    """The specifier of a requirement in one spelling, lower bounds first; the empty text allows everything."""
    if requirement is None:
        return ""
    return ",".join(sorted((str(clause) for clause in requirement.specifier), key=lambda text: (text[0] != ">", text)))


def tags(name: str) -> frozenset[Tag]:
    """The tags of a wheel's file name."""
    return parse_wheel_filename(name)[3]


def pythons(files: Iterable[File], requires_python: str | None = None) -> list[str]:
    """The CPython releases (`3.11`) that some wheel for Linux x86_64 of these serves with the ordinary ABI.

    A wheel of the stable ABI serves all from its own on that `requires_python` allows, if that has an end; else its
    own alone is named.
    """
    allowed = SpecifierSet(requires_python or "")
    ends = not allowed.contains("3.99")
    found: set[int] = set()
    for minor, abi in _cpython_tags(files):
        if abi == "abi3" and ends:
            found |= {later for later in range(minor, 99) if allowed.contains(f"3.{later}.0")}
        elif abi in {f"cp3{minor}", f"cp3{minor}m", "abi3"}:
            found.add(minor)
    return [f"3.{minor}" for minor in sorted(found)]


def abi3_from(files: Iterable[File]) -> str | None:
    """The oldest CPython of the wheels of the stable ABI, which serve every later one too."""
    oldest = min((minor for minor, abi in _cpython_tags(files) if abi == "abi3"), default=None)
    return None if oldest is None else f"3.{oldest}"


def free_threaded(files: Iterable[File]) -> list[str]:
    """The free-threaded CPython releases (`3.13t`) served."""
    found = {minor for minor, abi in _cpython_tags(files) if abi == f"cp3{minor}t"}
    return [f"3.{minor}t" for minor in sorted(found)]


def _cpython_tags(files: Iterable[File]) -> Iterator[tuple[int, str]]:
    """Minor release of CPython 3 and ABI of every wheel for Linux x86_64."""
    for file in files:
        for tag in tags(file.name) if file.is_wheel else ():
            match = re.fullmatch(r"cp3(\d+)", tag.interpreter)
            if match and is_linux_x86(tag.platform):
                yield int(match[1]), tag.abi


def is_linux_x86(platform: str) -> bool:
    """Whether a platform tag is one of Linux x86_64 (`any` is not asked here)."""
    return platform.endswith("_x86_64") and ("linux" in platform)


_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}


def glibc_of_tags(name: str) -> str | None:
    """The least glibc that a wheel's platform tags promise to need (PEP 513, 571, 599, 600)."""
    found: list[Version] = []
    for tag in tags(name):
        match = re.match(r"manylinux_(\d+)_(\d+)_", tag.platform)
        if match:
            found.append(Version(f"{match[1]}.{match[2]}"))
        legacy = _LEGACY.get(tag.platform.partition("_")[0])
        if legacy:
            found.append(Version(legacy))
    return str(min(found)) if found else None


def requirement_map(requires: Mapping[str, Requirement]) -> dict[str, str]:
    """Name -> specifier (with extras in brackets before it), sorted."""
    return {
        name: (f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else "") + bounds(requirement)
        for name, requirement in sorted(requires.items())
    }
