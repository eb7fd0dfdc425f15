"""The workflows of GitHub Actions, rendered from `templates/ci/`, and the matrices of their jobs.

No workflow lists cells: each run asks `knowngood cells --jobs` for them, wheels before images, shared layers first, and
of a pull request only the cells that its changes concern.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.images.matrix_plan import PlanInput
from knowngood.lock.lock_tree import CellLock

GITHUB_LIMIT = 256
"""The most jobs that the matrices of one workflow run may make together."""

GITHUB_RUNNER = ("ubuntu-24.04",)
"""The labels of the default runner for jobs that need no GPU."""

SHARED_FOLDERS = ("docker/recipe", "smoke_tests/smoke_tests")
"""Folders that are in every image."""


class CiStage(StrEnum):
    """What a job does. A stage begins when the stage before it is done."""

    WHEELS = "wheels"
    IMAGES = "images"


@dataclass(frozen=True, kw_only=True)
class CiJob:
    """One job: it handles some cells, on one kind of runner."""

    stage: CiStage
    name: str
    """Unique in the plan."""
    cells: tuple[str, ...]
    gpu: str | None = None
    """The GPU architecture that the job needs; `None` when it needs no GPU."""
    needs: tuple[str, ...] = ()
    """The names of the jobs that compile its wheels."""
    key: str = ""
    """For a job that compiles wheels: a key for caches, which changes when the wheels change."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the job's command: how to prove the cells."""
        return ("--gpus", "--no-quick") if self.gpu else ()


PackagePin = tuple[str, str]
"""A package and its version."""


def plan_ci_jobs(
    ordered: Sequence[PlanInput], compiled: Mapping[str, Sequence[PackagePin]], *, gpus: Collection[str]
) -> tuple[CiJob, ...]:
    """Return a job for each cell, and before them those that compile wheels.

    Args:
        ordered: the cells in the best order for building.
        compiled: the packages of each cell for which no index has a wheel.
        gpus: the architectures that have runners; cells of other architectures are proven without a GPU.

    Raises:
        UsageError: there are more jobs than a run of a workflow may have.
    """
    wheels = [_wheel_job(group, compiled) for group in _group_by_wheels(ordered, compiled)]
    wheel_jobs = {name: job.name for job in wheels for name in job.cells}
    images = [
        CiJob(
            stage=CiStage.IMAGES,
            name=item.cell,
            cells=(item.cell,),
            gpu=gpu if (gpu := parse_cell(item.cell).gpu) in gpus else None,
            needs=(wheel_jobs[item.cell],) if item.cell in wheel_jobs else (),
        )
        for item in ordered
    ]
    if (number := len(wheels) + len(images)) > GITHUB_LIMIT:
        raise UsageError(f"{number} jobs are needed, and a workflow may have {GITHUB_LIMIT}; select fewer cells")
    return (*wheels, *images)


def github_matrix(jobs: Sequence[CiJob], stage: CiStage, runner: Sequence[str] = GITHUB_RUNNER) -> dict[str, Any]:
    """Return the matrix of one stage for `matrix: ${{ fromJSON(...) }}`, with one item of `include` a job.

    GitHub refuses an empty matrix, so a workflow has to test for that first.
    """
    return {"include": [_github_item(job, runner) for job in jobs if job.stage is stage]}


def render_github_matrix(matrix: dict[str, Any]) -> str:
    """Return the matrix as one line, which a job can write as its output."""
    return json.dumps(matrix, separators=(",", ":"))


def _github_item(job: CiJob, runner: Sequence[str]) -> dict[str, Any]:
    common = {"name": job.name, "title": job.name, "cells": " ".join(job.cells), "options": " ".join(job.options)}
    if job.stage is CiStage.WHEELS:
        return {**common, "key": job.key, "runner": list(runner)}
    labels = ["self-hosted", "gpu", job.gpu] if job.gpu else list(runner)
    return {**common, "gpu": job.gpu or "", "wheels": bool(job.needs), "runner": labels}


def list_wheel_names(cell: str, compiled: Mapping[str, Sequence[PackagePin]]) -> list[str]:
    """Return a name for each wheel that is compiled for the cell; it contains all that the wheel is compiled for."""
    parsed = parse_cell(cell)
    platform = f"{parsed.gpu}-cu{parsed.cuda}-torch{parsed.torch}-py{parsed.python}"
    return [f"wheel-{package}-{version}-{platform}" for package, version in compiled.get(cell, ())]


