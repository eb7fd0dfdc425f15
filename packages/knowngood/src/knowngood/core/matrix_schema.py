"""The schema of matrix.yaml: one pydantic model a section, and pydantic's errors as problems with a line."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal, TypeVar

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from knowngood.core import formatting
from knowngood.core.cell import (
    AXIS_PACKAGES,
    NO_FLASH_ATTN,
    NO_FRAMEWORK,
    flash_attn_package,
    parse_framework,
    validate_version,
)
from knowngood.core.errors import InputError, InputProblem, UsageError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.layer_groups import validate_group_name
from knowngood.core.matrix_entries import ENTRY_AXES, normal_axis_value
from knowngood.core.package_names import parse_requirement_text
from knowngood.core.publish_policy import LeastTier
from knowngood.core.yaml_document import YamlDocument


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _matching(pattern: str, example: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(f"{value!r} is not written like {example}")
        return value

    return AfterValidator(check)


def _version_of(package: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            return validate_version(value, package)
        except UsageError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(check)


def _flash_attn(value: str) -> str:
    version = normal_axis_value("flash-attn", value)
    try:
        if version != NO_FLASH_ATTN:
            flash_attn_package(version)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return version


def _framework(value: str) -> str:
    if value == NO_FRAMEWORK:
        return value
    name, _, version = value.partition("==")
    framework = normal_axis_value("framework", value)
    try:
        parse_framework(framework)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not version or not name.replace("-", "").isalpha():
        raise ValueError(f"{value!r} is not written like xtuner==0.1.23")
    return framework


def _requirement(value: str) -> str:
    try:
        parse_requirement_text(value)
    except InvalidRequirement as error:
        raise ValueError(f"{value!r} is not a requirement (PEP 508): {str(error).splitlines()[0]}") from None
    if not value.isprintable() or "@" in value:
        raise ValueError(f"{value!r}: a requirement here names a package and versions, not an address")
    return value


def _pin(value: str) -> str:
    name, _, version = _requirement(value).partition("==")
    if not version or not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"{value!r} is not written like transformer-engine-torch==2.20.2")
    try:
        validate_version(version, name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return value


def _day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a day of the calendar") from None
    return value


def as_list(value: Any) -> Any:
    """Return a list as it is, and a single value as a list with one item."""
    return value if isinstance(value, list | tuple) else [value]


GpuName = Annotated[str, _matching(r"sm_[1-9]\d{1,2}", "sm_90")]
Name = Annotated[str, _matching(r"[a-z0-9]+([.-][a-z0-9]+)*", "a name such as debian12 or hopper-stable")]
GroupName = Annotated[Name, AfterValidator(validate_group_name)]
Package = Annotated[str, _matching(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "a package name")]
Trainer = Annotated[str, _matching(r"[a-z]+(-[a-z]+)*", "the package of a trainer, such as trl or ms-swift")]
Pattern = Annotated[str, _matching(r"[a-z0-9*]([a-z0-9.*-]*[a-z0-9*])?", "a package name or a glob over them")]
Requirements = Annotated[tuple[Annotated[str, AfterValidator(_requirement)], ...], BeforeValidator(as_list)]
Pins = Annotated[tuple[Annotated[str, AfterValidator(_pin)], ...], BeforeValidator(as_list)]
Day = Annotated[str, _matching(r"\d{4}-\d\d-\d\d", "2026-11-20"), AfterValidator(_day)]
Text = Annotated[str, Field(min_length=1)]
_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
Values = Annotated[tuple[_T, ...], BeforeValidator(as_list), Field(min_length=1)]


class GpuArchitecture(_Section):
    """A GPU architecture: its family, and the cards that have it."""

    family: Text
    cards: Annotated[tuple[Text, ...], Field(min_length=1)]
    aarch64: tuple[Text, ...] = ()
    """Those of the cards that are built together with a CPU of Arm."""

    @property
    def has_only_arm_hosts(self) -> bool:
        """Whether all of the cards are built together with a CPU of Arm."""
        return set(self.cards) <= set(self.aarch64)

    @model_validator(mode="after")
    def _hosts_of_its_cards(self) -> GpuArchitecture:
        strange = [card for card in self.aarch64 if card not in self.cards]
        if strange:
            raise ValueError(f"`aarch64` names {strange[0]!r}, which is not among the cards")
        return self


class Bootstrap(_Section):
    """A base made from Debian packages: the suite, and the wanted packages, whose dependencies are added."""

    suite: Name
    packages: Annotated[
        tuple[Annotated[str, _matching(r"[a-z0-9][a-z0-9.+-]+", "a Debian package")], ...], Field(min_length=1)
    ]


class Base(_Section):
    """The operating-system image under a cell."""

    python: Annotated[str, _matching(r"3\.\d{1,2}", "3.11")]
    glibc: Annotated[str, _matching(r"2\.\d{1,2}", "2.36")]
    bootstrap: Bootstrap
    host: HostArchitecture = DEFAULT_HOST
    """The hosts that it runs on. A cell of aarch64 on `debian12` has the base `debian12-aarch64`, which is made of the
    same packages unless the file has a base of that name."""


class AmendmentItem(_Section):
    """One item of `amendments`; `matrix.Amendment` explains the fields."""

    when: Text
    require: Requirements = ()
    exclude: Annotated[tuple[Package, ...], BeforeValidator(as_list)] = ()
    source: Annotated[tuple[Package, ...], BeforeValidator(as_list)] = ()
    override: Requirements = ()
    wheel: Pins = ()
    waive: Annotated[tuple[Text, ...], BeforeValidator(as_list)] = ()
    on: Day | None = None
    because: Text

    @model_validator(mode="after")
    def _waived_on_a_day(self) -> AmendmentItem:
        if bool(self.waive) != (self.on is not None):
            raise ValueError("`waive` and `on` go together: the id of a finding, and the day on which it was waived")
        return self


TorchVersion = Annotated[str, _version_of("torch")]
TransformersVersion = Annotated[str, _version_of("transformers")]
FlashAttn = Annotated[str, AfterValidator(_flash_attn)]
Framework = Annotated[str, AfterValidator(_framework)]


def _lists(item: BaseModel) -> dict[str, tuple[str, ...]]:
    return {axis: values for axis in ENTRY_AXES if (values := getattr(item, axis.replace("-", "_")))}


class ExcludeItem(_Section):
    """One item of an entry's `exclude`: the combinations that have one of these values on every axis named here."""

    gpu: Values[GpuName] | None = None
    base: Values[Name] | None = None
    torch: Values[TorchVersion] | None = None
    transformers: Values[TransformersVersion] | None = None
    flash_attn: Annotated[Values[FlashAttn] | None, Field(alias="flash-attn")] = None
    framework: Values[Framework] | None = None
    host: Values[HostArchitecture] | None = None

    @model_validator(mode="after")
    def _some_axis(self) -> ExcludeItem:
        if not self.lists():
            raise ValueError(f"an exclude names values on at least one of {', '.join(ENTRY_AXES)}")
        return self

    def lists(self) -> dict[str, tuple[str, ...]]:
        """Return axis -> values, for the axes that are named."""
        return _lists(self)


