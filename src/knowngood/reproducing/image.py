"""A place for reproductions: images, made as those of cells are.

A scratch project holds one cell with the side's pins; locking, rendering and building it is the pipeline's, so torch
and what belongs to it are the very layers that other sides and cells have. The program runs in a container without a
network.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from knowngood import document, paths, smoke
from knowngood.building.pipeline import Options, Pipeline
from knowngood.engines import sdk
from knowngood.errors import KnowngoodError
from knowngood.project import MATRIX, Project
from knowngood.reproducing.observation import Observation
from knowngood.reproducing.reproduce import CannotTryError, Job, Say
from knowngood.reproducing.run import SECONDS, mode, observed, variables

if TYPE_CHECKING:
    from docker.models.containers import Container

    from knowngood.engines.engine import Engine

_FOLDER = "/tmp/reproduce"  # noqa: S108  # in the container, which is ours alone
_LABEL = "io.knowngood.reproduce"
_GPU = "sm_90"
"""The architecture on the cell's axis; nothing here is compiled for one, and no GPU is given."""


class Images:
    """Images in the engine; those of the same pins are one."""

    where = "image"

    def __init__(self, project: Project, engine: Engine, *, keep: bool) -> None:
        self._project = project
        self._engine = engine
        self._keep = keep

    def node(self) -> Mapping[str, Any]:
        """The fingerprint of the machine that the engine runs on."""
        return smoke.node(self._engine)

    def gpus(self) -> int:
        """Containers get none here."""
        return 0

    def observe(self, job: Job, say: Say) -> Observation:
        """The program's run in a container of the side's image."""
        with _scratch(self._project, job) as scratch:
            pipeline = Pipeline(scratch, Options(wheelhouse=scratch.root / "wheelhouse", prove=False), self._engine)
            (cell,) = scratch.matrix.entries
            locked, _, _ = pipeline.lock(scratch.matrix.entries[cell].cell, say)
            plan = replace(pipeline.plan(locked, say), tag=f"knowngood-reproduce:{_key(job)}")
            image = pipeline.image(plan, locked, say)
        say("running the program")
        try:
            with sdk.client(self._engine) as client:
                container = client.containers.create(
                    image.tag,
                    ["timeout", "--kill-after=10", str(SECONDS), "python", *job.command],
                    environment=variables(job, _FOLDER),
                    working_dir=_FOLDER,
                    network_mode="none",
                    mem_limit="12g",
                    pids_limit=1024,
                    init=True,
                    labels={_LABEL: "1"},
                )
                try:
                    return _run(container, job, image.digest)
                finally:
                    container.remove(force=True, v=True)
        finally:
            if self._keep:
                say(f"kept {image.tag}")
            elif image.built:
                with sdk.client(self._engine) as client:
                    client.images.remove(image.tag, force=True)


def _key(job: Job) -> str:
    shape = [sorted(job.requirements), sorted(job.excludes), job.case.definition.python]
    shape += [sorted(job.base_without), sorted(job.base_with)]
    return f"{job.case.name[:60]}-{hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]}"


@contextmanager
def _scratch(project: Project, job: Job) -> Iterator[Project]:
    """A project like ours with one cell: the side's."""
    (paths.cache_dir() / "reproduce").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="project-", dir=paths.cache_dir() / "reproduce") as name:
        root = Path(name)
        text = (project.root / MATRIX).read_text(encoding="utf-8")
        (root / MATRIX).write_text(matrix(document.plain(text, MATRIX), job), encoding="utf-8")
        for folder in ("templates", "smoke_tests", "docker/recipe", "docker/bases"):
            shutil.copytree(project.root / folder, root / folder)
        if job.base_without:  # another base than the one that the locks are of
            shutil.rmtree(root / "docker/bases")
        yield Project(root)


def matrix(data: Mapping[str, Any], job: Job) -> str:
    """matrix.yaml with one cell, the side's; `CannotTryError` when its environment is not one of a cell. Pure."""
    import yaml

    pythons = job.case.definition.python
    base = next(
        (name for python in pythons for name, found in data["bases"].items() if found["python"] == python), None
    )
    if base is None:
        raise CannotTryError(f"no base of matrix.yaml has Python {' or '.join(pythons)}; --in venv may find one")
    python = {"python_version": str(data["bases"][base]["python"])}
    pins = {}
    for text in job.requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(python):
            pins[requirement.name] = next(iter(requirement.specifier)).version
    if not {"torch", "transformers"} <= pins.keys():
        raise CannotTryError(
            "an image is that of a cell, with torch and transformers, and this has not both; --in venv"
        )
    cell = {
        "gpu": _GPU,
        "torch": pins.pop("torch"),
        "transformers": pins.pop("transformers"),
        "flash-attn": "none",
        "base": base,
        "with": [f"{name}=={version}" for name, version in pins.items()],
    }
    made = {**data, "cells": [cell], "aliases": {}, "stack": []}
    if job.base_without:
        made["bases"] = {base: _changed(data["bases"][base], job.base_without, job.base_with)}
    if job.excludes:
        excluded = {"when": f"torch={cell['torch']}", "exclude": list(job.excludes)}
        made["amendments"] = [*data.get("amendments", []), {**excluded, "because": "the reproduction leaves them out"}]
    return str(yaml.safe_dump(made, sort_keys=False))


def _changed(base: Mapping[str, Any], without: Collection[str], more: Collection[str]) -> dict[str, Any]:
    """A base of matrix.yaml, made without some Debian packages, and with what then nothing else brings."""
    listed = base.get("bootstrap", {}).get("packages", [])
    if absent := sorted(set(without) - set(listed)):
        raise KnowngoodError(
            f"base-without: the base does not ask for {', '.join(absent)}, but for {', '.join(listed)}"
        )
    kept = [name for name in listed if name not in without]
    return {**base, "bootstrap": {**base["bootstrap"], "packages": [*kept, *more]}}


def _run(container: Container, job: Job, image: str) -> Observation:
    container.put_archive(str(Path(_FOLDER).parent), _archive(job.files))
    container.start()
    ended = container.wait(timeout=SECONDS + 30)
    output = container.logs().decode(errors="replace")
    if ended["StatusCode"] in smoke.TIMED_OUT:
        raise KnowngoodError(f"{job.case.name}, {job.side}: the program did not end within {SECONDS} s")
    return observed(
        ended["StatusCode"],
        output,
        _report(container),
        places={_FOLDER: ".", "/opt/venv": "venv", "/usr": "python"},
        image=image,
    )


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of the program's folder, which any user of the container may write to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        top = Path(_FOLDER).name
        folders = {top, f"{top}/tmp"}  # noqa: S108  # below a folder of ours
        folders |= {str(parent) for name in files for parent in Path(top, name).parents if str(parent) != "."}
        for name in sorted(folders):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size, member.mode = len(content), mode(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _report(container: Container) -> dict[str, Any]:
    from docker.errors import NotFound

    try:
        chunks, _ = container.get_archive(f"{_FOLDER}/report.json")
    except NotFound:
        return {}
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.extractfile("report.json")
        assert member is not None  # noqa: S101
        found: dict[str, Any] = json.load(member)
        return found
