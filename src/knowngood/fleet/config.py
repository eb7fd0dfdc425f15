"""fleet.yaml: the engines of a site that run jobs, by the names that `--on` takes. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from knowngood import document, schema
from knowngood.document import Document
from knowngood.errors import InputError, Problem, UsageError

FILE = "fleet.yaml"
LOCAL = "local"
"""The executor that needs no file."""
CELL = "{cell}"
_DAY = 86_400


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _absolute(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{value!r} is not an absolute path")
    return value.rstrip("/") or "/"


def _of_cell(value: str) -> str:
    if CELL not in value:
        raise ValueError(f"{value!r} names one folder for all cells; {CELL} in it stands for a cell's id")
    return _absolute(value)


def _word(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:,&|()\[\]*=-]*", value):
        raise ValueError(f"{value!r} has a character that no option of sbatch takes here")
    return value


def _option(value: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=\S+)?", value):
        raise ValueError(f"{value!r} is not an option of sbatch such as --reservation=night")
    return value


def _repository(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._:-]*(/[a-z0-9][a-z0-9._-]*)+", value):
        raise ValueError(f"{value!r} is not a repository such as registry.example/team/knowngood")
    return value


Folder = Annotated[str, AfterValidator(_absolute)]
Folders = Annotated[str, AfterValidator(_of_cell)]
Word = Annotated[str, AfterValidator(_word)]
Repository = Annotated[str, AfterValidator(_repository)]
Texts = Annotated[tuple[str, ...], BeforeValidator(schema.listed)]
Seconds = Annotated[int, Field(ge=1, le=30 * _DAY)]


class Common(_Section):
    """What every engine takes."""

    images: Repository | None = None
    """Where the images of cells are published."""
    environments: Folders | None = None
    """Folders with locked environments, instead of images."""
    wait: Seconds = _DAY
    """How long the program waits for all jobs. They go on without it, and the same command takes them up again."""
    cpus: Annotated[int, Field(ge=1, le=256)] = 2
    """Processors of a job."""


class Local(Common):
    """The machine that the program runs on."""

    engine: Literal["local"]


class Slurm(Common):
    """A Slurm cluster whose commands work here."""

    engine: Literal["slurm"]
    folder: Folder
    """Which this machine and every node see under this path."""
    run: Literal["apptainer", "pyxis", "environment"]
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    gres: Mapping[schema.GpuName, Word] = Field(default_factory=dict)
    """What the site calls the GPUs of an architecture: `gpu:h100`. Else `gpu`, and a constraint."""
    constraint: Mapping[schema.GpuName, Word] = Field(default_factory=dict)
    """The feature of the nodes with an architecture. Else, without `gres`, the architecture's own name."""
    options: Annotated[tuple[Annotated[str, AfterValidator(_option)], ...], BeforeValidator(schema.listed)] = ()
    """Further options of sbatch; they come last and win."""
    prepare: Texts = ()
    """Lines of shell before the suite, on the node: `module load apptainer`."""
    at_once: Annotated[Annotated[int, Field(ge=1, le=100_000)] | None, Field(alias="at-once")] = None
    """Most jobs of an array that run at one time."""

    @model_validator(mode="after")
    def _one_kind(self) -> Slurm:
        wanted = "environments" if self.run == "environment" else "images"
        other = "images" if self.run == "environment" else "environments"
        if getattr(self, wanted) is None:
            raise ValueError(f"`run: {self.run}` needs `{wanted}`")
        if getattr(self, other) is not None:
            raise ValueError(f"`run: {self.run}` does not look at `{other}`; leave it out")
        return self


class Kubernetes(Common):
    """A Kubernetes cluster; what the fields are is told in `kubernetes_manifest.Settings`."""

    engine: Literal["kubernetes"]
    images: Repository
    context: str | None = None
    namespace: Word = "default"
    pull_secrets: Annotated[Texts, Field(alias="pull-secrets")] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()
    labels: Mapping[str, str] = Field(default_factory=dict)
    select: Mapping[str, str] = Field(default_factory=dict)
    runtime_class: Annotated[str | None, Field(alias="runtime-class")] = None
    priority_class: Annotated[str | None, Field(alias="priority-class")] = None


Executor = Local | Slurm | Kubernetes
_ENGINES: Mapping[str, type[Local | Slurm | Kubernetes]] = {"local": Local, "slurm": Slurm, "kubernetes": Kubernetes}


def parse(text: str, file: str) -> dict[str, Executor]:
    """The executors of a file by name; raises `InputError` with every defect, each with its line and column."""
    source = document.read(text, file)
    problems, found = list(source.problems), dict[str, Executor]()
    data = source.data
    if not isinstance(data, dict) or not isinstance(data.get("executors"), dict):
        raise InputError([*problems, source.problem((), "the file must be a mapping with `schema` and `executors`")])
    if data.get("schema") != "1":
        problems.append(source.problem(("schema",), "`schema` must be 1"))
    problems += [
        source.problem((key,), f"unknown key {key!r}{_nearest(key, ['schema', 'executors'])}", key=True)
        for key in data.keys() - {"schema", "executors"}
    ]
    for name, section in data["executors"].items():
        one = _executor(source, str(name), section)
        if isinstance(one, BaseModel):
            found[str(name)] = one
        else:
            problems += one
    if problems:
        raise InputError(problems)
    return found


def choose(executors: Mapping[str, Executor], name: str, file: str) -> Executor:
    """The executor of a name; `UsageError` when there is none."""
    if name in executors:
        return executors[name]
    if name == LOCAL:
        return Local(engine="local")
    known = ", ".join([*executors, *([] if LOCAL in executors else [LOCAL])])
    raise UsageError(f"--on {name}: {file} has no such executor; there are {known}")


def _executor(source: Document, name: str, section: Any) -> Executor | list[Problem]:
    path = ("executors", name)
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name):
        return [source.problem(path, f"{name!r} is not written like a name such as hopper or lab.a100", key=True)]
    engines = ", ".join(_ENGINES)
    if not isinstance(section, dict):
        return [source.problem(path, f"an executor is a mapping; its `engine` is one of {engines}")]
    engine = section.get("engine")
    if not isinstance(engine, str) or engine not in _ENGINES:
        return [source.problem((*path, "engine"), f"`engine` must be one of {engines}")]
    try:
        return _ENGINES[engine].model_validate(section)
    except ValidationError as error:
        return [_problem(source, path, item, _ENGINES[engine]) for item in error.errors(include_url=False)]


def _problem(source: Document, path: tuple[str, ...], item: Any, model: type[BaseModel]) -> Problem:
    """One of pydantic's complaints about an executor, at its place."""
    place = (*path, *item["loc"])
    if item["type"] == "extra_forbidden":
        keys = [field.alias or name for name, field in model.model_fields.items()]
        return source.problem(place, f"unknown key {place[-1]!r}{_nearest(str(place[-1]), keys)}", key=True)
    return schema.problem(source, {**item, "loc": place})


def _nearest(key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key, keys, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the keys here are {', '.join(keys)}"
