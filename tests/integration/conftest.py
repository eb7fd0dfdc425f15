"""A project to spoil: a copy of this one's files, built on the engine of the machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import registry_server

from knowngood.building import build, pipeline
from knowngood.engines import engine as engines
from knowngood.locks import wheelhouse
from knowngood.locks.tree import CellLock
from knowngood.project import Project

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("docker", "facts", "rules", "smoke_tests", "templates")


@pytest.fixture(scope="session")
def engine():
    return engines.ensure(say=print)


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


@pytest.fixture
def line(project, engine):
    options = pipeline.Options(wheelhouse=wheelhouse.folder(), locked=True)
    return pipeline.Pipeline(project, options, engine)


def layer_file(project: Project, locked: CellLock, group: str) -> Path:
    """The requirements of one layer of a cell."""
    name = next(layer.name for layer in locked.layers if layer.group == group)
    return project.root / "docker/layers" / name / "requirements.txt"


def renew(path: Path) -> None:
    """Make a layer new to BuildKit, without changing what it installs."""
    path.write_text(path.read_text() + f"# {path}\n")


def rebuild(line: pipeline.Pipeline, plan: build.Plan) -> build.Image:
    """Build a plan under a name of its own; the caller removes the image."""
    with build.host_secrets() as secrets:
        spoiled = replace(plan, secrets=secrets, tag="knowngood-test:cells")
        return build.build(spoiled, line.engine, log=line.project.root / "log", say=print)
