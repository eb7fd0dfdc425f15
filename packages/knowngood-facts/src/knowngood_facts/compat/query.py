"""The question that a user puts to `check` or `pick`, parsed from text into a `Query`. Pure.

A package can be given as `torch==2.6.0`, `torch==2.6.0+cu124`, `transformers[torch]>=4.40,<5`, or as the file name of a
wheel. `knowngood_facts.compat.requirement_lines` reads requirements files and freezes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from knowngood.core.attention import parse_attention
from knowngood.core.errors import UsageError
from knowngood.core.package_names import canonical_name, parse_requirement_text
from knowngood.index import wheel_tags

MACHINE, DEFAULT_MACHINE = "machine", "x86_64"
"""The condition of use that is the kind of CPU, and what it is unless the query or its GPU says another."""

WHEEL_AT_HAND = ("wheel", "true")
"""The condition of use under which a package need not be compiled; a query that names a wheel states it."""

VERSION_AXES = ("driver", "nvcc", "python", "glibc")
"""The axes whose value is a version."""


_SHOWN = 300
"""The most letters of a text that a message repeats."""


class RequirementError(UsageError):
    """A text that is not a requirement.

    `reason` does not repeat the text, which may be a line of a file that was named by mistake and is secret. `offset`
    is the place in it, in characters, where it stops being a requirement.
    """

    def __init__(self, text: str, reason: str, *, offset: int) -> None:
        self.reason = f"not a requirement: {reason}; one is written like torch==2.6.0"
        super().__init__(f"{text[:_SHOWN]!r} is {self.reason}")
        self.offset = offset


@dataclass(frozen=True, kw_only=True)
class PackageSpec:
    """One package of a query."""

    name: str
    """The package, in lower case with single dashes (PEP 503)."""
    specifier: str
    """A PEP 440 specifier, `none` (the package must be absent) or empty (any version)."""
    local: str | None = None
    """The local part of the version: `cu124`, `cu12torch2.6cxx11abiFALSE`."""
    wheel: wheel_tags.WheelBuild | None = None
    explicit: bool = True
    """The user named it; `False` for a line of a requirements file or of a freeze."""
    extras: tuple[str, ...] = ()
    """The extras that are asked for, normalized by PEP 503."""
    is_constraint: bool = False
    """It does not ask for the package, and says only which releases may be there."""

    @property
    def text(self) -> str:
        """The package as a requirement, without its local part."""
        return f"{self.name}{'=' if self.specifier == 'none' else ''}{self.specifier}"

    @property
    def version(self) -> str | None:
        """The version that is pinned, without its local part; `None` for a range."""
        match = re.fullmatch(r"===?([^,*]+)", self.specifier)
        return match[1] if match else None


@dataclass(frozen=True, kw_only=True)
class UnreadLine:
    """A line of a requirements file that could not be used for the answer."""

    file: str
    line: int
    text: str
    because: str
    package: str | None = None
    """The package that it names, where it names one."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text} ({self.because})"

    def document(self) -> dict[str, Any]:
        """Return the line as `check --json` prints it."""
        place = {"file": self.file, "line": self.line, "text": self.text, "because": self.because}
        return place | ({"package": self.package} if self.package else {})


