"""What makes a known failure happen again, as data, and what each side should do. Pure.

`reproductions/<incident>/reproduction.yaml`, beside `program.py`:

    python: "3.11"                             # or a list, best first
    requirements: [torch==2.11.0]              # of every side; releases after `locked-at` of matrix.yaml do not exist
    excludes: [deepspeed]                      # distributions that must not come in, whoever requires them
    sources:                                   # files of published releases, unpacked beside the program, not installed
      flash-attn==2.6.3: ["flash_attn/*.py"]
    stand-ins:                                 # reproductions/stand-ins/<name>.py, and what it stands in for
      flash_attn_2_cuda: flash-attn's compiled kernels
    sides:
      failing:
        requirements: [transformers==4.44.2]
      without a compiler:
        base-without: [gcc, g++]               # Debian packages that the base is made without; images only
        base-with: libstdc++6                  # and those that then nothing else brings
      transformers below 4.43:
        expect: trains
        said: transformers below 4.43          # the cure as it was said, when somebody said it
        requirements: [transformers==4.42.4]

What a side is expected to do: `fails` with the incident's signature (the side called `failing`; elsewhere a said cure
that is none), or with that of another `incident`; `fails-otherwise`, without it; `warns` (the signature, and yet it
ends well); `trains` (its losses fall); or `works`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from knowngood import document, schema
from knowngood.errors import InputError, Problem

FAILING = "failing"


class Expect(StrEnum):
    """What a side is expected to do."""

    FAILS = "fails"
    FAILS_OTHERWISE = "fails-otherwise"
    WARNS = "warns"
    TRAINS = "trains"
    WORKS = "works"


def _exact(value: str) -> str:
    try:
        specifiers = list(Requirement(value).specifier)
    except InvalidRequirement as error:
        raise ValueError(f"{value!r} is not a requirement (PEP 508): {str(error).splitlines()[0]}") from None
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        raise ValueError(f"{value!r} does not name one version; write NAME==VERSION")
    return value


def _python(value: str) -> str:
    if not re.fullmatch(r"3\.\d{1,2}", value):
        raise ValueError(f"{value!r} is not a Python release; one is written like '3.11'")
    return value


Globs = Annotated[tuple[str, ...], BeforeValidator(schema.listed)]
Pin = Annotated[str, AfterValidator(_exact)]
Pins = Annotated[tuple[Pin, ...], BeforeValidator(schema.listed)]
Sources = dict[Pin, Globs]
Packages = Annotated[tuple[schema.Package, ...], BeforeValidator(schema.listed)]
StandIns = Annotated[dict[str, str], Field(alias="stand-ins")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Section):
    """One environment and one run in it."""

    expect: Expect | None = None
    said: str = ""
    incident: str = ""
    requirements: Pins = ()
    excludes: Packages = ()
    sources: Sources = {}
    stand_ins: StandIns = {}
    base_without: Annotated[tuple[str, ...], BeforeValidator(schema.listed), Field(alias="base-without")] = ()
    base_with: Annotated[tuple[str, ...], BeforeValidator(schema.listed), Field(alias="base-with")] = ()
    arguments: Annotated[tuple[str, ...], BeforeValidator(schema.listed)] = ()
    environment: dict[str, str] = {}
    gpus: Annotated[int, Field(ge=0)] = 0


class Reproduction(_Section):
    """A whole `reproduction.yaml`; the properties of a side are its own and everybody's."""

    python: Annotated[tuple[Annotated[str, AfterValidator(_python)], ...], BeforeValidator(schema.listed)]
    requirements: Pins = ()
    excludes: Packages = ()
    sources: Sources = {}
    stand_ins: StandIns = {}
    sides: Annotated[dict[str, Side], Field(min_length=2)]

    def expected(self, side: str) -> Expect:
        """What a side should do: the first fails, the others train, unless they say something else."""
        return self.sides[side].expect or (Expect.FAILS if side == FAILING else Expect.TRAINS)

    def pins(self, side: str) -> tuple[str, ...]:
        """All requirements of a side."""
        return tuple(dict.fromkeys([*self.requirements, *self.sides[side].requirements]))

    def excluded(self, side: str) -> tuple[str, ...]:
        """The distributions that must not come into a side's environment."""
        return tuple(dict.fromkeys([*self.excludes, *self.sides[side].excludes]))

    def unpacked(self, side: str) -> dict[str, tuple[str, ...]]:
        """Releases to the globs over their files that a side wants unpacked."""
        own = self.sides[side].sources
        others = {Requirement(pin).name for pin in own}
        return {**{pin: globs for pin, globs in self.sources.items() if Requirement(pin).name not in others}, **own}

    def standing_in(self, side: str | None = None) -> dict[str, str]:
        """Modules to what they stand in for, on a side or on any."""
        sides = self.sides.values() if side is None else [self.sides[side]]
        return {**self.stand_ins, **{name: told for item in sides for name, told in item.stand_ins.items()}}

    def chosen(self, wanted: str | None) -> list[str]:
        """The sides that `failing`, `fixed` or a side's own name stand for; all of them for `None`."""
        if wanted in self.sides:
            return [wanted]
        bad = (Expect.FAILS, Expect.FAILS_OTHERWISE, Expect.WARNS)
        return [side for side in self.sides if wanted is None or (wanted == "fixed" and self.expected(side) not in bad)]


def parse(text: str, file: str) -> Reproduction:
    """The reproduction in a file's text; raises `InputError` with the line and column of every defect."""
    source = document.parse(text, file)
    try:
        found = Reproduction.model_validate(source.data)
    except ValidationError as error:
        raise InputError([_problem(source, item) for item in error.errors(include_url=False)]) from None
    if FAILING not in found.sides:
        raise InputError([source.problem(("sides",), f"there is no side {FAILING!r}")])
    return found


def _problem(source: document.Document, item: Any) -> Problem:
    path = list(item["loc"])
    if item["type"] != "extra_forbidden":
        return schema.problem(source, item)
    section = Side if len(path) == 3 else Reproduction
    keys = ", ".join(field.alias or name for name, field in section.model_fields.items())
    return source.problem(path, f"unknown key {path[-1]!r}; the keys here are {keys}", key=True)
