"""A base that is pulled by digest, from a real registry: Debian's `docker-registry` on the loopback."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import registry_server

from conftest import ROOT
from knowngood.base import base_image
from knowngood.core.errors import UsageError
from knowngood.engine import embedded_engine
from knowngood.images import build_command, image_build
from knowngood.project.checkout import Project

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]


@pytest.fixture(scope="module")
def registry(registry_program, tmp_path_factory):
    """The address of a registry that is empty."""
    folder = tmp_path_factory.mktemp("registry")
    server = registry_server.Server(registry_program, folder)
    server.start()
    yield server.address
    server.kill()


def test_a_base_is_pulled_by_digest(registry, engine, project, tmp_path):
    here = base_image.prepare_base(Project(ROOT), "debian12", locked=True, notify=print)
    context = tmp_path / "push"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM base\n")
    pushed = build_command.BuildPlan(
        tag=f"{registry}/base:debian12",
        dockerfile=context / "Dockerfile",
        context=context,
        contexts={"base": here},
        inputs=registry,
    )
    image = image_build.build_image(pushed, engine, log=tmp_path / "push.log", notify=print)
    client = engine.client()
    try:
        said = client.api.push(image.tag, stream=False)
        assert "error" not in said, said
        client.images.remove(image.tag, force=True)
        name = f"{registry}/base@{image.digest}"
        matrix = project.root / "matrix.yaml"
        text = matrix.read_text()
        matrix.write_text(re.sub(r"    bootstrap:\n(?: {6}.*\n)+", f"    image: {name}\n", text, count=1))
        pulled = base_image.prepare_base(Project(project.root), "debian12", locked=True, notify=print)
        assert pulled == f"docker-image://{name}"
        (context / "Dockerfile").write_text("FROM base\nRUN gcc --version > /seen\n")
        plan = replace(pushed, tag="knowngood-test:pulled", contexts={"base": pulled}, inputs=f"{registry} pulled")
        built = image_build.build_image(plan, engine, log=tmp_path / "pull.log", notify=print)
        assert b"Debian" in client.containers.run(built.tag, ["cat", "/seen"], network_mode="none", remove=True)
        client.images.remove(built.tag, force=True)
    finally:
        client.close()


def test_a_base_without_digest_is_refused(project):
    matrix = project.root / "matrix.yaml"
    text = matrix.read_text()
    begin, end = text.index("    bootstrap:\n"), text.index("# In every cell")
    matrix.write_text(f"{text[:begin]}    image: registry.example/base:latest\n\n{text[end:]}")
    with pytest.raises(UsageError, match="NAME@sha256:DIGEST"):
        _ = Project(project.root).matrix