@dataclass(frozen=True, kw_only=True)
class Query:
    """A combination of axes, packages and conditions of use that `check` or `pick` answers about."""

    gpu: str | None = None
    axes: Mapping[str, str] = field(default_factory=dict)
    attn: str | None = None
    hub_kernel: str | None = None
    """The kernel of the hub that is the attention setting instead, such as `kernels-community/flash-attn2`."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """The conditions of use that `--with` states."""
    packages: tuple[PackageSpec, ...] = ()
    constraints: tuple[PackageSpec, ...] = ()
    """Bounds on packages that the query does not name; they hold where something that it names requires the package."""
    unread: tuple[UnreadLine, ...] = ()
    """The lines of requirements files whose packages are not known."""
    notes: tuple[str, ...] = ()
    """What was passed over in files of requirements, or assumed."""

    @property
    def stated_conditions(self) -> Mapping[str, str]:
        """All conditions of use that are stated; the attention setting is an axis and also such a condition.

        The machine is x86-64 unless another is stated.
        """
        stated = {} if self.attn is None else {"attn": self.attn}
        stated |= dict([WHEEL_AT_HAND]) if any(package.wheel for package in self.packages) else {}
        return {MACHINE: DEFAULT_MACHINE, **self.conditions, **stated}


def parse_requirement(text: str, *, explicit: bool = True, python: str | None = None) -> PackageSpec | None:
    """Parse a requirement or the file name of a wheel; raises `UsageError` for anything else.

    The result is `None` when the requirement's marker excludes Linux on x86_64 with this Python.
    """
    text = text.strip()
    if text.endswith(".whl"):
        return _parse_wheel_name(text, explicit=explicit)
    pin = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*?)\s*==\s*([0-9][0-9A-Za-z.!_-]*)(?:\+([0-9A-Za-z._-]+))?", text)
    if pin:
        return pinned_package(pin[1], pin[2], pin[3], explicit=explicit)
    absent = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*?)\s*={1,2}\s*(none|0)", text)
    if absent:
        return PackageSpec(name=canonical_name(absent[1]), specifier="none", explicit=explicit)
    return _parse_any_requirement(text, explicit=explicit, python=python)


def pinned_package(name: str, version: str, local: str | None = None, *, explicit: bool = True) -> PackageSpec:
    """Return the package that `name==version+local` pins; flash-attn 4 means the distribution flash-attn-4."""
    name = canonical_name(name)
    try:
        normal = Version(version)
    except InvalidVersion:
        raise UsageError(f"{name}=={version}: {version!r} is not a version (PEP 440), as in 2.6.0") from None
    if name == "flash-attn" and normal.major == 4:
        name = "flash-attn-4"
    return PackageSpec(
        name=name,
        specifier=f"=={normal}",
        local=local,
        wheel=wheel_tags.build_from_local_version(name, local),
        explicit=explicit,
    )


def _parse_any_requirement(text: str, *, explicit: bool, python: str | None) -> PackageSpec | None:
    from packaging.requirements import InvalidRequirement

    try:
        requirement = parse_requirement_text(text)
    except InvalidRequirement as error:
        reason, *rest = str(error).splitlines()
        caret = rest[-1].find("^") if len(rest) > 1 else -1
        raise RequirementError(text, reason, offset=max(0, caret - 4)) from None
    if requirement.marker and not requirement.marker.evaluate(marker_environment(python)):
        return None
    if requirement.url:
        raise RequirementError(text, "it is at an address, which is not looked at here; name its release", offset=0)
    clauses = [str(clause) for clause in requirement.specifier]
    extras = tuple(sorted(map(canonical_name, requirement.extras)))
    if len(clauses) == 1 and clauses[0].startswith("==") and "*" not in clauses[0]:
        version, _, local = clauses[0].lstrip("=").partition("+")
        return replace(pinned_package(requirement.name, version, local or None, explicit=explicit), extras=extras)
    name, specifier = canonical_name(requirement.name), ",".join(sorted(clauses))
    return PackageSpec(name=name, specifier=specifier, explicit=explicit, extras=extras)


def marker_environment(python: str | None) -> dict[str, str]:
    """Return the variables of markers on the machines of the facts: Linux on x86_64, and Python 3.11 by default."""
    version = (python or "3.11").removesuffix("t")
    return {
        "python_version": ".".join(version.split(".")[:2]),
        "python_full_version": version if version.count(".") > 1 else f"{version}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def _parse_wheel_name(text: str, *, explicit: bool) -> PackageSpec:
    name, version, tags = wheel_tags.parse_wheel_name(text.rpartition("/")[2])
    package = pinned_package(name, version.public, version.local, explicit=explicit)
    return replace(package, wheel=tags)


def parse_axis_version(name: str, text: str) -> str:
    """Return the value of a version axis: `3.11.4`, `3.13t` (free-threaded), `580.65.06`, `535` for a driver's branch.

    `R535` is the branch 535. Raises `UsageError` when the text is no version.
    """
    value = text.strip()
    if name == "driver":
        value = re.sub(r"(?i)^r(?=[0-9]{3})|\.[x*]$", "", value)
    try:
        Version(value.removesuffix("t") if name == "python" else value)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a version of {name}; one is written like {_EXAMPLES[name]}") from None
    return value


_EXAMPLES = {"driver": "580.65.06", "nvcc": "12.8", "python": "3.11", "glibc": "2.36"}


def parse_stated_attention(text: str | None) -> tuple[str | None, str | None]:
    """Return the attention setting, or `None` and the kernel of the hub that a text with a slash names.

    Raises:
        UsageError: there is no such attention setting.
    """
    if text is None:
        return None, None
    if re.fullmatch(r"[\w.-]+/[\w.-]+(?:@[\w.-]+)?(?::\w+)?", text.strip()):
        return None, text.strip()
    return parse_attention(text), None


def parse_use_condition(text: str) -> tuple[str, str]:
    """Split the `KEY=VALUE` of `--with`; raises `UsageError` for another form."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageError(f"{text!r} is not of the form KEY=VALUE, as in dtype=bf16")
    return key.strip(), value.strip()


def query_from_document(item: Any) -> Query:
    """Return the query in one line of a batch; raises `UsageError` with what is wrong.

    The form is `{"gpu": ..., "driver": ..., "packages": {"torch": "2.6.0"}, "with": {...}}`.
    """
    if not isinstance(item, dict):
        raise UsageError("a query is a JSON object")
    known = {"gpu", "attn", "packages", "with", *VERSION_AXES}
    strange = sorted(set(item) - known)
    if strange:
        raise UsageError(f"unknown key {strange[0]!r}; a query has {', '.join(sorted(known))}")
    packages, conditions = item.get("packages", {}), item.get("with", {})
    if not isinstance(packages, dict) or not isinstance(conditions, dict):
        raise UsageError("'packages' and 'with' are JSON objects")
    attn, hub_kernel = parse_stated_attention(None if item.get("attn") is None else str(item["attn"]))
    return Query(
        gpu=None if item.get("gpu") is None else str(item["gpu"]),
        axes={name: parse_axis_version(name, str(item[name])) for name in VERSION_AXES if item.get(name) is not None},
        attn=attn,
        hub_kernel=hub_kernel,
        conditions={str(key): _condition_text(value) for key, value in conditions.items()},
        packages=tuple(_package_from_item(str(name), value) for name, value in packages.items()),
    )


def _package_from_item(name: str, value: Any) -> PackageSpec:
    text = "" if value is None else str(value).strip()
    if text in ("none", "0"):
        return PackageSpec(name=canonical_name(name), specifier="none")
    package = parse_requirement(f"{name}{text}" if text[:1] in "<>=!~" else f"{name}=={text}")
    assert package is not None  # noqa: S101 - only a marker gives None, and there is no marker here
    return package


def _condition_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
