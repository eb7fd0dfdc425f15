"""An engine that a host has already, with the classic image store: it is used, and cells can be built on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import ROOT
from knowngood.base import base_image
from knowngood.engine import container_engine as engines
from knowngood.engine import embedded_engine, unpacked_engine
from knowngood.images import build_command, image_build
from knowngood.project.checkout import Project

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

DOCKERFILE = "FROM base AS a\nRUN mkdir -p /out && gcc --version > /out/seen\nFROM base\nCOPY --link --from=a /out/ /\n"


@pytest.fixture
def classic(tmp_path, monkeypatch):
    """The embedded engine's programs with the other store; DOCKER_HOST and PATH name it, as on a host that has one."""
    usual = embedded_engine.daemon_configuration
    monkeypatch.setattr(
        embedded_engine, "daemon_configuration", lambda at: {**usual(at), "features": {"containerd-snapshotter": False}}
    )
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "its"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    embedded_engine.start_embedded_engine(print)
    at = unpacked_engine.engine_paths()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "ours"))
        patch.setenv("DOCKER_HOST", f"unix://{at.socket}")
        patch.setenv("DOCKER_CONFIG", str(at.docker_config))
        patch.setenv("PATH", f"{at.docker.parent}:/usr/bin:/bin")
        yield engines.ensure_engine(notify=pytest.fail)
    embedded_engine.remove_embedded_engine(print)


def test_it_is_used_and_builds_on_a_bootstrapped_base(request, tmp_path):
    base = base_image.prepare_base(Project(ROOT), "debian12", locked=True, notify=print)
    engine = request.getfixturevalue("classic")
    assert not engine.embedded
    assert not engine.containerd_store
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    plan = build_command.BuildPlan(
        tag="knowngood-test:classic",
        dockerfile=tmp_path / "Dockerfile",
        context=tmp_path,
        contexts={"base": base},
        inputs="classic",
    )
    # This test's engine has no bridge; one that a host has would build with its default network.
    engine = replace(engine, network="host")
    image = image_build.build_image(plan, engine, log=tmp_path / "log", notify=print)
    assert image.built
    assert not image_build.build_image(plan, engine, log=tmp_path / "log", notify=print).built
    client = engine.client()
    assert b"Debian" in client.containers.run(image.tag, ["cat", "/seen"], network_mode="none", remove=True)
    client.close()
