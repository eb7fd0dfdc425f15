"""Fixtures: a copy of this project that tests may change, and the engine of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import publishing
import pytest
import registry_server

from knowngood.engine import container_engine as engines
from knowngood.images import build_command, build_inputs, image_build, pipeline
from knowngood.lock import wheelhouse
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project
from knowngood.registry.publication import ImageRelease

ROOT = Path(__file__).resolve().parents[4]
PARTS = ("docker", "packages/knowngood-facts/facts", "packages/knowngood-facts/rules", "smoke_tests", "templates")
OWN = os.environ.get("PYTEST_XDIST_WORKER", "alone")
"""What tells the images of this process from those of another one that tests beside it, in the same engine."""


@pytest.fixture(scope="session")
def engine():
    return engines.ensure_engine(notify=print)


@pytest.fixture(scope="session")
def registry_program(tmp_path_factory):
    return registry_server.unpack(tmp_path_factory.mktemp("docker-registry"))


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "matrix.yaml", root)
    return Project(root)


@pytest.fixture(scope="session")
def scratch(engine, tmp_path_factory):
    """An image of two layers, one of 24 MB that nothing compresses, as a release with all its documents."""
    context = tmp_path_factory.mktemp("scratch")
    (context / "large").write_bytes(os.urandom(24_000_000))
    (context / "small").write_bytes(os.urandom(1000))
    labels = {"io.knowngood.cell": "tiny", "io.knowngood.lock": "sha256:1"}
    words = " ".join(f'{key}="{value}"' for key, value in labels.items())
    (context / "Dockerfile").write_text(f"FROM scratch\nCOPY small /\nCOPY large /\nLABEL {words}\n")
    plan = build_command.BuildPlan(
        tag=f"knowngood-test:publish-{OWN}",
        dockerfile=context / "Dockerfile",
        context=context,
        contexts={},
        inputs=context.name,
    )
    image = image_build.build_image(plan, engine, log=context / "log", notify=print)
    yield ImageRelease(
        cell="tiny",
        image=image.tag,
        digest=image.digest,
        tag="tiny-1",
        tier="built",
        labels=labels,
        attachments=publishing.documents(image.digest, "sha256:1"),
    )
    with contextlib.closing(engine.client()) as client:
        client.images.remove(image.tag, force=True)


@pytest.fixture
def line(project, engine):
    options = pipeline.PipelineOptions(wheelhouse=wheelhouse.wheelhouse_folder(), locked=True)
    return pipeline.Pipeline(project, options, engine)


def layer_file(project: Project, locked: CellLock, group: str) -> Path:
    """Return the requirements file of one layer of a cell."""
    name = next(layer.name for layer in locked.layers if layer.group == group)
    return project.root / "docker/layers" / name / "requirements.txt"


def renew(path: Path) -> None:
    """Change a layer for BuildKit, but not what it installs."""
    path.write_text(path.read_text() + f"# {path}\n")


def rebuild(line: pipeline.Pipeline, plan: build_command.BuildPlan) -> build_command.Image:
    """Build a plan with a tag for tests; the caller removes the image."""
    with build_inputs.host_secrets() as secrets:
        spoiled = replace(plan, secrets=secrets, tag=f"knowngood-test:cells-{OWN}")
        return image_build.build_image(spoiled, line.engine, log=line.project.root / "log", notify=print)