class StackItem(_Section):
    """One item of `stacks`, whose key is the trainer: its release, what comes with it, and the cells that it is on."""

    release: Annotated[str, _version_of("the trainer")]
    extras: Annotated[tuple[Package, ...], BeforeValidator(as_list)] = ()
    """Extras of the trainer, as in `trl[quantization]`."""
    companions: Annotated[Requirements, Field(alias="with")] = ()
    on: Values[Text]
    """Ids or aliases of cells without a framework."""
    locked_at: Annotated[Day | None, Field(alias="locked-at")] = None
    """The day that counts for what comes with the trainer, in place of that of the cell below."""
    moves: Annotated[tuple[Package, ...], BeforeValidator(as_list)] = ()
    """Packages of those cells that the trainer needs in other versions."""

    @model_validator(mode="after")
    def _axes_stay(self) -> StackItem:
        if axes := [name for name in self.moves if canonicalize_name(name) in AXIS_PACKAGES]:
            raise ValueError(f"`moves` names {axes[0]}, an axis; a trainer that needs another has a cell of its own")
        return self


class RetiredItem(_Section):
    """`retired` of an item of `cells`: since when, and the id of the cell to take instead."""

    on: Day
    successor: Annotated[Text, Field(alias="for")] = "none"


class CellItem(_Section):
    """One item of `cells`. An axis may hold a list; the item stands for the product without what `exclude` matches."""

    gpu: Values[GpuName]
    torch: Values[TorchVersion]
    transformers: Values[TransformersVersion]
    flash_attn: Annotated[Values[FlashAttn], Field(alias="flash-attn")] = (NO_FLASH_ATTN,)
    framework: Values[Framework] = (NO_FRAMEWORK,)
    host: Values[HostArchitecture] = (DEFAULT_HOST,)
    base: Values[Name]
    exclude: tuple[ExcludeItem, ...] = ()
    retired: RetiredItem | None = None
    locked_at: Annotated[Day | None, Field(alias="locked-at")] = None
    """The day that counts for these cells in place of the whole file's."""
    cuda: Annotated[str, _matching(r"\d{2}\.\d", "13.0")] | None = None
    triton: Annotated[str, _version_of("triton")] | None = None
    extras: Annotated[Requirements, Field(alias="with")] = ()

    def lists(self) -> dict[str, tuple[str, ...]]:
        """Return axis -> values, for every axis that may hold a list."""
        return _lists(self)


