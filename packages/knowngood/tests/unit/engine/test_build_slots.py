from __future__ import annotations

import subprocess
import time

import pytest

from knowngood.engine import embedded_engine

# Notes when a step starts and ends, and how many run in the meantime.
RUNTIME = """#!/bin/sh
touch "{folder}/$$"; ls "{folder}" | wc -l >> "{log}"; sleep 0.3; rm "{folder}/$$"
"""


@pytest.fixture
def wrapper(tmp_path):
    (tmp_path / "running").mkdir()
    program = tmp_path / "run c"  # a space: the paths are quoted
    program.write_text(RUNTIME.format(folder=tmp_path / "running", log=tmp_path / "log"))
    program.chmod(0o755)
    embedded_engine.write_slot_wrapper(str(program), tmp_path / "bin/runc", tmp_path / "the slots", count=2)
    return tmp_path / "bin/runc"


def most_at_once(wrapper, *words):
    steps = [subprocess.Popen([wrapper, *words]) for _ in range(5)]
    assert [step.wait(20) for step in steps] == [0] * 5
    return max(map(int, (wrapper.parent.parent / "log").read_text().split()))


def test_only_as_many_steps_run_at_once_as_there_are_slots(wrapper):
    assert most_at_once(wrapper, "--log", "file", "run", "--bundle", "b", "id") == 2


def test_other_commands_of_the_runtime_do_not_wait(wrapper):
    begin = time.monotonic()
    assert most_at_once(wrapper, "state", "id") > 2
    assert time.monotonic() - begin < 5


def test_a_killed_step_frees_its_slot_and_one_that_waits_can_be_killed(wrapper):
    argv = [wrapper, "run", "id"]
    steps = [subprocess.Popen(argv) for _ in range(4)]
    time.sleep(0.1)
    for step in steps:
        step.kill()
        step.wait(5)
    assert subprocess.run(argv, check=False, timeout=5).returncode == 0


def test_there_are_enough_slots_on_a_small_machine(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert embedded_engine.choose_slot_count() == embedded_engine.MIN_SLOTS
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert embedded_engine.choose_slot_count() == 16
