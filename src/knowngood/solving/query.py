"""What is asked: requirements, wheel names, freezes, axes and conditions of use, read into a `Request`. Pure.

A package may be given as `torch==2.6.0`, `torch==2.6.0+cu124`, `transformers>=4.40,<5`, as the name of a wheel, or as
a line of `pip freeze` or of a requirements file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from knowngood.errors import UsageError
from knowngood.locks import wheels
from knowngood.solving.universe import ATTENTION

AXES = ("driver", "nvcc", "python", "glibc")
"""Axes that are given as a version."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One package as it was asked for."""

    name: str
    """Canonical."""
    specifier: str
    """PEP 440, `none` (it must not be there) or empty (any version)."""
    local: str | None = None
    """`cu124`, `cu12torch2.6cxx11abiFALSE`"""
    wheel: wheels.Tags | None = None
    named: bool = True
    """It was named by the asker; a line of a listing is not."""

    @property
    def text(self) -> str:
        """As a requirement."""
        return f"{self.name}{'=' if self.specifier == 'none' else ''}{self.specifier}"

    @property
    def version(self) -> str | None:
        """The one version asked for, without its local part; `None` for a range."""
        match = re.fullmatch(r"===?([^,*]+)", self.specifier)
        return match[1] if match else None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A whole question."""

    gpu: str | None = None
    axes: Mapping[str, str] = field(default_factory=dict)
    attn: str | None = None
    used: Mapping[str, str] = field(default_factory=dict)
    """`--with`"""
    packages: tuple[Wanted, ...] = ()

    @property
    def stated(self) -> Mapping[str, str]:
        """How it is used; the attention is an axis, and a condition of use too."""
        return self.used if self.attn is None else {**self.used, "attn": self.attn}


def requirement(text: str, *, named: bool = True, python: str | None = None) -> Wanted | None:
    """A requirement or a wheel's name; `None` when its marker excludes it. Raises `UsageError`."""
    said = text.strip()
    if said.endswith(".whl"):
        return _wheel(said, named=named)
    fast = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*?)\s*==\s*([0-9][0-9A-Za-z.!_-]*)(?:\+([0-9A-Za-z._-]+))?", said)
    if fast:
        return pinned(fast[1], fast[2], fast[3], named=named)
    absent = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*?)\s*={1,2}\s*(none|0)", said)
    if absent:
        return Wanted(name=canonical(absent[1]), specifier="none", named=named)
    return _any_requirement(said, named=named, python=python)


def pinned(name: str, version: str, local: str | None = None, *, named: bool = True) -> Wanted:
    """`name==version+local`; a version of FlashAttention 4 means its distribution."""
    name = canonical(name)
    try:
        normal = Version(version)
    except InvalidVersion:
        raise UsageError(f"{name}=={version}: {version!r} is not a version (PEP 440), as in 2.6.0") from None
    if name == "flash-attn" and normal.major == 4:
        name = "flash-attn-4"
    return Wanted(name=name, specifier=f"=={normal}", local=local, wheel=wheels.of_local(name, local), named=named)


