"""The plan as a child pipeline for GitLab. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knowngood.ci import setup
from knowngood.ci.jobs import REPOSITORY, WHEELHOUSE, Job, Stage

LIMIT = 500
"""Jobs of the active pipelines of a project, where GitLab counts them (its free tier)."""

NEEDS = 50
"""Jobs that one may need by name; one that needs more waits for the whole stage before it."""

RUNNER = ("build",)
"""Tags of the runners for jobs that need no GPU, unless others are named."""


def document(jobs: Sequence[Job], runner: Sequence[str] = RUNNER) -> dict[str, Any]:
    """The pipeline; one with a single job that says so when there is nothing to do, since GitLab takes no empty one."""
    if not jobs:
        return {"nothing-to-do": {"script": ["echo 'no cell is concerned'"], "variables": {"GIT_STRATEGY": "none"}}}
    named = {job.name: _name(job) for job in jobs}
    return {
        "stages": [str(stage) for stage in Stage if any(job.stage is stage for job in jobs)],
        "default": {"before_script": list(setup.COMMANDS), "interruptible": True},
        **{named[job.name]: _job(job, named, runner) for job in jobs},
    }


def _name(job: Job) -> str:
    return job.name if job.stage is Stage.PROMOTION else f"{job.stage}: {job.title}"


def _job(job: Job, named: Mapping[str, str], runner: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "stage": str(job.stage),
        "tags": ["gpu", job.gpu] if job.gpu else list(runner),
        "script": list(job.commands),
    }
    if job.stage is Stage.PROMOTION:
        return {**made, "interruptible": False, "rules": [{"if": f"${REPOSITORY}"}]}
    if job.stage is Stage.WHEELS:
        paths, when = [f"{WHEELHOUSE}/"], "on_success"
    else:
        paths, when = [f"evidence/{name}/" for name in job.cells], "always"
        if len(job.needs) <= NEEDS:
            made["needs"] = [named[name] for name in job.needs]
    return {**made, "artifacts": {"when": when, "paths": paths, "expire_in": "1 week"}}
