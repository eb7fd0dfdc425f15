"""The definition of a reproduction: which environments to compare, the program of each side, and what it should do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from knowngood.core import local_files, matrix_schema, yaml_document
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError, InputProblem, UnknownError
from knowngood.core.local_files import REPRODUCTIONS_FOLDER
from knowngood.core.package_names import parse_requirement_text
from knowngood_facts.compat.incident import Signature, normalize_log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from knowngood.core.notify import Notify

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
        specifiers = list(parse_requirement_text(value).specifier)
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


class ReproductionOutcome(StrEnum):
    """The outcome of a whole reproduction, or of one of its sides."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    NOT_RUN = "not-run"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one run of the program did; no text in it names a folder of this machine."""

    exit: int
    seconds: float
    python: str
    packages: Mapping[str, str]
    exception: Mapping[str, Any] | None
    """The uncaught exception: `type`, `text` and `where` (the last frames)."""
    output: str
    """Standard output and standard error together."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object in the last line that holds one."""
    image: str | None = None
    """The digest of the image in which it ran."""


@dataclass(frozen=True, kw_only=True)
class SideResult:
    """A side and what it did; `observation` is `None` when it was not run."""

    side: str
    expect: SideExpectation
    observation: Observation | None
    signature: str | None = None
    """The incident's signature that its output contains."""
    reason: str = ""
    """Why it could not be run, or in what it differs from the expectation."""

    @property
    def outcome(self) -> ReproductionOutcome:
        """Whether the side did what was expected of it."""
        if self.observation is None:
            return ReproductionOutcome.NOT_RUN
        return ReproductionOutcome.NOT_REPRODUCED if self.reason else ReproductionOutcome.REPRODUCED


def judge_side(side: str, expect: SideExpectation, run: Observation, signatures: Sequence[Signature]) -> SideResult:
    """Compare what a side did with what it should do."""
    signature = matching_signature(run, signatures)
    reason = ""
    ended = "it ended well" if not run.exit else f"it ended with {_describe_end(run)}"
    match expect:
        case SideExpectation.FAILS | SideExpectation.FAILS_OTHERWISE if not run.exit:
            reason = "it did not fail"
        case SideExpectation.FAILS_OTHERWISE if signature is not None:
            reason = "it failed with the signature, and should fail without it"
        case SideExpectation.FAILS if signature is None:
            reason = f"{ended}, which is not the signature"
        case SideExpectation.WARNS if run.exit:
            reason = ended
        case SideExpectation.WARNS if signature is None:
            reason = "the warning did not come"
        case SideExpectation.TRAINS | SideExpectation.WORKS if run.exit:
            reason = ended
        case SideExpectation.TRAINS | SideExpectation.WORKS if signature is not None:
            reason = "it ended well, but its output has the signature"
        case SideExpectation.TRAINS if not losses_fall(run.result.get("losses")):
            reason = f"its losses do not fall: {run.result.get('losses')}"
        case _:
            pass
    return SideResult(side=side, expect=expect, observation=run, signature=signature, reason=reason)


def matching_signature(run: Observation, signatures: Sequence[Signature]) -> str | None:
    """Return the text of the first signature in the uncaught exception, else in the output; `None` without a match."""
    exception = run.exception or {}
    texts = (f"{exception.get('type')}: {exception.get('text')}", run.output)
    for text in texts:
        plain_text = normalize_log(text.encode())
        for signature in signatures:
            if signature.search(plain_text) and _has_companion(signature, run.output):
                return signature.text
    return None


def _has_companion(signature: Signature, output: str) -> bool:
    return not signature.beside or any(item.search(normalize_log(output.encode())) for item in signature.beside)


def losses_fall(losses: Any) -> bool:
    """Return whether these are at least two finite numbers of which the last is lower than the first."""
    return (
        isinstance(losses, list)
        and len(losses) > 1
        and all(isinstance(loss, int | float) and math.isfinite(loss) for loss in losses)
        and losses[-1] < losses[0]
    )


def overall_outcome(sides: Iterable[SideResult]) -> ReproductionOutcome:
    """Judge all sides: reproduced when the failing side and another did as expected, and no side did otherwise."""
    outcomes = {result.side: result.outcome for result in sides}
    if ReproductionOutcome.NOT_REPRODUCED in outcomes.values():
        return ReproductionOutcome.NOT_REPRODUCED
    both = outcomes.get(FAILING) is ReproductionOutcome.REPRODUCED and any(
        outcome is ReproductionOutcome.REPRODUCED for side, outcome in outcomes.items() if side != FAILING
    )
    return ReproductionOutcome.REPRODUCED if both else ReproductionOutcome.NOT_RUN


def _describe_end(run: Observation) -> str:
    if run.exception:
        return f"{run.exception['type']}: {run.exception['text'].splitlines()[0] if run.exception['text'] else ''}"
    return f"exit {run.exit}"


