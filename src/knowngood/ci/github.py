"""The plan as a matrix for GitHub Actions, `matrix: ${{ fromJSON(...) }}`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from knowngood.ci.jobs import Job, Stage
from knowngood.errors import UsageError

LIMIT = 256
"""Jobs that the matrices of one workflow run may make together."""

OUTPUT = 2**20
"""Bytes that the outputs of one job may have, counted as UTF-16."""

RUNNER = ("ubuntu-24.04",)
"""Where a job runs that needs no GPU, unless another runner is named."""


def matrix(jobs: Sequence[Job], stage: Stage, runner: Sequence[str] = RUNNER) -> dict[str, Any]:
    """The matrix of one stage; each job an item of `include`. GitHub refuses one that is empty: ask before."""
    return {"include": [_item(job, runner) for job in jobs if job.stage is stage]}


def text(document: dict[str, Any]) -> str:
    """The matrix in one line, as the output of a job; `UsageError` when GitHub would refuse that for its size."""
    line = json.dumps(document, separators=(",", ":"))
    size = len(line.encode("utf-16-le"))
    if size > OUTPUT:
        raise UsageError(
            f"the matrix has {size} bytes and an output of a GitHub job {OUTPUT} at most; select fewer cells"
        )
    return line


def _item(job: Job, runner: Sequence[str]) -> dict[str, Any]:
    common = {
        "name": job.name,
        "title": job.title,
        "cells": " ".join(job.cells),
        "options": " ".join(job.options),
    }
    if job.stage is Stage.WHEELS:
        return {**common, "key": job.key, "runner": list(runner)}
    labels = ["self-hosted", "gpu", job.gpu] if job.gpu else list(runner)
    return {**common, "gpu": job.gpu or "", "wheels": bool(job.needs), "runner": labels}
