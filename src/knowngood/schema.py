"""The shape of matrix.yaml: one model a section, and pydantic's complaints turned into `Problem`s with a line."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from knowngood.cell import NO_FLASH_ATTN, flash_attn_package, plain_version
from knowngood.document import Document
from knowngood.errors import Problem, UsageError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _matching(pattern: str, example: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not written like {example}")
        return value

    return AfterValidator(check)


def _version_of(package: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            return plain_version(value, package)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(check)


def _flash_attn(value: str) -> str:
    if value in ("none", NO_FLASH_ATTN):
        return NO_FLASH_ATTN
    try:
        flash_attn_package(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return value


def _requirement(value: str) -> str:
    try:
        Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"{value!r} is not a requirement (PEP 508): {str(error).splitlines()[0]}") from None
    if "\n" in value or "@" in value:
        raise ValueError(f"{value!r}: a requirement here names a package and versions, not an address")
    return value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


GpuName = Annotated[str, _matching(r"sm_[1-9]\d{1,2}", "sm_90")]
Name = Annotated[str, _matching(r"[a-z0-9]+([.-][a-z0-9]+)*", "a name such as debian12 or hopper-stable")]
Package = Annotated[str, _matching(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "a package name")]
Pattern = Annotated[str, _matching(r"[a-z0-9*]([a-z0-9.*-]*[a-z0-9*])?", "a package name or a glob over them")]
Requirements = Annotated[tuple[Annotated[str, AfterValidator(_requirement)], ...], BeforeValidator(_listed)]
Text = Annotated[str, Field(min_length=1)]


class Gpu(_Section):
    """An architecture and the cards that have it."""

    family: Text
    cards: Annotated[tuple[Text, ...], Field(min_length=1)]


class Bootstrap(_Section):
    """A base made from Debian packages: the suite, and the packages wanted (their dependencies follow)."""

    suite: Name
    packages: Annotated[
        tuple[Annotated[str, _matching(r"[a-z0-9][a-z0-9.+-]+", "a Debian package")], ...], Field(min_length=1)
    ]


class Base(_Section):
    """The operating-system image under a cell; exactly one of `bootstrap` and `image`."""

    python: Annotated[str, _matching(r"3\.\d{1,2}", "3.11")]
    glibc: Annotated[str, _matching(r"2\.\d{1,2}", "2.36")]
    bootstrap: Bootstrap | None = None
    image: Annotated[str, _matching(r"[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}", "NAME@sha256:DIGEST")] | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Base:
        if (self.bootstrap is None) == (self.image is None):
            raise ValueError("a base has either `bootstrap` or `image` (by digest), and not both")
        return self


class Amendment(_Section):
    """See `matrix.Amendment`."""

    when: Text
    require: Requirements = ()
    exclude: Annotated[tuple[Package, ...], BeforeValidator(_listed)] = ()
    because: Text


class CellItem(_Section):
    """One item of `cells`; axes may hold lists, and the item stands for their product."""

    gpu: Annotated[tuple[GpuName, ...], BeforeValidator(_listed)]
    torch: Annotated[tuple[Annotated[str, _version_of("torch")], ...], BeforeValidator(_listed)]
    transformers: Annotated[tuple[Annotated[str, _version_of("transformers")], ...], BeforeValidator(_listed)]
    flash_attn: Annotated[
        tuple[Annotated[str, AfterValidator(_flash_attn)], ...], BeforeValidator(_listed), Field(alias="flash-attn")
    ] = (NO_FLASH_ATTN,)
    base: Annotated[tuple[Name, ...], BeforeValidator(_listed)]
    cuda: Annotated[str, _matching(r"\d{2}\.\d", "13.0")] | None = None
    triton: Annotated[str, _version_of("triton")] | None = None
    extras: Annotated[Requirements, Field(alias="with")] = ()


class MatrixFile(_Section):
    """matrix.yaml as written."""

    schema_: Annotated[Literal["1"], Field(alias="schema")]
    locked_at: Annotated[str, Field(alias="locked-at"), _matching(r"\d{4}-\d\d-\d\d", "2026-11-20")]
    gpus: Annotated[dict[GpuName, Gpu], Field(min_length=1)]
    bases: Annotated[dict[Name, Base], Field(min_length=1)]
    stack: Requirements = ()
    layers: dict[Name, Annotated[tuple[Pattern, ...], BeforeValidator(_listed)]]
    # An item is None where `validate` took a malformed one out, so that the others keep their index.
    amendments: tuple[Amendment | None, ...] = ()
    cells: Annotated[tuple[CellItem | None, ...], Field(min_length=1)]
    aliases: dict[Name, str] = {}


def validate(source: Document) -> tuple[MatrixFile | None, list[Problem]]:
    """The file's content as models, and every problem of its shape.

    Malformed items are taken out and the rest is kept, so that it can be checked further in the same run;
    `None` when too little is left for that.
    """
    data = copy.deepcopy(source.data)
    problems: list[Problem] = []
    while True:
        try:
            return MatrixFile.model_validate(data), problems
        except ValidationError as error:
            errors = error.errors(include_url=False)
            problems += [_problem(source, item) for item in errors]
            taken_out = [_take_out(data, item["loc"]) for item in errors]
            if not all(taken_out):
                return None, problems


def _take_out(data: Any, path: tuple[str | int, ...]) -> bool:
    if len(path) < 2 or path[0] not in ("gpus", "bases", "layers", "aliases", "cells", "amendments"):
        return False
    section = data[path[0]]
    if isinstance(section, list) and isinstance(path[1], int):
        section[path[1]] = None
    elif isinstance(section, dict):
        section.pop(path[1], None)
    else:
        return False
    return True


def _problem(source: Document, item: Any) -> Problem:
    path: list[str | int] = list(item["loc"])
    kind, said = item["type"], item["msg"]
    if kind == "extra_forbidden":
        return source.problem(path, f"unknown key {path[-1]!r}{_nearest(path)}", key=True)
    if path and path[-1] == "[key]":
        return source.problem(path[:-1], said.removeprefix("Value error, "), key=True)
    if kind == "missing":
        return source.problem(path[:-1], f"the key {path[-1]!r} is missing" + _whose(path))
    if kind == "value_error":
        return source.problem(path, said.removeprefix("Value error, "))
    wanted = {
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "dict_type": "a mapping",
        "tuple_type": "a list",
        "string_type": "text",
    }.get(kind)
    name = ".".join(map(str, path)) or "the file"
    return source.problem(path, f"{name} must be {wanted}" if wanted else f"{name}: {said}")


def _whose(path: Sequence[str | int]) -> str:
    return f" in {'.'.join(map(str, path[:-1]))}" if len(path) > 1 else ""


def _nearest(path: Sequence[str | int]) -> str:
    section: type[BaseModel] = (
        {
            "gpus": Gpu,
            "bases": Bootstrap if "bootstrap" in path else Base,
            "amendments": Amendment,
            "cells": CellItem,
        }.get(str(path[0]), MatrixFile)
        if len(path) > 1
        else MatrixFile
    )
    keys = [field.alias or name for name, field in section.model_fields.items()]
    near = difflib.get_close_matches(str(path[-1]), keys, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the keys here are {', '.join(keys)}"
