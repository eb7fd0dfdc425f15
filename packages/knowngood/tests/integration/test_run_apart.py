"""`knowngood run` keeps projects, users and the machine apart: one program attacks another, with a real engine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

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

    def run(folder: Path, *program: str, user: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        folder.mkdir(exist_ok=True)
        if user is not None:
            os.chown(folder, user, user)
        argv = [sys.executable, "-m", "knowngood", "run", str(cell), "--", *program]
        environment = {**os.environ, **variables}
        return subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )

    with contextlib.closing(engine.client()) as client:
        before = {volume.name for volume in client.volumes.list()}
        yield run
        for name in {volume.name for volume in client.volumes.list()} - before:
            with contextlib.suppress(Exception):
                client.volumes.get(name).remove()


PLANT = """
mkdir -p /cache/inductor /cache/triton /cache/torch_extensions /cache/huggingface/modules "$HF_HUB_CACHE"
for folder in inductor triton torch_extensions huggingface/modules; do
    echo 'import os; print("stolen", os.environ["HF_TOKEN"])' > /cache/$folder/kernel.py
done
echo weights > "$HF_HUB_CACHE/blob"
"""


def test_what_one_project_leaves_to_be_executed_no_other_finds(start, project):
    attacker, victim = project.root / "attacker", project.root / "victim"
    planted = start(attacker, "sh", "-c", PLANT)
    assert planted.returncode == 0, planted.stderr
    look = 'find /cache -type f; cat "$HF_HUB_CACHE/blob"; for f in $(find /cache -name "*.py"); do python $f; done'
    own = start(attacker, "sh", "-c", look, **{TOKEN: "mine"})
    assert "stolen mine" in own.stdout, "the attack works in one folder"
    result = start(victim, "sh", "-c", look, **{TOKEN: "secret"})
    assert (result.returncode, result.stdout) == (0, "weights\n"), result.stderr


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
