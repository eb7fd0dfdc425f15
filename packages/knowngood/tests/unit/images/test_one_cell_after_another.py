"""Cells are built one after the other: which comes first, whether there is room, and who holds one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from knowngood.core import local_files
from knowngood.core.local_files import cache_folder
from knowngood.images import cell_ownership, free_resources
from knowngood.images.matrix_plan import Holdings
from plan_samples import A, B
from samples import FA0, FA4

GB = 10**9
_VERSION_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [
        ("5000000000", "2000000000", 3 * GB),
        ("max", "2000000000", 8 * GB),  # no limit
        ("90000000000", "2000000000", 8 * GB),  # the group may use more than the machine has
        ("5000000000", "6000000000", 0),  # the limit was lowered beneath what is in use
        (None, None, 8 * GB),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_the_machines_or_less_where_a_control_group_limits_it(monkeypatch, version, limit, used, free):
    folder = "/sys/fs/cgroup/"
    names = ("memory.max", "memory.current") if version == 2 else _VERSION_1
    files = {"/proc/meminfo": "MemTotal: 99999999 kB\nMemAvailable: 7812500 kB\n"}
    files |= {folder + name: text for name, text in zip(names, (limit, used), strict=True) if text}

    def read(path, **_):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert free_resources.measure_free_memory() == free


def test_too_little_disk_for_the_wheels_is_said():
    assert free_resources.describe_lack_of_disk(2 * GB, 6 * GB) == ""
    text = free_resources.describe_lack_of_disk(2 * GB, 6 * GB - 1)
    assert text.startswith("building it takes up to 14 GB of disk, 6 GB are free; make space")


HOLD = """
from knowngood.images import cell_ownership
with cell_ownership.hold_cell("c", notify=print):
    print("got", flush=True)
    input()
"""
KILLED = """
import os
from knowngood.core.local_files import scratch_folder
with scratch_folder() as folder:
    (folder / "env").write_text("s")
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def holder():
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "got\n"
        yield process
        process.kill()


def test_the_next_run_waits_until_the_owner_ends(holder):
    said: list[str] = []
    timer = threading.Timer(0.5, holder.kill)
    timer.start()
    with cell_ownership.hold_cell("c", notify=said.append):
        assert json.loads((cache_folder() / "locks/c.json").read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert f"process {holder.pid} on " in said[0]
    assert "since 20" in said[0]
    assert not (cache_folder() / "locks/c.json").exists()


def test_scratch_folders_of_killed_runs_are_removed_and_those_in_use_are_not():
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    (left,) = (cache_folder() / "scratch").iterdir()
    local_files.remove_stale_scratch()
    assert not left.exists()
    with local_files.scratch_folder() as mine, local_files.scratch_folder() as other:
        local_files.remove_stale_scratch()
        assert mine.is_dir()
        assert other != mine
        assert oct(mine.stat().st_mode)[-3:] == "700"
    assert not list((cache_folder() / "scratch").iterdir())


def test_cells_with_shared_layers_come_first(home, lock_of):
    from knowngood.core.cell import parse_cell
    from knowngood.images import build_survey, matrix_plan

    for cell in (FA4, FA0):
        lock_of(cell)
    asked = build_survey.survey_cells(home, [parse_cell(FA4), parse_cell(FA0)], home.root)
    assert [item.cell for item in matrix_plan.order_cells(list(asked), Holdings())] == [FA4, FA0]
    assert A.shape.layer_inputs == B.shape.layer_inputs
