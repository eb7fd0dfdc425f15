"""Fixtures: a copy of this project that tests may change, and the engine of the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import publishing
import pytest
import registry_server
import skopeo_client

from knowngood.engine import container_engine as engines
from knowngood.images import build_command, build_inputs, image_build, pipeline
from knowngood.lock import wheelhouse
from knowngood.lock.lock_tree import CellLock
from knowngood.project import release_signers
from knowngood.project.checkout import Project
from knowngood.project.release_signers import SigningKey
from knowngood.registry.image_reference import Repository
from knowngood.registry.publication import ImageRelease
from knowngood.registry.registry_client import Registry

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


@pytest.fixture(scope="module")
def server(registry_program, tmp_path_factory):
    server = registry_server.Server(registry_program, tmp_path_factory.mktemp("registry"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def skopeo(tmp_path_factory):
    return skopeo_client.unpack(tmp_path_factory.mktemp("skopeo"))


@pytest.fixture(scope="session")
def podman(tmp_path_factory):
    return skopeo_client.unpack(tmp_path_factory.mktemp("podman"), "podman")


def make_key(folder, name="release"):
    release_signers.make_key_pair(folder / f"{name}.key", folder / f"{name}.pub", None)
    return release_signers.load_signing_key(folder / f"{name}.key")


@dataclass(frozen=True, kw_only=True)
class World:
    """A repository, the cell of an alias that has no record, and a key that matrix.yaml names."""

    registry: Registry
    folder: Path
    alias: str
    locked: CellLock
    key: SigningKey

    @property
    def reference(self) -> str:
        return f"{self.registry.repository}:{self.alias}"


@pytest.fixture
def world(server, project, tmp_path, monkeypatch):
    """Each test has a repository of its own: what one test forges is not what another one finds."""
    key = make_key(tmp_path)
    alias, name = next(iter(project.matrix.aliases.items()))
    cell = next(cell for cell in project.matrix.cells if str(cell) == name)
    project.tree.record_path(cell).unlink(missing_ok=True)
    (project.root / "keys").mkdir()
    (project.root / "keys/release.pub").write_bytes(key.verification_key.pem)
    matrix = project.root / "matrix.yaml"
    text = matrix.read_text()
    assert text.count("publish: {") == 1
    matrix.write_text(text.replace("publish: {", "publish: {key: keys/release.pub, "))
    monkeypatch.chdir(project.root)
    path = re.sub(r"[^a-z0-9]", "", tmp_path.name.lower())
    registry = Registry(Repository.parse(f"http://{server.address}/{path}"))
    return World(registry=registry, folder=tmp_path, alias=alias, locked=project.tree.load(cell), key=key)
