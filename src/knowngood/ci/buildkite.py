"""The plan as steps for `buildkite-agent pipeline upload`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knowngood.ci import setup
from knowngood.ci.jobs import REPOSITORY, WHEELHOUSE, Job, Stage

LIMIT = 500
"""Jobs of one upload."""

RUNNER = ("build",)
"""The queue for jobs that need no GPU, unless another is named."""


def document(jobs: Sequence[Job], runner: Sequence[str] = RUNNER) -> dict[str, Any]:
    """The pipeline; a single step that says so when there is nothing to do."""
    if not jobs:
        return {"steps": [{"label": "nothing to do", "command": "echo 'no cell is concerned'"}]}
    return {"steps": [_step(job, jobs, runner) for job in jobs]}


def _key(name: str) -> str:
    """A step's key has no dots; an id has no underscores, so two keys are the same for the same name only."""
    return name.replace(".", "_")


def _step(job: Job, jobs: Sequence[Job], runner: Sequence[str]) -> dict[str, Any]:
    fetched = [f'buildkite-agent artifact download "{WHEELHOUSE}/*" . --step "{_key(name)}"' for name in job.needs]
    commands = [*setup.COMMANDS, *fetched, *job.commands]
    step: dict[str, Any] = {
        "key": _key(job.name),
        "label": job.title if job.stage is Stage.PROMOTION else f"{job.stage}: {job.title}",
        "command": [_literal(command) for command in commands],
        "agents": {"queue": "gpu", "gpu": job.gpu} if job.gpu else {"queue": runner[0]},
    }
    if job.stage is Stage.PROMOTION:
        before = [_key(other.name) for other in jobs if other.stage is Stage.IMAGES]
        return {**step, "if": f'build.env("{REPOSITORY}") != null', "depends_on": before}
    paths = [f"{WHEELHOUSE}/*"] if job.stage is Stage.WHEELS else [f"evidence/{name}/*.json" for name in job.cells]
    return {**step, "artifact_paths": paths, **({"depends_on": list(map(_key, job.needs))} if job.needs else {})}


def _literal(command: str) -> str:
    """A dollar that is meant for the shell of the job, and not for the upload."""
    return command.replace("$", "$$")
