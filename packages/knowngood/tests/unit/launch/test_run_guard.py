"""No container outlives its docker command: the watcher, and the containers that are left all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from knowngood.launch import run_guard

BECOME = """
import os, sys
from knowngood.launch import run_guard
run_guard.start_watcher(["/bin/sh", "-c", 'echo gone > "$0"', sys.argv[1]], dict(os.environ))
os.execvp("sleep", ["sleep", sys.argv[2]])
"""


def wait_for(path, seconds):
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.exists()


@pytest.mark.parametrize("kill", [True, False])
def test_the_watcher_acts_when_the_program_has_ended_however_it_ended(tmp_path, kill):
    mark = tmp_path / "mark"
    process = subprocess.Popen([sys.executable, "-c", BECOME, str(mark), "60" if kill else "1"])
    if kill:
        assert not wait_for(mark, 1.5)
        process.kill()  # and it is not waited for: it stays a zombie
    assert wait_for(mark, 20)
    process.wait()


def test_a_process_is_named_until_it_ends():
    process = subprocess.Popen(["sleep", "60"])
    label = run_guard.describe_client(process.pid)
    assert label.split()[2] == str(process.pid)
    assert not run_guard.is_client_gone(label)
    process.kill()
    process.wait()
    assert run_guard.is_client_gone(label)


def test_a_process_that_got_the_number_of_an_ended_one_is_not_taken_for_it():
    reused = subprocess.Popen(["sleep", "60"])
    try:
        *place, start = run_guard.describe_client().split()  # this process started before it
        earlier = " ".join([*place[:2], str(reused.pid), start])
        assert run_guard.is_client_gone(earlier)
    finally:
        reused.kill()
        reused.wait()


def test_processes_of_other_machines_and_boots_are_never_taken_for_ended():
    boot, space, _, start = run_guard.describe_client().split()
    assert not run_guard.is_client_gone(f"other {space} 999999999 {start}")
    assert not run_guard.is_client_gone(f"{boot} pid:[1] 999999999 {start}")
    assert not run_guard.is_client_gone("")
    assert run_guard.is_client_gone(f"{boot} {space} 999999999 {start}")
    assert run_guard.is_client_gone(f"{boot} {space} {os.getpid()} 1")  # the number was given again


def test_only_containers_of_ended_runs_are_removed():
    boot, space, _, start = run_guard.describe_client().split()
    removed = []

    def container(name, label):
        labels = {"io.knowngood.run": "7", "io.knowngood.run.client": label} if label else {"io.knowngood.run": "7"}
        return SimpleNamespace(name=name, labels=labels, remove=lambda **_: removed.append(name))

    listed = [
        container("gone", f"{boot} {space} 999999999 {start}"),
        container("alive", run_guard.describe_client()),
        container("old", ""),
    ]
    filters = []
    client = SimpleNamespace(
        containers=SimpleNamespace(list=lambda **words: filters.append(words["filters"]) or listed)
    )
    assert run_guard.remove_abandoned_containers(client, 7) == ["gone"]
    assert removed == ["gone"]
    assert filters == [{"label": "io.knowngood.run=7"}]
