"""`knowngood run` keeps projects, users and the machine apart: one program attacks another, with a real engine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
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


@pytest.fixture(scope="module")
def bridged(engine, tmp_path_factory):
    with bridged_engine.BridgedEngine(engine, tmp_path_factory.mktemp("bridged")) as other:
        yield other


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
        run.cell = str(cell)
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


def test_a_bridge_keeps_the_machines_loopback_and_abstract_sockets_away(start, project, bridged):
    """With an engine that has one, on a network of its own; other addresses are reached through the bridge."""
    bridged.load(f"knowngood:{start.cell}")
    program = ("python", "-c", REACH.replace("OUT", bridged.ADDRESS))
    own = start(project.root / "x", *program, DOCKER_HOST=bridged.host)
    assert (own.returncode, own.stdout.splitlines()) == (0, ["out of reach"] * 2 + ["reached"]), own.stderr
    assert "has no bridge" not in own.stderr
    wished = start(project.root / "x", *program, options=["--network", "host"], DOCKER_HOST=bridged.host)
    assert wished.stdout.splitlines() == ["reached"] * 3, wished.stderr


AS_A_USER = "import runpy, site; site.addsitedir({!r}); runpy.run_module('knowngood', run_name='__main__')"


@pytest.fixture
def place(project):
    """The project where every user may go, with a home for two of them; pytest's own folders are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="knowngood-users-"))
    folder.chmod(0o755)
    shutil.copytree(project.root, folder / "project")
    for user in (4711, 4712):
        for name in (f"home-{user}", f"project/of-{user}"):
            (folder / name).mkdir()
            os.chown(folder / name, user, user)
    yield folder
    shutil.rmtree(folder)


def test_two_ordinary_users_beside_each_other_with_one_engine(start, place, bridged, engine):
    """Neither is root; the group of the engine's socket is theirs. Runs, volumes and what they prune are apart."""
    bridged.load(f"knowngood:{start.cell}")
    python = Path("/usr/bin/python3")  # sys.executable may lie below a folder that is root's alone
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    if version.rpartition(".")[0] != f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"the machine's Python, {version}, cannot load what is installed for {sys.version.split()[0]}")
    command = [python, "-S", "-c", AS_A_USER.format(sysconfig.get_path("purelib"))]
    socket_file = Path(bridged.host.removeprefix("unix://"))

    def begin(user, *words):
        environment = {
            "HOME": str(place / f"home-{user}"),
            "PATH": f"{Path(engine.docker[0]).parent}:/usr/bin:/bin",
            "DOCKER_HOST": bridged.host,
        }
        return subprocess.Popen(
            [*command, *words],
            cwd=place / f"project/of-{user}",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
            group=user,
            extra_groups=[4713],
        )

    refused = begin(4711, "run", start.cell, "--", "true")
    errors = refused.communicate(timeout=300)[1]
    assert (refused.returncode, "may not use the engine" in errors) == (125, True), errors
    os.chown(socket_file, 0, 4713)
    script = "id -u; touch made /cache/mine /var/tmp/mine && find /cache /var/tmp -type f"
    running = {user: begin(user, "run", start.cell, "--", "sh", "-c", script) for user in (4711, 4712)}
    for user, process in running.items():
        out, errors = process.communicate(timeout=300)
        assert out.splitlines() == [str(user), "/cache/mine", "/var/tmp/mine"], errors
        assert (place / f"project/of-{user}/made").stat().st_uid == user
    pruned = json.loads(begin(4711, "engine", "prune", "volumes", "--yes", "--json").communicate(timeout=300)[0])
    assert sorted(item["name"].split("-")[1:3] for item in pruned["items"]) == [
        ["cache", "4711"],
        ["downloads", "4711"],
    ]
    other = begin(4712, "run", start.cell, "--", "find", "/cache", "/var/tmp", "-type", "f")
    assert other.communicate(timeout=300)[0].splitlines() == ["/cache/mine", "/var/tmp/mine"]
