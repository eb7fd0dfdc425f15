"""The schema of fleet.yaml, which describes the executors of a site by the names that `--on` takes. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from knowngood.core import matrix_schema, yaml_document
from knowngood.core.errors import InputError, InputProblem, UsageError
from knowngood.core.yaml_document import YamlDocument

FLEET_FILE = "fleet.yaml"
LOCAL = "local"
"""The name of the executor that needs no file."""
CELL_PLACEHOLDER = "{cell}"
_DAY = 86_400


def _matching(pattern: str, complaint: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} {complaint}")
        return value

    return AfterValidator(check)


def _absolute(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{value!r} is not an absolute path")
    return value.rstrip("/") or "/"


def _folder_per_cell(value: str) -> str:
    if CELL_PLACEHOLDER not in value:
        raise ValueError(
            f"{value!r} is one folder for all cells; it must contain {CELL_PLACEHOLDER}, which stands for a cell's id"
        )
    return _absolute(value)


Folder = Annotated[str, AfterValidator(_absolute)]
FolderPerCell = Annotated[str, AfterValidator(_folder_per_cell)]
Word = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9_.:,&|()\[\]*=-]*", "has a character that is not allowed here")]
SbatchOption = Annotated[
    str, _matching(r"--[a-z][a-z-]*(=\S+)?", "is not an option of sbatch such as --reservation=night")
]
ImageRepository = Annotated[
    str,
    _matching(
        r"[a-z0-9][a-z0-9._:-]*(/[a-z0-9][a-z0-9._-]*)+", "is not a repository such as registry.example/team/knowngood"
    ),
]
Texts = Annotated[tuple[str, ...], BeforeValidator(matrix_schema.as_list)]
Seconds = Annotated[int, Field(ge=1, le=30 * _DAY)]


class CommonSection(BaseModel):
    """The keys that every engine has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: ImageRepository | None = None
    """The repository with the published images of cells."""
    environments: FolderPerCell | None = None
    """The folder with a cell's locked environment, instead of images."""
    wait: Seconds = _DAY
    """How long the program waits for all jobs. They continue without it, and the same command returns to them."""
    cpus: Annotated[int, Field(ge=1, le=256)] = 2
    """Processors per job."""


class LocalSection(CommonSection):
    """The machine that the program runs on."""

    engine: Literal["local"]


class SlurmSection(CommonSection):
    """A Slurm cluster whose commands work on this machine."""

    engine: Literal["slurm"]
    folder: Folder
    """A folder that this machine and every node see under this path."""
    run: Literal["apptainer", "pyxis", "environment"]
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    gres: Mapping[matrix_schema.GpuName, Word] = Field(default_factory=dict)
    """The site's names for the GPUs of an architecture: `gpu:h100`. Without one: `gpu`, and a constraint."""
    constraint: Mapping[matrix_schema.GpuName, Word] = Field(default_factory=dict)
    """The feature of the nodes with an architecture. Without one, and without `gres`: the architecture's own name."""
    options: Annotated[tuple[SbatchOption, ...], BeforeValidator(matrix_schema.as_list)] = ()
    """More options of sbatch; they come last and override the others."""
    prepare: Texts = ()
    """Shell lines before the suite, on the node: `module load apptainer`."""
    at_once: Annotated[Annotated[int, Field(ge=1, le=100_000)] | None, Field(alias="at-once")] = None
    """How many jobs of an array run at one time at most."""

    @model_validator(mode="after")
    def _one_kind(self) -> SlurmSection:
        wanted = "environments" if self.run == "environment" else "images"
        other = "images" if self.run == "environment" else "environments"
        if getattr(self, wanted) is None:
            raise ValueError(f"`run: {self.run}` needs `{wanted}`")
        if getattr(self, other) is not None:
            raise ValueError(f"`run: {self.run}` does not use `{other}`; leave it out")
        return self


class KubernetesSection(CommonSection):
    """A Kubernetes cluster that a kubeconfig reaches."""

    engine: Literal["kubernetes"]
    images: ImageRepository
    context: str | None = None
    """Of the kubeconfig; `None`: the current context, or the service account when the program runs in a pod."""
    namespace: Word = "default"
    pull_secrets: Annotated[Texts, Field(alias="pull-secrets")] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()
    """In addition to that of `nvidia.com/gpu`."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Of the Jobs and their pods, for the site's quotas and queues."""
    select: Mapping[str, str] = Field(default_factory=dict)
    """Labels that a node must have in addition to those that the job's needs require."""
    runtime_class: Annotated[str | None, Field(alias="runtime-class")] = None
    priority_class: Annotated[str | None, Field(alias="priority-class")] = None


ExecutorSection = LocalSection | SlurmSection | KubernetesSection
_ENGINES: Mapping[str, type[LocalSection | SlurmSection | KubernetesSection]] = {
    "local": LocalSection,
    "slurm": SlurmSection,
    "kubernetes": KubernetesSection,
}


def parse_fleet(text: str, file: str) -> dict[str, ExecutorSection]:
    """Return the sections of a fleet.yaml by name.

    Raises `InputError` with every defect of the text, each with its line and column.
    """
    source = yaml_document.parse_yaml_with_problems(text, file)
    problems, sections = list(source.problems), dict[str, ExecutorSection]()
    data = source.data
    if not isinstance(data, dict) or not isinstance(data.get("executors"), dict):
        raise InputError([*problems, source.problem((), "the file must be a mapping with `schema` and `executors`")])
    if data.get("schema") != "1":
        problems.append(source.problem(("schema",), "`schema` must be 1"))
    problems += [
        source.problem((key,), f"unknown key {key!r}{_nearest(key, ['schema', 'executors'])}", key=True)
        for key in data.keys() - {"schema", "executors"}
    ]
    for name, content in data["executors"].items():
        section = _section(source, str(name), content)
        if isinstance(section, BaseModel):
            sections[str(name)] = section
        else:
            problems += section
    if problems:
        raise InputError(problems)
    return sections


def choose_section(sections: Mapping[str, ExecutorSection], name: str, file: str) -> ExecutorSection:
    """Return the section with a name, which `local` need not have. Raises `UsageError` when there is none."""
    if name in sections:
        return sections[name]
    if name == LOCAL:
        return LocalSection(engine="local")
    known = ", ".join([*sections, *([] if LOCAL in sections else [LOCAL])])
    raise UsageError(f"--on {name}: {file} has no such executor; there are {known}")


def _section(source: YamlDocument, name: str, section: Any) -> ExecutorSection | list[InputProblem]:
    path = ("executors", name)
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name):
        return [source.problem(path, f"{name!r} is not a name such as hopper or lab.a100", key=True)]
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


def _problem(source: YamlDocument, path: tuple[str, ...], item: Any, model: type[BaseModel]) -> InputProblem:
    """Return one of pydantic's errors in a section, with its place in the file."""
    place = (*path, *item["loc"])
    if item["type"] == "extra_forbidden":
        keys = [field.alias or name for name, field in model.model_fields.items()]
        return source.problem(place, f"unknown key {place[-1]!r}{_nearest(str(place[-1]), keys)}", key=True)
    return matrix_schema.problem_from_pydantic(source, {**item, "loc": place})


def _nearest(key: str, keys: list[str]) -> str:
    near = difflib.get_close_matches(key, keys, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; the keys here are {', '.join(keys)}"
