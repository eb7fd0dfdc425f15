"""The definition of a reproduction: which environments to compare, and what each side should do. Pure.

`reproductions/<incident>/reproduction.yaml`, beside `program.py`:

    python: "3.11"                             # or a list; the first release that is available is used
    requirements: [torch==2.11.0]              # for every side; releases after `locked-at` of matrix.yaml do not count
    excludes: [deepspeed]                      # distributions that are not installed, even if others require them
    sources:                                   # files of published releases, unpacked beside the program, not installed
      flash-attn==2.6.3: ["flash_attn/*.py"]
    stand-ins:                                 # reproductions/stand-ins/<name>.py, and what each replaces
      flash_attn_2_cuda: flash-attn's compiled kernels
    sides:
      failing:
        requirements: [transformers==4.44.2]
      without a compiler:
        base-without: [gcc, g++]               # Debian packages that the base is made without; images only
        base-with: libstdc++6                  # packages to add because nothing else installs them then
      transformers below 4.43:
        expect: trains
        said: transformers below 4.43          # the cure in the words of the person who suggested it
        requirements: [transformers==4.42.4]

A side is expected to do one of these:

- `fails`: fail with the incident's signature, or with that of another `incident`. This is the default of the side
  named `failing`; on another side it says that a suggested cure does not cure.
- `fails-otherwise`: fail without the signature.
- `warns`: print the signature and end well.
- `trains`: end well with losses that fall; the default of all other sides.
- `works`: end well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from knowngood.core import matrix_schema, yaml_document
from knowngood.core.errors import InputError, InputProblem

FAILING = "failing"


class SideExpectation(StrEnum):
    """What a side should do; the module's description explains the values."""

    FAILS = "fails"
    FAILS_OTHERWISE = "fails-otherwise"
    WARNS = "warns"
    TRAINS = "trains"
    WORKS = "works"


def _exact_pin(value: str) -> str:
    try:
        specifiers = list(Requirement(value).specifier)
    except InvalidRequirement as error:
        raise ValueError(f"{value!r} is not a requirement (PEP 508): {str(error).splitlines()[0]}") from None
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        raise ValueError(f"{value!r} does not name one version; write NAME==VERSION")
    return value


def _python_release(value: str) -> str:
    if not re.fullmatch(r"3\.\d{1,2}", value):
        raise ValueError(f"{value!r} is not a Python release; one is written like '3.11'")
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(matrix_schema.as_list)]
Pin = Annotated[str, AfterValidator(_exact_pin)]
Pins = Annotated[tuple[Pin, ...], BeforeValidator(matrix_schema.as_list)]
Packages = Annotated[tuple[matrix_schema.Package, ...], BeforeValidator(matrix_schema.as_list)]
StandIns = Annotated[dict[str, str], Field(alias="stand-ins")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReproductionSide(_Section):
    """One environment and one run of the program in it."""

    expect: SideExpectation | None = None
    suggested_cure: Annotated[str, Field(alias="said")] = ""
    incident: str = ""
    requirements: Pins = ()
    excludes: Packages = ()
    sources: dict[Pin, Texts] = {}
    stand_ins: StandIns = {}
    base_without: Annotated[Texts, Field(alias="base-without")] = ()
    base_with: Annotated[Texts, Field(alias="base-with")] = ()
    arguments: Texts = ()
    environment: dict[str, str] = {}
    gpus: Annotated[int, Field(ge=0)] = 0


class Reproduction(_Section):
    """A whole `reproduction.yaml`; `side` joins what all sides share to what one side has."""

    python: Annotated[
        tuple[Annotated[str, AfterValidator(_python_release)], ...], BeforeValidator(matrix_schema.as_list)
    ]
    requirements: Pins = ()
    excludes: Packages = ()
    sources: dict[Pin, Texts] = {}
    stand_ins: StandIns = {}
    sides: Annotated[dict[str, ReproductionSide], Field(min_length=2)]

    def side(self, name: str) -> ReproductionSide:
        """Return a side with what all sides share; its own release of a package replaces the shared one's sources."""
        own = self.sides[name]
        replaced = {Requirement(pin).name for pin in own.sources}
        shared = {pin: globs for pin, globs in self.sources.items() if Requirement(pin).name not in replaced}
        joined = {
            "requirements": tuple(dict.fromkeys([*self.requirements, *own.requirements])),
            "excludes": tuple(dict.fromkeys([*self.excludes, *own.excludes])),
            "sources": {**shared, **own.sources},
            "stand_ins": {**self.stand_ins, **own.stand_ins},
        }
        return own.model_copy(update=joined)

    def expected(self, side: str) -> SideExpectation:
        """Return what a side should do: the failing side fails and others train, unless they say something else."""
        return self.sides[side].expect or (SideExpectation.FAILS if side == FAILING else SideExpectation.TRAINS)

    def all_stand_ins(self) -> dict[str, str]:
        """Return the stand-in modules of all sides, each with what it replaces."""
        stand_ins = dict(self.stand_ins)
        for side in self.sides.values():
            stand_ins |= side.stand_ins
        return stand_ins

    def choose_sides(self, wanted: str | None) -> list[str]:
        """Return the sides for one side's name, for `fixed` (all that should work), or for `None` (all)."""
        if wanted in self.sides:
            return [wanted]
        bad = (SideExpectation.FAILS, SideExpectation.FAILS_OTHERWISE, SideExpectation.WARNS)
        return [side for side in self.sides if wanted is None or (wanted == "fixed" and self.expected(side) not in bad)]


def pinned_version(requirement: Requirement) -> str:
    """Return the one version that a pin of a reproduction names."""
    return next(iter(requirement.specifier)).version


def parse_reproduction(text: str, file: str) -> Reproduction:
    """Return the reproduction in a file's text; raises `InputError` with the line and column of every defect."""
    source = yaml_document.parse_yaml(text, file)
    try:
        definition = Reproduction.model_validate(source.data)
    except ValidationError as error:
        raise InputError([_problem(source, item) for item in error.errors(include_url=False)]) from None
    if FAILING not in definition.sides:
        raise InputError([source.problem(("sides",), f"there is no side {FAILING!r}")])
    return definition


def _problem(source: yaml_document.YamlDocument, item: Any) -> InputProblem:
    path = list(item["loc"])
    if item["type"] != "extra_forbidden":
        return matrix_schema.problem_from_pydantic(source, item)
    section = ReproductionSide if len(path) == 3 else Reproduction
    keys = ", ".join(field.alias or name for name, field in section.model_fields.items())
    return source.problem(path, f"unknown key {path[-1]!r}; the keys here are {keys}", key=True)


@dataclass(frozen=True, kw_only=True)
class ReproductionCase:
    """A reproduction with its files."""

    name: str
    """The name of its folder, which is an incident's id."""
    definition: Reproduction
    files: Mapping[str, bytes]
    """The files in the folder where the program runs: file name -> content."""
    digest: str
    """SHA-256 over the definition and the files, as hexadecimal digits."""

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of one file, as hexadecimal digits."""
        return hashlib.sha256(self.files[name]).hexdigest()