def observation_from_report(
    code: int,
    output: str,
    report: Mapping[str, Any],
    *,
    places: Mapping[str, str],
    image: str | None = None,
) -> Observation:
    """Build the observation of one run.

    `report` is what `observe.py` wrote. `places` maps folders of this machine to the names that replace them in texts.
    """

    def without_folders(text: str) -> str:
        for place, name in sorted(places.items(), key=lambda item: -len(item[0])):
            text = text.replace(place, name)
        return text

    exception = report.get("exception")
    return Observation(
        exit=code,
        seconds=report.get("seconds", 0.0),
        python=report.get("python", ""),
        packages={canonicalize_name(name): version for name, version in report.get("packages", {}).items()},
        exception=exception and {**exception, "text": without_folders(exception["text"])},
        output=without_folders(output),
        result=_last_object(output),
        image=image,
    )


def _last_object(output: str) -> dict[str, Any]:
    """Return the JSON object in the last line that holds one; an empty one without such a line."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
    return {}


PROGRAM_SECONDS = 600
"""A program that runs longer is stopped."""

ReleaseUnpacker = Callable[[str, Sequence[str], str], Mapping[str, bytes]]
"""From a pin, globs and a Python release to the matching files of that published release: path -> content."""


class CannotTryError(UnknownError):
    """A side cannot be run here (exit 3); the text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class SideJob:
    """One side of a reproduction, ready to run."""

    case: ReproductionCase
    name: str
    files: Mapping[str, bytes]
    """The files beside the program: its own, stand-ins, and unpacked releases under `sources/`. Path -> content."""

    @property
    def side(self) -> ReproductionSide:
        """The side, with what all sides share."""
        return self.case.definition.side(self.name)

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of the interpreter, which starts in the folder of the files."""
        return ("observe.py", "report.json", "program.py", *self.side.arguments)


class ReproductionPlace(Protocol):
    """A kind of environment in which programs run."""

    @property
    def where(self) -> str:
        """The name of the place, as evidence has it: `venv`, `image` or `here`."""
        ...

    def node(self) -> Mapping[str, Any]:
        """Return the fingerprint of the machine."""
        ...

    def gpus(self) -> int:
        """Return how many GPUs a program would see there."""
        ...

    def observe(self, job: SideJob, notify: Notify) -> Observation:
        """Create the environment and run the program; raises `CannotTryError` when that is not possible here."""
        ...


def program_variables(job: SideJob, folder: str) -> dict[str, str]:
    """Return the environment variables of a program whose files are in `folder`."""
    return {
        "HOME": folder,
        "TMPDIR": f"{folder}/tmp",  # noqa: S108 - a folder that was created for this run
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{folder}:{folder}/sources",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        **job.side.environment,
    }


def file_mode(content: bytes) -> int:
    """Return the permissions of a file beside the program: an ELF file may be executed."""
    return 0o755 if content.startswith(b"\x7fELF") else 0o644


STAND_INS = "stand-ins"
OBSERVER = "observe.py"
DEFINITION = "reproduction.yaml"


def reproductions_folder() -> Path:
    """Return the folder of the reproductions."""
    return local_files.data_folder() / REPRODUCTIONS_FOLDER


def list_reproductions(root: Path | None = None) -> list[str]:
    """Return the names of all reproductions, sorted."""
    return sorted(path.parent.name for path in (root or reproductions_folder()).glob(f"*/{DEFINITION}"))


def find_reproduction(incident: str, root: Path | None = None) -> str | None:
    """Return the reproduction with an incident's name, else one with a side of that incident, else `None`."""
    root = root or reproductions_folder()
    known = list_reproductions(root)
    if incident in known:
        return incident
    return next((name for name in known if incident in _incidents_of_sides(name, root)), None)


def _incidents_of_sides(name: str, root: Path) -> set[str]:
    return {side.incident for side in _read_definition(name, root).sides.values()}


def _read_definition(name: str, root: Path) -> Reproduction:
    path = root / name / DEFINITION
    label = f"reproductions/{name}/{DEFINITION}"
    return parse_reproduction(read_data_text(path, label), label)


def load_reproduction(incident: str, root: Path | None = None) -> ReproductionCase:
    """Return an incident's reproduction; raises `UnknownError` without one, `InputError` with its defects."""
    root = root or reproductions_folder()
    name = find_reproduction(incident, root)
    if name is None:
        raise UnknownError(
            f"there is no reproduction of {incident!r}; `knowngood reproduce` lists those that there are"
        )
    path = root / name / DEFINITION
    label = f"reproductions/{name}/{DEFINITION}"
    definition = _read_definition(name, root)
    own = [item for item in (root / name).iterdir() if item.is_file() and item != path]
    stand_ins = [root / STAND_INS / f"{module}.py" for module in definition.all_stand_ins()]
    missing = [item.name for item in stand_ins if not item.is_file()]
    if missing:
        text = f"there is no {', '.join(missing)} in reproductions/{STAND_INS}/"
        raise InputError([InputProblem(file=label, line=1, column=1, text=text)])
    files = {item.name: item.read_bytes() for item in sorted([*own, *stand_ins, root / OBSERVER])}
    digest = hashlib.sha256(path.read_bytes())
    for file, content in files.items():
        digest.update(f"{file}\0{len(content)}\0".encode() + content)
    return ReproductionCase(name=name, definition=definition, files=files, digest=digest.hexdigest())
