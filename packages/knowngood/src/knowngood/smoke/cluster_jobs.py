"""Runs of the suite on the nodes of a cluster: a folder for a job of Slurm or Kubernetes, and the evidence it leaves.

The folder, on storage that the nodes share, has the suites and for each cell a script that runs inside the cell's
image; it needs nothing of this program. The scheduler's own commands submit, watch and cancel the job. Each task
leaves an outcome or the reason of its failure, which `collect_outcomes` turns into evidence.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypedDict

from knowngood.core.cell import Cell
from knowngood.core.data_files import load_json
from knowngood.core.errors import InputError, KnowngoodError, MissingError, UsageError
from knowngood.core.local_files import write_atomically
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.project.checkout import Project
from knowngood.smoke import suite_files, suite_run
from knowngood.smoke.predictions import load_predictions, predictions_for_cell
from knowngood.smoke.suite_command import SuiteOptions, suite_arguments
from knowngood.smoke.suite_files import find_cell_suite

_START_SECONDS = 600
"""Added to the suite's time limit: the image is pulled and a container starts."""
_CPUS = 8


class Scheduler(StrEnum):
    """What runs the jobs of a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


_SCRIPTS = {Scheduler.SLURM: ("slurm.sh.j2", "job.sh"), Scheduler.KUBERNETES: ("kubernetes.yaml.j2", "job.yaml")}
"""The template of a scheduler's job, and the file that it becomes."""


@dataclass(frozen=True, kw_only=True)
class ClusterTask:
    """One run of the suite, in the image of one cell."""

    cell: str
    image: str
    """The published image: `HOST/PATH@sha256:...`."""
    suite: str
    """The hash of the suite's files, which the report of the run must name too."""
    arguments: tuple[str, ...]
    seconds: int
    """The time limit of the suite."""
    predictions: Mapping[str, Any]
    files: Mapping[str, bytes]
    """The suite's files, by their path `smoke_tests/NAME`."""

    def document(self) -> dict[str, Any]:
        """Return what `collect_outcomes` must know of the task, as JSON values."""
        names = ("cell", "image", "suite", "seconds")
        return {name: getattr(self, name) for name in names} | {"arguments": list(self.arguments)}


class _StoredTask(TypedDict):
    cell: str
    image: str
    suite: str
    seconds: int
    arguments: list[str]


class _StoredOutcome(TypedDict):
    when: str
    node: dict[str, Any]
    report: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CollectedTask:
    """A task with the evidence that it left, or why there is none."""

    cell: str
    evidence: Evidence | None = None
    problem: str = ""
    pending: bool = False
    """Whether it has left nothing yet: it waits or runs."""


def plan_cluster_task(project: Project, cell: Cell, image: str, options: SuiteOptions) -> ClusterTask:
    """Return the run of a cell's suite in a published image; raises `MissingError` where the project has no suite."""
    suite = find_cell_suite(project, cell)
    return ClusterTask(
        cell=str(cell),
        image=image,
        suite=suite_files.hash_suite(suite),
        arguments=tuple(suite_arguments(options, cell_gpu=cell.gpu)),
        seconds=options.seconds,
        predictions=predictions_for_cell(load_predictions(project.root), cell, gpu=options.gpus),
        files=suite_files.read_suite_files(suite),
    )


