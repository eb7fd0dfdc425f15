"""The place `--in image` of reproductions: images that are built in the same way as those of cells.

For each side, a scratch project is created with one cell that has the side's pins. The pipeline locks, renders and
builds it, so torch and what belongs to it are layers that other sides and cells share. The program runs in a container
without a network.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import Requirement

from knowngood.core import local_files, yaml_document
from knowngood.core.errors import KnowngoodError
from knowngood.engine import container_engine
from knowngood.images.pipeline import Pipeline, PipelineOptions
from knowngood.project.checkout import MATRIX_FILE, Project, read_matrix_text
from knowngood.smoke import suite_command, suite_run
from knowngood_diagnose.reproductions.reproduction import (
    PROGRAM_SECONDS,
    CannotTryError,
    Observation,
    SideJob,
    file_mode,
    observation_from_report,
    pinned_version,
    program_variables,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from docker.models.containers import Container

    from knowngood.core.notify import Notify
    from knowngood.engine.container_engine import Engine

_FOLDER = "/tmp/reproduce"  # noqa: S108 - a folder in the container, which nobody else uses
_LABEL = "io.knowngood.reproduce"
_GPU = "sm_90"
"""The GPU of the scratch cell. It has no effect: nothing is compiled for it, and the container gets no GPU."""


class ReproductionImages:
    """Images in the engine; sides with equal pins share one."""

    where = "image"

    def __init__(self, project: Project, engine: Engine) -> None:
        self._project = project
        self._engine = engine

    def node(self) -> Mapping[str, Any]:
        """Return the fingerprint of the machine on which the engine runs."""
        return suite_run.engine_fingerprint(self._engine)

    def gpus(self) -> int:
        """Return 0: the containers get no GPU."""
        return 0

    def observe(self, job: SideJob, notify: Notify) -> Observation:
        """Build the image of the side and run the program in a container of it; raises `CannotTryError`."""
        with _scratch(self._project, job) as scratch:
            pipeline = Pipeline(
                scratch, PipelineOptions(wheelhouse=scratch.root / "wheelhouse", prove=False), self._engine
            )
            (cell,) = scratch.matrix.entries
            locked_cell, _ = pipeline.lock(scratch.matrix.entries[cell].cell, notify)
            plan = replace(pipeline.plan(locked_cell, notify), tag=f"knowngood-reproduce:{_image_tag(job)}")
            image = pipeline.image(plan, notify)
        notify("running the program")
        try:
            with container_engine.docker_client(self._engine) as client:
                container = client.containers.create(
                    image.tag,
                    ["timeout", "--kill-after=10", str(PROGRAM_SECONDS), "python", *job.command],
                    environment=program_variables(job, _FOLDER),
                    working_dir=_FOLDER,
                    network_mode="none",
                    mem_limit="12g",
                    pids_limit=1024,
                    init=True,
                    labels={_LABEL: "1"},
                )
                try:
                    return _run_container(container, job, image.digest)
                finally:
                    container.remove(force=True, v=True)
        finally:
            if image.built:
                with container_engine.docker_client(self._engine) as client:
                    client.images.remove(image.tag, force=True)


def _image_tag(job: SideJob) -> str:
    shape = [sorted(job.side.requirements), sorted(job.side.excludes), job.case.definition.python]
    shape += [sorted(job.side.base_without), sorted(job.side.base_with)]
    return f"{job.case.name[:60]}-{hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]}"


@contextmanager
def _scratch(project: Project, job: SideJob) -> Iterator[Project]:
    """Create a project like the checkout with one cell, which has the side's pins; removed on exit."""
    (local_files.cache_folder() / "reproduce").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="project-", dir=local_files.cache_folder() / "reproduce") as name:
        root = Path(name)
        text = read_matrix_text(project.root)
        (root / MATRIX_FILE).write_text(
            render_scratch_matrix(yaml_document.parse_yaml_data(text, MATRIX_FILE), job), encoding="utf-8"
        )
        for folder in ("templates", "smoke_tests", "docker/recipe", "docker/bases"):
            shutil.copytree(project.root / folder, root / folder)
        if job.side.base_without:  # the locks in there are those of the unchanged base
            shutil.rmtree(root / "docker/bases")
        yield Project(root)


def render_scratch_matrix(data: Mapping[str, Any], job: SideJob) -> str:
    """Return a matrix.yaml with one cell, which has the side's pins.

    `data` is the checkout's matrix.yaml. Raises `CannotTryError` when the environment cannot be a cell. Pure.
    """
    pythons = job.case.definition.python
    base = next(
        (name for python in pythons for name, entry in data["bases"].items() if entry["python"] == python), None
    )
    if base is None:
        raise CannotTryError(f"no base of matrix.yaml has Python {' or '.join(pythons)}; --in venv may find one")
    python = {"python_version": str(data["bases"][base]["python"])}
    pins = {}
    for text in job.side.requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(python):
            pins[requirement.name] = pinned_version(requirement)
    if not {"torch", "transformers"} <= pins.keys():
        raise CannotTryError(
            "an image is built as a cell, which has torch and transformers; this side has not both (try --in venv)"
        )
    cell = {
        "gpu": _GPU,
        "torch": pins.pop("torch"),
        "transformers": pins.pop("transformers"),
        "flash-attn": "none",
        "base": base,
        "with": [f"{name}=={version}" for name, version in pins.items()],
    }
    changed = {**data, "cells": [cell], "aliases": {}, "everywhere": []}
    if job.side.base_without:
        changed["bases"] = {base: _change_base(data["bases"][base], job.side.base_without, job.side.base_with)}
    if job.side.excludes:
        reason = "the reproduction leaves them out"
        amendment = {"when": f"torch={cell['torch']}", "exclude": list(job.side.excludes), "because": reason}
        changed["amendments"] = [*data.get("amendments", []), amendment]
    return str(yaml.safe_dump(changed, sort_keys=False))


def _change_base(base: Mapping[str, Any], without: Collection[str], more: Collection[str]) -> dict[str, Any]:
    """Return a base of matrix.yaml without some Debian packages, and with others that nothing else installs then."""
    listed = base.get("bootstrap", {}).get("packages", [])
    if absent := sorted(set(without) - set(listed)):
        raise KnowngoodError(
            f"base-without: the base does not ask for {', '.join(absent)}, but for {', '.join(listed)}"
        )
    kept = [name for name in listed if name not in without]
    return {**base, "bootstrap": {**base["bootstrap"], "packages": [*kept, *more]}}


def _run_container(container: Container, job: SideJob, image: str) -> Observation:
    container.put_archive(str(Path(_FOLDER).parent), _archive(job.files))
    container.start()
    ended = container.wait(timeout=PROGRAM_SECONDS + 30)
    output = container.logs().decode(errors="replace")
    if ended["StatusCode"] in suite_command.TIMED_OUT:
        raise KnowngoodError(f"{job.case.name}, {job.name}: the program did not end within {PROGRAM_SECONDS} s")
    return observation_from_report(
        ended["StatusCode"],
        output,
        json.loads(suite_run.read_container_report(container, _FOLDER) or b"{}"),
        places={_FOLDER: ".", "/opt/venv": "venv", "/usr": "python"},
        image=image,
    )


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of the program's folder, to which any user of the container may write."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        top = Path(_FOLDER).name
        folders = {top, f"{top}/tmp"}  # noqa: S108 - a folder that was created for this run
        folders |= {str(parent) for name in files for parent in Path(top, name).parents if str(parent) != "."}
        for name in sorted(folders):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(content), file_mode(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
