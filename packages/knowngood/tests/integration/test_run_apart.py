"""`knowngood run` keeps projects, users and the machine apart: one program attacks another, with a real engine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import bridged_engine
import pytest
import small

from knowngood.engine import embedded_engine

TOKEN = "HF_TOKEN"
RELEASE = "4.53.3"  # of no other test: its image stays this one's
OBSTACLE = embedded_engine.describe_obstacle()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(OBSTACLE), reason=str(OBSTACLE))]


@pytest.fixture
def start(project, engine):
    """A function that runs a program in a folder below a project with an image of a few small wheels."""
    here = small.project(project.root, RELEASE)
    [cell] = here.matrix.cells
    words = [sys.executable, "-m", "knowngood", "build", str(cell)]
    built = subprocess.run(words, cwd=here.root, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr

    def run(
        folder: Path, *program: str, user: int | None = None, options: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        folder.mkdir(exist_ok=True)
        if user is not None:
            os.chown(folder, user, user)
        argv = [sys.executable, "-m", "knowngood", "run", str(cell), *options, "--", *program]
        environment = {**os.environ, **variables}
        return subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )

    with contextlib.closing(engine.client()) as client:
        before = {volume.name for volume in client.volumes.list()}
        run.image = f"knowngood:{cell}"
        yield run
        for name in {volume.name for volume in client.volumes.list()} - before:
            with contextlib.suppress(Exception):
                client.volumes.get(name).remove()


PLANT = """
mkdir -p /cache/inductor /cache/triton /cache/torch_extensions /cache/huggingface/modules "$HF_HUB_CACHE"
for folder in inductor triton torch_extensions huggingface/modules; do
    echo 'import os; print("stolen", os.environ["HF_TOKEN"])' > /cache/$folder/kernel.py
done
"""
DOWNLOAD = """
model="$HF_HUB_CACHE/models--a--b" && mkdir -p $model/refs $model/blobs $model/snapshots/one
echo 'print("as published")' > $model/blobs/hash-of-it
ln -s ../../blobs/hash-of-it $model/snapshots/one/modeling.py && printf one > $model/refs/main
"""
"""What is left of a model with code after a download, as huggingface_hub lays it out."""
ALTER = """
model="$HF_HUB_CACHE/models--a--b" && mkdir -p $model/refs $model/blobs $model/snapshots/one $model/snapshots/two
echo 'import os; print("stolen", os.environ["HF_TOKEN"])' > $model/blobs/hash-of-it
cp $model/blobs/hash-of-it $model/snapshots/two/modeling.py
ln -sf ../two/modeling.py $model/snapshots/one/modeling.py && printf two > $model/refs/main
"""
LOAD = 'model="$HF_HUB_CACHE/models--a--b"; python $model/snapshots/$(cat $model/refs/main)/modeling.py'


def test_what_one_project_leaves_to_be_executed_no_other_finds(start, project):
    attacker, victim = project.root / "attacker", project.root / "victim"
    planted = start(attacker, "sh", "-c", PLANT)
    assert planted.returncode == 0, planted.stderr
    look = 'find /cache "$HF_HUB_CACHE" -type f; for f in $(find /cache -name "*.py"); do python $f; done'
    own = start(attacker, "sh", "-c", look, **{TOKEN: "mine"})
    assert "stolen mine" in own.stdout, "the attack works in one folder"
    result = start(victim, "sh", "-c", look, **{TOKEN: "secret"})
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_a_downloaded_model_that_one_project_alters_no_other_loads(start, project):
    """Its files are named by hashes that nobody compares: the branch, the link and the file itself can be changed."""
    attacker, victim = project.root / "attacker", project.root / "victim"
    for folder in (attacker, victim):
        assert start(folder, "sh", "-c", DOWNLOAD).returncode == 0
    assert start(attacker, "sh", "-c", ALTER).returncode == 0
    loaded = {folder: start(folder, "sh", "-c", LOAD, **{TOKEN: "secret"}) for folder in (attacker, victim)}
    assert loaded[attacker].stdout == "stolen secret\n", "the attack works in one folder"
    assert loaded[victim].stdout == "as published\n", loaded[victim].stderr


def test_users_have_caches_of_their_own_and_files_are_the_folder_owners(start, project):
    """Both are started by root, in folders of two ordinary users."""
    place = project.root / "shared"
    script = 'id -u; touch file /cache/mine "$HF_HUB_CACHE.mine" && find /cache "$HF_HUB_CACHE.mine" -type f'
    for user in (4711, 4712):
        folder = place.with_name(f"of-{user}")
        result = start(folder, "sh", "-c", script, user=user)
        assert (result.returncode, result.stdout) == (0, f"{user}\n/cache/mine\n/var/tmp/huggingface.mine\n"), (
            result.stderr
        )
        assert (folder / "file").stat().st_uid == user


def test_what_listens_on_the_machines_loopback_is_out_of_reach_where_the_engine_has_a_bridge(start, project, engine):
    """The embedded engine has none, and says so; the program reaches the loopback there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(60)
        threading.Thread(target=lambda: contextlib.suppress(OSError) and server.accept(), daemon=True).start()
        script = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)"
        result = start(project.root / "x", "python", "-c", script)
    with contextlib.closing(engine.client()) as client:
        bridged = any(network.name == "bridge" for network in client.networks.list())
    assert (result.returncode != 0) is bridged
    assert ("has no bridge: the program has the network of this machine" in result.stderr) is not bridged


REACH = """
import socket
for place in (("127.0.0.1", 4711), chr(0) + "kg", ("OUT", 4711)):
    try:
        client = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
        client.settimeout(5)
        client.connect(place)
        print("reached")
    except OSError:
        print("out of reach")
"""


def test_a_bridge_keeps_the_machines_loopback_and_abstract_sockets_away(start, project, engine, tmp_path):
    """With an engine that has one, on a network of its own; other addresses are reached through the bridge."""
    with bridged_engine.BridgedEngine(engine, tmp_path) as bridged:
        bridged.load(start.image)
        program = ("python", "-c", REACH.replace("OUT", bridged.ADDRESS))
        own = start(project.root / "x", *program, DOCKER_HOST=bridged.host)
        assert (own.returncode, own.stdout.splitlines()) == (0, ["out of reach"] * 2 + ["reached"]), own.stderr
        assert "has no bridge" not in own.stderr
        wished = start(project.root / "x", *program, options=["--network", "host"], DOCKER_HOST=bridged.host)
        assert wished.stdout.splitlines() == ["reached"] * 3, wished.stderr