def _size(value: str) -> str:
    formatting.parse_bytes(value)
    return value


class SizeLimit(_Section):
    """The largest allowed size of an image, compressed."""

    cell: Annotated[str, AfterValidator(_size)]


KeyFile = Annotated[str, _matching(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*", "keys/release.pub")]


class IdentityItem(_Section):
    """`identity` of the section `publish`; `publish_policy.SigningIdentity` explains the fields."""

    issuer: Annotated[str, _matching(r"https?://[^\s/]\S*", "https://token.actions.githubusercontent.com")]
    subject: Text
    trust: KeyFile | None = None


class PublishItem(_Section):
    """The section `publish`; `publish_policy.PublishPolicy` explains the fields."""

    tier: LeastTier = "built"
    gpus: dict[GpuName, LeastTier] = {}
    key: Annotated[tuple[KeyFile, ...], BeforeValidator(as_list)] = ()
    identity: Annotated[tuple[IdentityItem, ...], BeforeValidator(as_list)] = ()
    repository: Text | None = None


class MatrixFile(_Section):
    """The content of matrix.yaml, as it is written."""

    schema_: Annotated[Literal["1"], Field(alias="schema")]
    locked_at: Annotated[Day, Field(alias="locked-at")]
    gpus: Annotated[dict[GpuName, GpuArchitecture], Field(min_length=1)]
    bases: Annotated[dict[Name, Base], Field(min_length=1)]
    everywhere: Requirements = ()
    """What every cell has besides its axes."""
    layers: dict[GroupName, Annotated[tuple[Pattern, ...], BeforeValidator(as_list)]]
    stacks: dict[Trainer, StackItem] = {}
    # `validate_matrix_file` replaces a malformed item by None, so that the others keep their index.
    amendments: tuple[AmendmentItem | None, ...] = ()
    cells: Annotated[tuple[CellItem | None, ...], Field(min_length=1)]
    floors: Annotated[dict[Package, Annotated[str, _version_of("the floor")]], Field(min_length=1)]
    size: SizeLimit | None = None
    publish: PublishItem = PublishItem()
    wheel_places: Annotated[tuple[Text, ...], BeforeValidator(as_list), Field(alias="wheel-places")] = ()
    aliases: dict[Name, str] = {}


def validate_matrix_file(source: YamlDocument) -> tuple[MatrixFile | None, list[InputProblem]]:
    """Return the content of matrix.yaml as models, and every violation of the schema.

    Malformed parts are removed and the rest is kept, so that the same run can check it further. The models are `None`
    when too little is left for that.
    """
    data = copy.deepcopy(source.data)
    problems = list(source.problems)
    handled: set[tuple[str | int, ...]] = set()
    while True:
        try:
            return MatrixFile.model_validate(data), problems
        except ValidationError as error:
            errors = error.errors(include_url=False)
            problems += [problem_from_pydantic(source, item) for item in errors if item["loc"] not in handled]
            before = copy.deepcopy(data)
            removed = [_remove(data, item["loc"], unknown=item["type"] == "extra_forbidden") for item in errors]
            handled |= {item["loc"][:1] for item in errors}
            if not all(removed) or data == before:  # without a change, the same errors would come again for ever
                return None, problems


# Replaces a malformed section, so that the others can be checked.
_REPLACEMENTS: Mapping[str, Any] = {
    "schema": "1",
    "locked-at": "2000-01-01",
    "everywhere": [],
    "stacks": {},
    "layers": {},
    "size": None,
    "publish": {},
    "wheel-places": [],
    "amendments": [],
    "aliases": {},
}


def _remove(data: Any, path: tuple[str | int, ...], *, unknown: bool) -> bool:
    """Remove an `unknown` key or a wrong value at `path` from the data, and return whether that was possible."""
    if not path:
        return False
    title = str(path[0])
    if unknown and "exclude" not in path:  # without the unknown axis an exclude would mean something else
        for part in path[:-1]:
            if part == 0 and not isinstance(data, list):  # a single value stands for a list of one
                continue
            if isinstance(data, dict) and part not in data:  # it was removed before
                return True
            data = data[part]
            if data is None:  # the whole item was removed before
                return True
        data.pop(path[-1], None)
    elif len(path) > 1 and isinstance(data[title], list) and title in ("cells", "amendments"):
        data[title][path[1]] = None
    elif len(path) > 1 and isinstance(data[title], dict) and title != "size":  # which has no part that could be missing
        data[title].pop(path[1], None)
    elif title in _REPLACEMENTS:
        data[title] = copy.deepcopy(_REPLACEMENTS[title])
    else:
        return False
    return True


def check_entries(source: YamlDocument, entry: type[_M]) -> list[_M]:
    """Return the entries of a file that is a list of them; raises `InputError` with the place of each defect."""
    try:
        return TypeAdapter(list[entry]).validate_python(source.data)  # type: ignore[valid-type] # known at run time only
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            if item["type"] == "extra_forbidden":
                words = f"unknown key {item['loc'][-1]!r}; an entry has {', '.join(entry.model_fields)}"
                problems.append(source.problem(item["loc"], words, key=True))
            else:
                problems.append(problem_from_pydantic(source, item))
        raise InputError(problems) from None


def problem_from_pydantic(source: YamlDocument, item: Any) -> InputProblem:
    """Return one error of pydantic's `ValidationError.errors()` as a sentence with its place in the file."""
    path: list[str | int] = list(item["loc"])
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden" and path == ["stack"]:
        return source.problem(path, "the key 'stack' is called 'everywhere' now; rename it", key=True)
    if kind == "extra_forbidden":
        return source.problem(path, f"unknown key {path[-1]!r}{_key_hint(path)}", key=True)
    if path and path[-1] == "[key]":
        return source.problem(path[:-1], message.removeprefix("Value error, "), key=True)
    if kind == "missing":
        return source.problem(path[:-1], f"the key {path[-1]!r} is missing" + _parent(path))
    if kind == "value_error":
        return source.problem(path, message.removeprefix("Value error, "))
    wanted = {
        "model_type": "must be a mapping (KEY: VALUE lines)",
        "model_attributes_type": "must be a mapping (KEY: VALUE lines)",
        "dict_type": "must be a mapping (KEY: VALUE lines)",
        "tuple_type": "must be a list",
        "string_type": "must be text",
        "too_short": "must not be empty",
        "string_too_short": "must not be empty",
        "list_type": "must be a list",
        "enum": f"must be {item.get('ctx', {}).get('expected')}",
        "literal_error": f"must be {item.get('ctx', {}).get('expected')}",
    }.get(kind, f"is malformed: {message}")
    while path and tuple(path) not in source.marks:  # an index, but the file has no list there
        path.pop()
    return source.problem(path, f"{_dotted(path) or 'the file'} {wanted}")


def _parent(path: Sequence[str | int]) -> str:
    return f" in {_dotted(path[:-1])}" if len(path) > 1 else ""


def _dotted(path: Sequence[str | int]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _key_hint(path: Sequence[str | int]) -> str:
    section: type[BaseModel] = (
        {
            "gpus": GpuArchitecture,
            "bases": Bootstrap if "bootstrap" in path else Base,
            "amendments": AmendmentItem,
            "cells": ExcludeItem if "exclude" in path else RetiredItem if "retired" in path else CellItem,
            "stacks": StackItem,
            "size": SizeLimit,
            "publish": IdentityItem if "identity" in path else PublishItem,
        }.get(str(path[0]), MatrixFile)
        if len(path) > 1
        else MatrixFile
    )
    keys = [field.alias or name for name, field in section.model_fields.items()]
    near = difflib.get_close_matches(str(path[-1]), keys, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the keys here are {', '.join(keys)}"