def _group_by_wheels(
    ordered: Sequence[PlanInput], compiled: Mapping[str, Sequence[PackagePin]]
) -> list[list[PlanInput]]:
    """Group the cells that need compiled wheels, so that no two groups share a wheel."""
    groups: list[tuple[set[str], list[PlanInput]]] = []
    for item in ordered:
        wheels, members = set(list_wheel_names(item.cell, compiled)), [item]
        if not wheels:
            continue
        for group in [group for group in groups if group[0] & wheels]:
            groups.remove(group)
            wheels, members = group[0] | wheels, [*group[1], *members]
        groups.append((wheels, members))
    return [members for _, members in groups]


def _wheel_job(items: Sequence[PlanInput], compiled: Mapping[str, Sequence[PackagePin]]) -> CiJob:
    """Return the job for the wheels of some cells; one that several need is compiled once."""
    names = list(dict.fromkeys(name for item in items for name in list_wheel_names(item.cell, compiled)))
    locked = {one.sha256 for item in items for layer in item.layers for one in layer.distributions if one.made_here}
    key = hashlib.sha256("\n".join([*names, *sorted(locked)]).encode()).hexdigest()[:16]
    return CiJob(stage=CiStage.WHEELS, name=names[0], cells=tuple(item.cell for item in items), key=key)


def parse_runner_labels(text: str) -> tuple[str, ...]:
    """Parse runner labels as a user types them: `self-hosted,build`."""
    labels = _split_list(text)
    if not labels or not all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", label) for label in labels):
        raise UsageError(f"{text!r} does not name runners; write labels with commas between them")
    return labels


def parse_gpu_architectures(text: str) -> tuple[str, ...]:
    """Parse GPU architectures as a user types them: `sm_90,sm_80`. An empty text has none."""
    architectures = _split_list(text)
    for gpu in architectures:
        if not re.fullmatch(r"sm_[1-9][0-9]{1,2}", gpu):
            raise UsageError(f"{gpu!r} is not a GPU architecture; write one as sm_90")
    return architectures


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,\s]+", text)))


def find_changed_cells(locks: Iterable[CellLock], paths: Collection[str], *, uv_changed: bool = False) -> list[str]:
    """Return the ids of the cells whose image or record contains one of the files, which are paths in the project.

    Every cell is changed when a file of all images is, or when another release of uv installs the wheels.
    """
    all_changed = uv_changed or any(path.startswith(tuple(f"{folder}/" for folder in SHARED_FOLDERS)) for path in paths)
    changed_folders = {str(PurePosixPath(*PurePosixPath(path).parts[:3])) for path in paths}
    return [str(lock.cell) for lock in locks if all_changed or changed_folders & set(_image_folders(lock))]


def _image_folders(lock: CellLock) -> list[str]:
    """Return the folders that are in the image of a cell or record it, apart from `SHARED_FOLDERS`."""
    layers = [f"docker/layers/{layer.name}" for layer in lock.layers]
    return [f"docker/cells/{lock.cell}", f"docker/bases/{lock.base}", *layers]


WORKFLOW_NAMES = ("nightly", "pull-request", "refresh", "release")
WORKFLOW_FOLDER = ".github/workflows"

SETUP_COMMANDS = (
    "python3 -m venv .venv",
    ".venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock",
    ".venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .",
)
"""The commands that install this program in a checkout, at the versions of requirements.lock and from the runner's
package index. A runner needs nothing for them but Python 3.11 or newer."""


def render_workflows(templates: Path) -> dict[str, str]:
    """Return the text of each workflow, by its file name in `.github/workflows/`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # The delimiters differ from Jinja's own, because GitHub uses ${{ }} itself.
    environment = Environment(
        loader=FileSystemLoader(templates / "ci"),
        undefined=StrictUndefined,
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # a workflow is not HTML, and it takes no values from outside
    )
    values = {"actions": read_pinned_actions(templates), "setup": SETUP_COMMANDS}
    return {
        f"{name}.yml": f"# Rendered by `knowngood render` from templates/ci/{name}.yml.j2; do not edit.\n"
        + _normalize_blank_lines(environment.get_template(f"{name}.yml.j2").render(values))
        for name in WORKFLOW_NAMES
    }


def read_pinned_actions(templates: Path) -> dict[str, str]:
    """Return what `uses:` has to contain for each action of `actions.yaml`, with its release as a comment.

    Raises:
        UsageError: an action is not pinned by the full hash of a commit.
    """
    import yaml

    path = templates / "ci" / "actions.yaml"
    actions: Mapping[str, Mapping[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, action in actions.items():
        if not re.fullmatch(r"[0-9a-f]{40}", str(action["commit"])):
            raise UsageError(
                f"{path}: {name} is pinned by {action['commit']!r}, which is not the full hash of a commit"
            )
    return {name: f"{action['uses']}@{action['commit']} # {action['tag']}" for name, action in actions.items()}


def _normalize_blank_lines(text: str) -> str:
    """Leave one blank line between jobs and sections, none within a job and none at the end."""
    text = re.sub(r"\n{2,}(?=    )", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
