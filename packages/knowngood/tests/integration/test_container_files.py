"""The files of `export` for Docker Compose and editors, opened by the real programs, in an image of the recipe."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess

import pytest
import small

from knowngood.base import debian_host, private_apt
from knowngood.cli import main
from knowngood.engine import unpacked_engine
from knowngood.images import pipeline

pytestmark = pytest.mark.integration

SCRIPT = (
    "id -u; id -g; pwd; df -m /dev/shm | tail -1; ulimit -s; echo $USER $HF_HUB_CACHE $HF_TOKEN; python -V; touch made"
)
OWNER = 1234
DEVCONTAINERS = "@devcontainers/cli@0.89.0"


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    """Docker Compose of Debian, of the suite that the embedded engine comes from."""
    folder = tmp_path_factory.mktemp("compose")
    host = debian_host.detect_host()
    suite = unpacked_engine.ENGINE_SUITE.get(host.codename) if host else None
    apt = private_apt.PrivateApt(folder / "apt", debian_host.find_host_archives(suite))
    apt.refresh()
    (package,) = apt.download(["docker-compose"], folder)
    private_apt.unpack_deb(package, folder / "root")
    return folder / "root/usr/libexec/docker/cli-plugins/docker-compose"


@pytest.fixture
def place(project, engine, tmp_path, monkeypatch):
    """A folder of another user, and an image that the project's recipe made in seconds."""
    here = small.project(project.root, small.TRANSFORMERS[0])
    line = pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=tmp_path, prove=False, record=True), engine)
    (cell,) = here.matrix.cells
    line.run(cell, print)
    folder = here.root / "work"
    folder.mkdir()
    os.chown(folder, OWNER, OWNER)
    monkeypatch.chdir(folder)
    yield str(cell), folder
    with contextlib.closing(engine.client()) as client:
        client.images.remove(f"knowngood:{cell}", force=True)


def test_compose_starts_the_program_as_run_does(compose, place, engine):
    cell, folder = place
    assert main.main(["export", cell, "--format", "compose", "-o", "compose.yaml"]) == 0
    # The embedded engine has no bridge and may not lift limits, and this machine has no GPU.
    (folder / "here.yaml").write_text(
        "services: {train: {network_mode: host, ports: !reset [], deploy: !reset null, "
        "ulimits: {memlock: !reset null}}}\n"
    )
    files = ["--file", "compose.yaml", "--file", "here.yaml"]
    environment = {**engine.environment(), "HF_TOKEN": "secret"}
    done = subprocess.run(
        [compose, *files, "run", "--rm", "-T", "train", "sh", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    user, group, where, shared, stack, variables, version = done.stdout.splitlines()
    assert (user, group, where, stack) == (str(OWNER), str(OWNER), "/work", "65536")
    assert int(shared.split()[1]) >= 512
    assert variables.split()[1:] == ["/var/tmp/huggingface", "secret"]
    assert version.startswith("Python 3.")
    assert (folder / "made").stat().st_uid == OWNER
    subprocess.run([compose, *files, "down", "--volumes"], env=environment, check=True)


def test_an_editor_opens_the_folder_as_its_owner(place, engine, tmp_path):
    """The command line of the specification, which VS Code uses too, opens the folder and runs a command in it."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    cell, folder = place
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", tmp_path / "npm", DEVCONTAINERS], check=True, capture_output=True
    )
    program = tmp_path / "npm/node_modules/.bin/devcontainer"
    (folder / ".devcontainer").mkdir()
    file = folder / ".devcontainer/devcontainer.json"
    assert main.main(["export", cell, "--format", "devcontainer", "-o", str(file)]) == 0
    document = json.loads(file.read_text())
    # The embedded engine has no bridge and may not lift limits.
    document["runArgs"] = [word for word in document["runArgs"] if word != "memlock=-1"]
    document["runArgs"].remove("--ulimit")
    document["runArgs"] += ["--network", "host"]
    file.write_text(json.dumps(document))
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nexec {" ".join(engine.docker)} "$@"\n')
    docker.chmod(0o755)
    where = ["--workspace-folder", folder, "--docker-path", docker]
    environment = {**os.environ, **engine.environment()}

    def call(*words):
        done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    opened = json.loads(call("up", *where).splitlines()[-1])
    try:
        assert opened["remoteWorkspaceFolder"] == "/work"
        user, group, where_it_ran, shared, stack, variables, version = call(
            "exec", *where, "sh", "-c", SCRIPT
        ).splitlines()
        assert (user, group, where_it_ran, stack) == (str(OWNER), str(OWNER), "/work", "65536")
        assert int(shared.split()[1]) >= 512
        assert variables.split()[1:] == ["/var/tmp/huggingface"]
        assert version.startswith("Python 3.")
        assert (folder / "made").stat().st_uid == OWNER
    finally:
        subprocess.run(
            [*engine.docker, "rm", "--force", "--volumes", opened["containerId"]], env=environment, check=True
        )
