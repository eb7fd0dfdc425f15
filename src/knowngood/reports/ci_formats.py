"""The plan in the format of each CI system: GitHub Actions, GitLab, Buildkite. Pure.

One public function a system takes the jobs of `ci_jobs.plan_ci_jobs` and returns the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from knowngood.core.errors import UsageError
from knowngood.images.bake_file import dotless_name
from knowngood.reports.ci_jobs import CI_WHEELHOUSE, REPOSITORY_VARIABLE, CiJob, CiStage
from knowngood.reports.ci_workflows import SETUP_COMMANDS

GITHUB_LIMIT = 256
"""The most jobs that the matrices of one workflow run may make together."""

GITHUB_OUTPUT_LIMIT = 2**20
"""The most bytes that the outputs of one job may have, counted as UTF-16."""

GITLAB_LIMIT = 500
"""The most jobs in a project's active pipelines, where GitLab limits them (its free tier)."""

GITLAB_NEEDS_LIMIT = 50
"""The most jobs that a job may name under `needs`; one that needs more waits for the whole stage before it."""

BUILDKITE_LIMIT = 500
"""The most jobs in one upload."""

GITHUB_RUNNER = ("ubuntu-24.04",)
GITLAB_RUNNER = BUILDKITE_RUNNER = ("build",)
"""The default runner of jobs that need no GPU: labels for GitHub, tags for GitLab, the queue for Buildkite."""


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


def gitlab_pipeline(jobs: Sequence[CiJob], runner: Sequence[str] = GITLAB_RUNNER) -> dict[str, Any]:
    """Return a child pipeline; without jobs it has a single job that prints so, as GitLab takes no empty pipeline."""
    if not jobs:
        return {"nothing-to-do": {"script": ["echo 'no cell is concerned'"], "variables": {"GIT_STRATEGY": "none"}}}
    names = {job.name: _stage_and_title(job) for job in jobs}
    return {
        "stages": [str(stage) for stage in CiStage if any(job.stage is stage for job in jobs)],
        "default": {"before_script": list(SETUP_COMMANDS), "interruptible": True},
        **{names[job.name]: _gitlab_job(job, names, runner) for job in jobs},
    }


def _gitlab_job(job: CiJob, names: Mapping[str, str], runner: Sequence[str]) -> dict[str, Any]:
    item: dict[str, Any] = {
        "stage": str(job.stage),
        "tags": ["gpu", job.gpu] if job.gpu else list(runner),
        "script": list(job.commands),
    }
    if job.stage is CiStage.PROMOTION:
        return {**item, "interruptible": False, "rules": [{"if": f"${REPOSITORY_VARIABLE}"}]}
    if job.stage is CiStage.WHEELS:
        paths, when = [f"{CI_WHEELHOUSE}/"], "on_success"
    else:
        paths, when = [f"evidence/{name}/" for name in job.cells], "always"
        if len(job.needs) <= GITLAB_NEEDS_LIMIT:
            item["needs"] = [names[name] for name in job.needs]
    return {**item, "artifacts": {"when": when, "paths": paths, "expire_in": "1 week"}}


def buildkite_pipeline(jobs: Sequence[CiJob], runner: Sequence[str] = BUILDKITE_RUNNER) -> dict[str, Any]:
    """Return the steps for `buildkite-agent pipeline upload`; without jobs a single step that prints so."""
    if not jobs:
        return {"steps": [{"label": "nothing to do", "command": "echo 'no cell is concerned'"}]}
    return {"steps": [_buildkite_step(job, jobs, runner) for job in jobs]}


def _buildkite_step(job: CiJob, jobs: Sequence[CiJob], runner: Sequence[str]) -> dict[str, Any]:
    needs = [dotless_name(name) for name in job.needs]
    downloads = [f'buildkite-agent artifact download "{CI_WHEELHOUSE}/*" . --step "{key}"' for key in needs]
    # `$$` is a dollar for the shell of the job; the upload itself would replace a single one.
    commands = [command.replace("$", "$$") for command in (*SETUP_COMMANDS, *downloads, *job.commands)]
    step: dict[str, Any] = {
        "key": dotless_name(job.name),
        "label": _stage_and_title(job),
        "command": commands,
        "agents": {"queue": "gpu", "gpu": job.gpu} if job.gpu else {"queue": runner[0]},
    }
    if job.stage is CiStage.PROMOTION:
        images = [dotless_name(other.name) for other in jobs if other.stage is CiStage.IMAGES]
        return {**step, "if": f'build.env("{REPOSITORY_VARIABLE}") != null', "depends_on": images}
    paths = [f"{CI_WHEELHOUSE}/*"] if job.stage is CiStage.WHEELS else [f"evidence/{name}/*.json" for name in job.cells]
    return {**step, "artifact_paths": paths, **({"depends_on": needs} if needs else {})}


def _stage_and_title(job: CiJob) -> str:
    return job.name if job.stage is CiStage.PROMOTION else f"{job.stage}: {job.title}"