def write_job_folder(
    folder: Path, tasks: Sequence[ClusterTask], scheduler: Scheduler, options: SuiteOptions, templates: Path
) -> Path:
    """Write the folder of a job, and return the file that the scheduler's own command takes.

    Raises:
        UsageError: the folder has a job already, or cells of several GPUs are to run on GPUs.
    """
    if (folder / "tasks").exists():
        raise UsageError(f"{folder} has the tasks of a job already; name a new folder, or collect and remove this one")
    gpus = sorted({task.cell.partition("-")[0].replace("sm", "sm_") for task in tasks}) if options.gpus else []
    if len(gpus) > 1:
        raise UsageError(f"one job asks for one kind of GPU, and these cells are for {', '.join(gpus)}; select one")
    values = {
        "folder": str(folder),
        "name": hashlib.sha256("".join(task.cell for task in tasks).encode()).hexdigest()[:8],
        "cpus": _CPUS,
        "memory": options.memory.upper(),
        "minutes": math.ceil((options.seconds + _START_SECONDS) / 60),
        "gpu": gpus[0] if gpus else None,
        "tasks": tasks,
    }
    for number, task in enumerate(tasks):
        for path, data in task.files.items():
            write_atomically(folder / "suites" / task.suite / path, data)
        place = folder / "tasks" / str(number)
        write_atomically(place / "task.json", json.dumps(task.document(), indent=1) + "\n")
        write_atomically(place / "image", f"{task.image}\n")
        write_atomically(place / "predictions.json", json.dumps(task.predictions))
        write_atomically(place / "run.sh", _render(templates, "run.sh.j2", {"task": task}))
    template, name = _SCRIPTS[scheduler]
    write_atomically(folder / name, _render(templates, template, values))
    return folder / name


def _render(templates: Path, name: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(templates / "jobs")
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701 - shell and YAML
    environment.filters["quote"] = shlex.quote
    return environment.get_template(name).render(**values)


def collect_outcomes(folder: Path) -> list[CollectedTask]:
    """Return what the tasks of a job have left, in their order; raises `MissingError` for a folder without tasks."""
    places = sorted(folder.glob("tasks/*/task.json"), key=lambda path: (len(path.parent.name), path.parent.name))
    if not places:
        raise MissingError(f"{folder} has no tasks of a job; `knowngood smoke job` writes such a folder")
    return [_collect_task(path.parent) for path in places]


def _collect_task(place: Path) -> CollectedTask:
    task = load_json(place / "task.json", _StoredTask, remedy="write the folder again with `knowngood smoke job`")
    cell = task["cell"]
    try:
        outcome = load_json(place / "outcome.json", _StoredOutcome, remedy="remove it, and submit the task again")
        return CollectedTask(cell=cell, evidence=_evidence_from_outcome(task, outcome))
    except FileNotFoundError:
        failure = place / "failure"
        problem = failure.read_text(errors="replace").strip() if failure.exists() else ""
        return CollectedTask(cell=cell, problem=problem or "it has left nothing yet", pending=not problem)
    except (InputError, KnowngoodError) as error:
        return CollectedTask(cell=cell, problem=str(error))


def _evidence_from_outcome(task: _StoredTask, outcome: _StoredOutcome) -> Evidence:
    report, node = outcome["report"], outcome["node"]
    gpu = (report.get("environment") or {}).get("sm") is not None
    if report.get("suite_hash") != task["suite"]:
        raise KnowngoodError(
            f"the report is of the suite {str(report.get('suite_hash'))[:12]}, and the task is of {task['suite'][:12]}"
        )
    if not isinstance(report.get("verdict"), dict) or not isinstance(report.get("checks"), list):
        raise KnowngoodError("the report has no verdict or no checks; is its file cut off?")
    facts = {name: value for name, value in node.items() if name != "name"}
    return Evidence(
        cell=task["cell"],
        where=RunPlace.CONTAINER_GPU if gpu else RunPlace.CONTAINER_CPU,
        image=task["image"].rpartition("@")[2],
        when=outcome["when"],
        node=suite_run.machine_fingerprint(str(node.get("name")), facts),
        command=("python", "-m", "pytest", suite_files.SUITE_FOLDER, *task["arguments"]),
        report=report,
    )


Standing = Literal["good", "red", "failed", "pending"]


def judge_collected(tasks: Iterable[CollectedTask]) -> dict[str, tuple[Standing, str]]:
    """Return cell -> how its task ended, with the suite's verdict or the reason why there is none."""
    standings: dict[str, tuple[Standing, str]] = {}
    for task in tasks:
        if task.evidence is None:
            standings[task.cell] = ("pending" if task.pending else "failed", task.problem)
        else:
            standing: Standing = "good" if task.evidence.ok else "red"
            standings[task.cell] = (standing, str(task.evidence.report["verdict"].get("text", "")))
    return standings
