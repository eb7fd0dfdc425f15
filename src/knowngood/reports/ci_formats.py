"""The plan in the format of each CI system: GitHub Actions, GitLab, Buildkite, and `docker buildx bake`. Pure.

One public function a system takes the jobs of `ci_jobs.plan_ci_jobs` and returns the document. Bake is different: it
takes the commands of `knowngood build --dry-run` and writes the same builds as targets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from knowngood.core.errors import UsageError
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

BAKE_FOLDER_VARIABLE = "KNOWNGOOD_TMP"
"""The variable of a bake file that holds the folder of the secret `env`; dry runs use the same name."""


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


def bake_file(commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return docker-bake.json from the `docker buildx build` command of each cell, by the cell's id.

    The group `default` has the targets in the order of the commands.
    """
    targets = {dotless_name(cell): bake_target(argv) for cell, argv in commands.items()}
    secrets = [secret for target in targets.values() for secret in target.get("secret", [])]
    needs_folder = any(f"${{{BAKE_FOLDER_VARIABLE}}}" in secret for secret in secrets)
    variables = {"variable": {BAKE_FOLDER_VARIABLE: {"default": "."}}} if needs_folder else {}
    return {**variables, "group": {"default": {"targets": list(targets)}}, "target": targets}


def bake_target(argv: Sequence[str]) -> dict[str, Any]:
    """Return the target that builds what the command builds.

    Raises:
        ValueError: the command has an option that this function does not translate.
    """
    options = _build_command_parser().parse_args(list(argv[argv.index("build") + 1 :]))
    target: dict[str, Any] = {
        "context": options.context,
        "dockerfile": options.file,
        "contexts": _key_values(options.build_context),
        "args": _key_values(options.build_arg),
        "labels": _key_values(options.label),
        "network": options.network,
        "attest": [
            f"type={kind},disabled=true" for kind in ("provenance", "sbom") if getattr(options, kind) == "false"
        ],
        "output": ["type=docker"] if options.load else options.output,
    }
    optional = {
        "secret": [text.replace(f"${BAKE_FOLDER_VARIABLE}", f"${{{BAKE_FOLDER_VARIABLE}}}") for text in options.secret],
        "tags": options.tag,
        "no-cache": options.no_cache,
    }
    return target | {key: value for key, value in optional.items() if value}


def _key_values(items: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (item.partition("=") for item in items)}


class _BuildCommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _build_command_parser() -> argparse.ArgumentParser:
    """Return a parser for the options that `knowngood build` passes to `docker buildx build`."""
    parser = _BuildCommandParser(add_help=False, allow_abbrev=False)
    for flag in ("--file", "--network", "--progress", "--metadata-file", "--provenance", "--sbom"):
        parser.add_argument(flag)
    for flag in ("--build-context", "--secret", "--build-arg", "--label", "--output", "--tag"):
        parser.add_argument(flag, action="append", default=[])
    for flag in ("--no-cache", "--load"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("context")
    return parser


def _stage_and_title(job: CiJob) -> str:
    return job.name if job.stage is CiStage.PROMOTION else f"{job.stage}: {job.title}"


def dotless_name(name: str) -> str:
    """Return the name as Buildkite's keys and bake's targets allow it; names stay distinct, as ids have no `_`."""
    return name.replace(".", "_")