def canonical(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _any_requirement(text: str, *, named: bool, python: str | None) -> Wanted | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        read = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{text!r} is not a requirement: {reason}; one is written like torch==2.6.0") from None
    if read.marker and not read.marker.evaluate(_environment(python)):
        return None
    if read.url:
        name = read.url.partition("#")[0].rpartition("/")[2]
        if name.endswith(".whl"):
            return _wheel(name.replace("%2B", "+"), named=named)
        return Wanted(name=canonical(read.name), specifier="", named=named)
    clauses = [str(clause) for clause in read.specifier]
    if len(clauses) == 1 and clauses[0].startswith("==") and "*" not in clauses[0]:
        version, _, local = clauses[0].lstrip("=").partition("+")
        return pinned(read.name, version, local or None, named=named)
    return Wanted(name=canonical(read.name), specifier=",".join(sorted(clauses)), named=named)


def _environment(python: str | None) -> dict[str, str]:
    """The marker environment of the machines that this is about: Linux on x86_64."""
    version = python or "3.11"
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


def _wheel(text: str, *, named: bool) -> Wanted:
    name, version, tags = wheels.parse(text.rpartition("/")[2])
    made = pinned(name, version.public, version.local, named=named)
    return replace(made, wheel=tags)


def listing(text: str, origin: str, *, python: str | None = None) -> list[Wanted]:
    """The packages of a requirements file or of a freeze; raises `UsageError` with the line that cannot be read.

    Options (`-r`, `--index-url`, ...) and editable installs say nothing of versions and are passed over.
    """
    found = []
    for number, line in enumerate(_logical_lines(text), start=1):
        said = re.sub(r"(^|\s)#.*$", "", line).strip()
        said = re.sub(r"\s+--(hash|config-settings)[= ]\S+", "", said)
        if not said or said.startswith("-"):
            continue
        if "://" in said and " @ " not in said and not said.endswith(".whl"):
            continue
        try:
            wanted = requirement(said, named=False, python=python)
        except UsageError as error:
            raise UsageError(f"{origin}:{number}: {error}") from None
        if wanted:
            found.append(wanted)
    return found


def _logical_lines(text: str) -> Iterable[str]:
    held = ""
    for line in text.lstrip("\ufeff").splitlines():
        if line.endswith("\\"):
            held += line[:-1] + " "
            yield ""
            continue
        yield held + line
        held = ""
    if held:
        yield held


def axis(name: str, text: str) -> str:
    """A version on an axis, `3.11.4` or `580.65.06`; raises `UsageError`."""
    try:
        Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a version of {name}; one is written like {_EXAMPLES[name]}") from None
    return text


_EXAMPLES = {"driver": "580.65.06", "nvcc": "12.8", "python": "3.11", "glibc": "2.36"}


def attention(text: str) -> str:
    """An attention setting by any of its names; raises `UsageError` with the nearest."""
    import difflib

    names = {name: name for name in ATTENTION}
    names |= {"flash-attention-2": "fa2", "flash-attention-3": "fa3", "flash-attention-4": "fa4"}
    names |= {"flex-attention": "flex", "flash-attn": "fa2", "sdpa-mem-efficient": "sdpa-efficient"}
    said = re.sub(r"[_\s]+", "-", text.strip().lower())
    if said in names:
        return names[said]
    near = difflib.get_close_matches(said, names, 1, 0)[0]
    raise UsageError(f"there is no attention setting {text!r}; the nearest is {near} (known: {', '.join(ATTENTION)})")


def condition(text: str) -> tuple[str, str]:
    """`KEY=VALUE` of `--with`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageError(f"{text!r} is not of the form KEY=VALUE, as in dtype=bf16")
    return key.strip(), value.strip()


def from_document(item: Any) -> Request:
    """A line of a batch: `{"gpu": ..., "driver": ..., "packages": {"torch": "2.6.0"}, "with": {...}}`."""
    if not isinstance(item, dict):
        raise UsageError("a query is a JSON object")
    known = {"gpu", "attn", "packages", "with", *AXES}
    strange = sorted(set(item) - known)
    if strange:
        raise UsageError(f"unknown key {strange[0]!r}; a query has {', '.join(sorted(known))}")
    packages, used = item.get("packages", {}), item.get("with", {})
    if not isinstance(packages, dict) or not isinstance(used, dict):
        raise UsageError("'packages' and 'with' are JSON objects")
    return Request(
        gpu=None if item.get("gpu") is None else str(item["gpu"]),
        axes={name: axis(name, str(item[name])) for name in AXES if item.get(name) is not None},
        attn=None if item.get("attn") is None else attention(str(item["attn"])),
        used={str(key): _plain(value) for key, value in used.items()},
        packages=tuple(_package(str(name), value) for name, value in packages.items()),
    )


def _package(name: str, value: Any) -> Wanted:
    text = "" if value is None else str(value).strip()
    if text in ("none", "0"):
        return Wanted(name=canonical(name), specifier="none")
    made = requirement(f"{name}{text}" if text[:1] in "<>=!~" else f"{name}=={text}")
    assert made is not None  # noqa: S101 - there is no marker in it
    return made


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
