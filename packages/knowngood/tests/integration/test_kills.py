"""Commands that are killed, or whose terminal ends, leave no process, container or part of a file."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import small

from knowngood.engine import embedded_engine

RELEASE = "4.52.4"  # of no other test
OBSTACLE = embedded_engine.describe_obstacle()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("engine"),
    pytest.mark.skipif(bool(OBSTACLE), reason=str(OBSTACLE)),
]


def start(here, *words):
    argv = [sys.executable, "-m", "knowngood", *words]
    return subprocess.Popen(argv, cwd=here.root, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True)


def children_of(process):
    """The processes below another, by their numbers; they are looked for again by number when that one has ended."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listing.splitlines())
    below = {process.pid}
    for _ in range(5):
        below |= {pid for pid, parent in parents.items() if parent in below}
    return below - {process.pid}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def same(one, two):
    difference = filecmp.dircmp(one, two)
    return not (difference.left_only or difference.right_only or difference.diff_files) and all(
        same(one / name, two / name) for name in difference.common_dirs
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_lock_that_is_ended_leaves_the_old_one(project, tmp_path, number):
    here = small.project(project.root, RELEASE)
    shutil.copytree(here.root / "docker", tmp_path / "before")
    for is_at_work in (False, True):
        process = start(here, "lock", "--upgrade", str(here.matrix.cells[0]))
        time.sleep(0.2)
        # uv resolves in a process of its own.
        while is_at_work and process.poll() is None and not children_of(process):
            time.sleep(0.01)
        below = children_of(process)
        process.send_signal(number)
        process.communicate(timeout=30)
        # Before it listens, a signal ends it as any program; while it starts, as Ctrl-C does.
        assert process.returncode in (-number, -signal.SIGINT, 1)
        time.sleep(0.5)
        assert not [pid for pid in below if is_alive(pid)]
        assert same(here.root / "docker", tmp_path / "before")
    assert start(here, "cells").wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("command", ["smoke", "run", "compile"])
def test_what_runs_in_a_container_ends_with_its_command(project, engine, command, number, monkeypatch):
    """After SIGKILL the container of a suite is removed by the next one of its cell; a compile goes on for the next."""
    here = small.project(project.root, RELEASE, shared={"tools": ["iniconfig", "pip"], "python": ["packaging"]})
    house, sdist = here.root.parent / "house", endless_sdist(here.root.parent)
    cell = str(here.matrix.cells[0])
    assert start(here, "build", cell).wait(600) == 0
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(house))
    words = {
        "smoke": ["smoke", "run", cell],
        "run": ["run", cell, "--", "sleep", "600"],
        "compile": ["compile", cell, "--sdist", str(sdist)],
    }[command]
    with contextlib.closing(engine.client()) as client:
        before = {item.id for item in client.containers.list(all=True)}

        def left():
            return {item.id for item in client.containers.list(all=True)} - before

        process = start(here, *words)
        deadline = time.monotonic() + 300  # `compile` gets nvcc first
        while not left() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
        if (command, number) == ("smoke", signal.SIGKILL):
            start(here, *words).communicate(timeout=120)
        if (command, number) == ("compile", signal.SIGKILL):
            following = start(here, *words)
            while "still compiling: waiting for it" not in following.stderr.readline():
                assert following.poll() is None
            assert [client.containers.get(name).status for name in left()] == ["running"]
            following.send_signal(signal.SIGHUP)
            following.communicate(timeout=60)
            assert following.returncode == 1
        deadline = time.monotonic() + 30
        while left() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left()
        assert not list(house.glob("*"))


def endless_sdist(folder):
    """A package whose compile does not end."""
    name = "kgwait-1.0"
    (folder / name).mkdir()
    (folder / name / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: kgwait\nVersion: 1.0\n")
    (folder / name / "setup.py").write_text(f"import time  # {folder}\ntime.sleep(600)\n")
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(folder / name, name)
    return folder / f"{name}.tar.gz"


@pytest.fixture
def full_cache(tmp_path):
    """A cache folder on a disk without room, and a function that makes room."""
    cache = tmp_path / "disk"
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "knowngood-test", cache], check=True)
    with contextlib.suppress(OSError), (cache / "fill").open("wb") as fill:
        while True:
            fill.write(bytes(4096))
            fill.flush()
    yield cache
    subprocess.run(["umount", "--lazy", cache], check=True)


def test_a_full_cache_is_said_at_each_stage(project, engine, full_cache, monkeypatch):
    """The engine is one that runs elsewhere and has room, so that each command comes to its own writing."""
    here = small.project(project.root, RELEASE)
    cell = str(here.matrix.cells[0])
    assert start(here, "build", cell).wait(600) == 0
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("PATH", f"{Path(engine.docker[0]).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(full_cache / "cache"))
    stages = {
        ("lock", "--upgrade", cell): 4,
        ("smoke", "run", cell): 4,
        ("verify", cell): 4,
        ("cells",): 0,
        ("check", "torch==2.11.0"): 0,
    }
    for words, code in stages.items():
        process = start(here, *words)
        _, errors = process.communicate(timeout=300)
        assert "Traceback" not in errors, (words, errors)
        assert process.returncode == code, (words, errors)
        assert not code or "the disk is full" in errors, (words, errors)
    (full_cache / "fill").unlink()
    again = start(here, "run", cell, "--", "true")
    assert again.wait(120) == 0, again.communicate()[1]
