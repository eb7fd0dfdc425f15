"""`knowngood run` and an image that only a registry has: it is pulled by the digest that the record names."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
import registry_server
import small

from knowngood.engine import embedded_engine

RELEASE = "4.53.1"  # of no other test: its image stays this one's
OBSTACLE = embedded_engine.describe_obstacle()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(OBSTACLE), reason=str(OBSTACLE))]


@pytest.fixture(scope="module")
def registry(registry_program, tmp_path_factory):
    """The address of a registry that is empty."""
    server = registry_server.Server(registry_program, tmp_path_factory.mktemp("registry"))
    server.start()
    yield server.address
    server.kill()


def knowngood(folder, *words, **variables):
    argv = [sys.executable, "-m", "knowngood", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)


def test_the_recorded_image_is_pulled_from_the_first_registry_that_has_it(registry, engine, project):
    here = small.project(project.root, RELEASE)
    [cell] = here.matrix.cells
    built = knowngood(here.root, "build", "--record", str(cell))
    assert built.returncode == 0, built.stderr
    record = here.tree.load_record(cell)
    name, pushed = f"knowngood:{cell}", f"{registry}/team/images:{RELEASE}"
    with contextlib.closing(engine.client()) as client:

        def forget():
            for tag in (name, pushed, f"{registry}/team/images@{record.manifest.digest}"):
                with contextlib.suppress(Exception):
                    client.images.remove(tag, force=True)

        try:
            client.images.get(name).tag(pushed)
            lines = list(client.api.push(pushed, stream=True, decode=True))
            assert not [line for line in lines if "error" in line]
            forget()
            repositories = f"http://{registry}/other/images http://{registry}/team/images"
            words = ["run", str(cell), "--", "python", "-c", "import packaging; print('ran')"]
            result = knowngood(here.root, *words, KNOWNGOOD_REGISTRY=repositories)
            assert result.returncode == 0, result.stderr
            assert result.stdout == "ran\n"
            assert f"not from http://{registry}/other/images" in result.stderr
            assert f"pulled from http://{registry}/team/images" in result.stderr
            assert "building" not in result.stderr
            assert client.images.get(name).id == record.manifest.digest
            again = knowngood(here.root, *words, KNOWNGOOD_REGISTRY=repositories)
            assert (again.returncode, again.stdout) == (0, "ran\n")
            assert "pulled" not in again.stderr

            forget()  # another image under the recorded one's name is not taken
            path = here.tree.record_path(cell)
            document = json.loads(path.read_text())
            document["manifest"]["digest"] = "sha256:" + "0" * 64
            path.write_text(json.dumps(document))
            refused = knowngood(here.root, *words, KNOWNGOOD_REGISTRY=repositories)
            assert refused.returncode == 125
            assert f"not from http://{registry}/team/images" in refused.stderr
            assert "pulled from" not in refused.stderr
        finally:
            forget()
