"""The jobs of a plan as matrices of GitHub Actions: wheels before images, shared layers first. Pure.

Also which cells a change of files concerns, so that a pull request builds only those.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.images.matrix_plan import PlanInput
from knowngood.lock.lock_tree import CellLock

GITHUB_LIMIT = 256
"""The most jobs that the matrices of one workflow run may make together."""

GITHUB_OUTPUT_LIMIT = 2**20
"""The most bytes that the outputs of one job may have, counted as UTF-16."""

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
    def title(self) -> str:
        """The name for people, with the number of further cells."""
        more = len(self.cells) - 1
        return f"{self.name} and {more} more" if more and self.stage is CiStage.IMAGES else self.name

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the job's command: how to prove the cells."""
        return ("--gpus", "--no-quick") if self.gpu else ()


PackagePin = tuple[str, str]
"""A package and its version."""


def plan_ci_jobs(
    ordered: Sequence[PlanInput], compiled: Mapping[str, Sequence[PackagePin]], *, gpus: Collection[str], limit: int
) -> tuple[CiJob, ...]:
    """Return at most `limit` jobs for the cells; where there are more cells than jobs, a job takes several.

    Args:
        ordered: the cells in the best order for building.
        compiled: the packages of each cell for which no index has a wheel.
        gpus: the architectures that have runners; cells of other architectures are proven without a GPU.
        limit: the most jobs that the CI system takes. Cells that share a job have as much in common as possible.

    Raises:
        UsageError: even the fewest jobs are more than the limit.
    """
    planned = [parse_cell(item.cell) for item in ordered]
    groups = _group_by_wheels(ordered, compiled)
    size = max(1, math.ceil(len(planned) / limit))
    while True:
        wheels = [_wheel_job(groups[start : start + size], compiled) for start in range(0, len(groups), size)]
        images = _image_jobs(planned, {name for job in wheels for name in job.cells}, gpus, size)
        if len(wheels) + len(images) <= limit:
            break
        if size >= len(planned):
            least = len(wheels) + len(images)
            raise UsageError(f"at least {least} jobs are needed, and the limit is {limit}; select fewer cells")
        size += 1
    wheel_jobs = {name: job.name for job in wheels for name in job.cells}
    images = [
        replace(job, needs=tuple(sorted({wheel_jobs[name] for name in job.cells if name in wheel_jobs})))
        for job in images
    ]
    return (*wheels, *images)


def github_matrix(jobs: Sequence[CiJob], stage: CiStage, runner: Sequence[str] = GITHUB_RUNNER) -> dict[str, Any]:
    """Return the matrix of one stage for `matrix: ${{ fromJSON(...) }}`, with one item of `include` a job.

    GitHub refuses an empty matrix, so a workflow has to test for that first.
    """
    return {"include": [_github_item(job, runner) for job in jobs if job.stage is stage]}


def render_github_matrix(matrix: dict[str, Any]) -> str:
    """Return the matrix as one line, which a job can write as its output.

    Raises:
        UsageError: the line is longer than GitHub allows.
    """
    line = json.dumps(matrix, separators=(",", ":"))
    size = len(line.encode("utf-16-le"))
    if size > GITHUB_OUTPUT_LIMIT:
        raise UsageError(
            f"the matrix has {size} bytes, but the output of a GitHub job may have at most {GITHUB_OUTPUT_LIMIT}; "
            "select fewer cells"
        )
    return line


def _github_item(job: CiJob, runner: Sequence[str]) -> dict[str, Any]:
    common = {"name": job.name, "title": job.title, "cells": " ".join(job.cells), "options": " ".join(job.options)}
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


def _wheel_job(groups: Sequence[Sequence[PlanInput]], compiled: Mapping[str, Sequence[PackagePin]]) -> CiJob:
    """Return the job for the wheels of some groups; a wheel that several cells need is compiled once."""
    items = [item for group in groups for item in group]
    names = list(dict.fromkeys(name for item in items for name in list_wheel_names(item.cell, compiled)))
    locked = {one.sha256 for item in items for layer in item.layers for one in layer.distributions if one.made_here}
    key = hashlib.sha256("\n".join([*names, *sorted(locked)]).encode()).hexdigest()[:16]
    return CiJob(stage=CiStage.WHEELS, name=names[0], cells=tuple(item.cell for item in items), key=key)


def _image_jobs(planned: Sequence[Cell], compiled: Collection[str], gpus: Collection[str], size: int) -> list[CiJob]:
    """Return the jobs that build and prove images, of at most `size` cells each, in the order of the plan."""
    position = {str(cell): number for number, cell in enumerate(planned)}
    by_runner: dict[str | None, list[Cell]] = {}
    for cell in planned:
        by_runner.setdefault(cell.gpu if cell.gpu in gpus else None, []).append(cell)
    jobs = []
    for gpu, cells in by_runner.items():
        similar = cells if size == 1 else sorted(cells, key=lambda cell: _similarity_key(cell, compiled))
        for start in range(0, len(similar), size):
            names = sorted((str(cell) for cell in similar[start : start + size]), key=position.__getitem__)
            jobs.append(CiJob(stage=CiStage.IMAGES, name=names[0], cells=tuple(names), gpu=gpu))
    return sorted(jobs, key=lambda job: position[job.name])


def _similarity_key(cell: Cell, compiled: Collection[str]) -> tuple[object, ...]:
    """Return a sort key by which neighbouring cells share the most bytes."""
    return (cell.torch, cell.cuda, cell.python, str(cell) in compiled, cell.gpu, cell.transformers, str(cell))


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
