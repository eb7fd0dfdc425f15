"""What METADATA and PKG-INFO files state: pure parsing, shared by all fact readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from knowngood.core.package_names import parse_requirement_text
from knowngood.index.artefact import Artefact, UnreadableError, find_member, read_text_member

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINUX = {
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


@dataclass(frozen=True, kw_only=True)
class CoreMetadata:
    """The core metadata that the readers use."""

    version: str
    requires_python: str | None
    requires: tuple[Requirement, ...]

    def requirements_on(self, python: str, *, extra: str = "") -> dict[str, Requirement]:
        """Return canonical name -> requirement, as they apply on Linux x86_64 with this Python (`3.11`)."""
        environment = linux_environment(python) | {"extra": extra}
        return {
            canonicalize_name(requirement.name): requirement
            for requirement in self.requires
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }


def linux_environment(python: str, machine: str = "x86_64") -> dict[str, str]:
    """Return the values that markers are evaluated with on Linux, for a Python such as `3.11` and a kind of machine."""
    return _LINUX | {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}


def parse_metadata(text: str | bytes) -> CoreMetadata:
    """Return the core metadata of a METADATA or PKG-INFO file; `UnreadableError` when it does not parse."""
    raw, _ = parse_email(text)
    if not raw.get("name") or not raw.get("version"):
        raise UnreadableError("its metadata has no name or no version")
    try:
        requires = tuple(parse_requirement_text(line) for line in raw.get("requires_dist", ()))
    except InvalidRequirement as error:
        raise UnreadableError(f"its metadata has a requirement that does not parse: {error}".splitlines()[0]) from None
    return CoreMetadata(version=raw["version"], requires_python=raw.get("requires_python"), requires=requires)


def read_metadata(artefact: Artefact) -> CoreMetadata:
    """Read the core metadata of a wheel (METADATA) or an sdist (PKG-INFO)."""
    ending = ".dist-info/METADATA" if artefact.file.is_wheel else "PKG-INFO"
    return parse_metadata(read_text_member(artefact, find_member(artefact, ending)))


def oldest_python(requires_python: str | None) -> str:
    """Return the oldest CPython 3 (`3.9`) that a specifier allows; `3.11` when it says nothing."""
    if not requires_python:
        return "3.11"
    specifier = SpecifierSet(requires_python)
    return next((f"3.{minor}" for minor in range(6, 30) if specifier.contains(f"3.{minor}.99")), "3.11")


def exact_pin(requirement: Requirement | None) -> str | None:
    """Return the one version that a requirement pins (`==1.2`), or `None` when it pins none."""
    clauses = list(requirement.specifier) if requirement else []
    if len(clauses) == 1 and clauses[0].operator == "==" and "*" not in clauses[0].version:
        return clauses[0].version
    return None


def specifier_text(requirement: Requirement | None) -> str:
    """Return a requirement's specifier in one spelling, lower bounds first; the empty text allows everything."""
    if requirement is None:
        return ""
    return ",".join(sorted((str(clause) for clause in requirement.specifier), key=lambda text: (text[0] != ">", text)))


def requirement_map(requires: Mapping[str, Requirement]) -> dict[str, str]:
    """Return name -> specifier (with its extras in brackets before it), sorted by name."""
    return {
        name: (f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else "") + specifier_text(requirement)
        for name, requirement in sorted(requires.items())
    }
