from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder
from knowngood.evidence.run_evidence import Tier
from knowngood.images import cell_ownership, cell_tasks, task_crew
from knowngood.images.cell_tasks import (
    BuildTask,
    CellResult,
    CellStatus,
    MachineResources,
    ScheduleRefusal,
    ScheduleWait,
)
from knowngood.images.matrix_plan import Holdings, PlanInput
from plan_samples import TORCH, A, B, layer, wanted
from samples import FA0, FA4

GB = 10**9
_VERSION_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
PLENTY = MachineResources(memory=1000 * GB, disk=1000 * GB)


def task(cell: str, memory: int = 4, disk: int = 10, makes: str = "") -> BuildTask:
    return BuildTask(
        cell=cell,
        need=MachineResources(memory=memory * GB, disk=disk * GB),
        makes=frozenset({(makes, "m")} if makes else ()),
    )


def test_the_need_of_a_task_follows_from_its_missing_layers():
    large = wanted("x", TORCH)
    found = cell_tasks.task_for_cell(large, Holdings(), prove=False)
    assert found.need == MachineResources(memory=cell_tasks.MEMORY_TO_BUILD, disk=500 * cell_tasks.DISK_PER_BYTE)
    assert cell_tasks.task_for_cell(
        large, Holdings(images=frozenset({large.shape.inputs})), prove=False
    ).need == MachineResources(memory=0, disk=0)
    assert cell_tasks.task_for_cell(large, Holdings(), prove=True).need.memory == cell_tasks.MEMORY_TO_PROVE
    assert cell_tasks.task_for_cell(PlanInput(cell="y", lock_problem="no"), Holdings(), prove=False).need.memory


def test_tasks_start_while_memory_and_disk_allow():
    first, second = task("a"), task("b")
    assert cell_tasks.choose_task([first, second], [], PLENTY, jobs=2) is first
    assert cell_tasks.choose_task([second], [first], PLENTY, jobs=2) is second
    assert cell_tasks.choose_task([second], [first], PLENTY, jobs=1) == ScheduleWait(reason="1 at once")


@pytest.mark.parametrize(
    ("free", "reason"),
    [
        (MachineResources(memory=7 * GB, disk=1000 * GB), "b waits for memory: it takes up to 4 GB, 3 GB are left"),
        (MachineResources(memory=1000 * GB, disk=19 * GB), "b waits for disk: it takes up to 10 GB, 9 GB are left"),
    ],
)
def test_a_task_that_does_not_fit_beside_the_running_ones_waits(free, reason):
    assert cell_tasks.choose_task([task("b")], [task("a")], free, jobs=9) == ScheduleWait(reason=reason)
    small = task("c", memory=1, disk=1)
    assert cell_tasks.choose_task([task("b"), small], [task("a")], free, jobs=9) is small


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
    monkeypatch.setattr(task_crew, "_engine_data_folder", lambda _: "/")
    assert task_crew.measure_free_resources(None).memory == free


def test_too_little_disk_refuses_a_task_and_too_little_memory_does_not():
    alone = task("a", memory=4)
    assert cell_tasks.choose_task([alone], [], MachineResources(memory=0, disk=1000 * GB), jobs=1) is alone
    found = cell_tasks.choose_task([alone], [], MachineResources(memory=0, disk=4 * GB), jobs=1)
    assert isinstance(found, ScheduleRefusal)
    assert "a takes up to 10 GB of disk while it is built, 4 GB are free" in found.reason


@pytest.mark.parametrize(
    "free",
    [MachineResources(memory=8 * GB, disk=1000 * GB), MachineResources(memory=1000 * GB, disk=20 * GB)],
)
def test_a_task_that_fits_exactly_beside_the_running_ones_starts(free):
    fits = task("b")
    assert cell_tasks.choose_task([fits], [task("a")], free, jobs=9) is fits


def test_a_disk_with_just_the_space_that_remains_in_use_is_enough():
    alone = BuildTask(cell="a", need=MachineResources(memory=0, disk=cell_tasks.DISK_PER_BYTE * GB))
    least = cell_tasks.DISK_AT_LEAST * GB
    assert cell_tasks.choose_task([alone], [], MachineResources(memory=0, disk=least), jobs=1) is alone
    found = cell_tasks.choose_task([alone], [], MachineResources(memory=0, disk=least - 1), jobs=1)
    assert isinstance(found, ScheduleRefusal)


def test_a_task_waits_for_a_large_layer_of_another_task():
    found = cell_tasks.choose_task([task("b", makes="torch"), task("c")], [task("a", makes="torch")], PLENTY, jobs=9)
    assert found == task("c")
    found = cell_tasks.choose_task([task("b", makes="torch")], [task("a", makes="torch")], PLENTY, jobs=9)
    assert found == ScheduleWait(reason="b waits for layers that a builds")


@pytest.mark.parametrize(("size", "waited"), [(cell_tasks.LARGE_LAYER - 1, False), (cell_tasks.LARGE_LAYER, True)])
def test_only_layers_from_a_certain_size_on_are_waited_for(size, waited):
    item = wanted("x", layer("torch", size))
    assert bool(cell_tasks.task_for_cell(item, Holdings(), prove=False).makes) is waited


class Fake:
    """Work that ends when it has been asked a few times."""

    running = 0
    most = 0

    def __init__(self, cell: str, *, ok: bool = True) -> None:
        self.cell, self.ok, self.asked, self.stopped = cell, ok, 0, False
        Fake.running += 1
        Fake.most = max(Fake.most, Fake.running)

    def done(self) -> bool:
        self.asked += 1
        if self.asked == 10:
            Fake.running -= 1
        return self.asked >= 10

    def result(self) -> CellResult:
        error = None if self.ok else KnowngoodError("no")
        return CellResult(
            cell=self.cell, status=CellStatus.BUILT if self.ok else CellStatus.FAILED, seconds=1, error=error
        )

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(task_crew, "_PAUSE", 0)
    Fake.running = Fake.most = 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("memory", "most"), [(5, 1), (9, 2), (1000, 6)])
def test_thirty_cells_with_memory_for_one_run_one_after_the_other(memory, most):
    tasks = [task(f"c{number}", disk=0) for number in range(30)]
    room = MachineResources(memory=memory * GB, disk=1000 * GB)
    said: list[str] = []
    results = list(task_crew.run_tasks(tasks, lambda item: Fake(item.cell), lambda: room, jobs=6, notify=said.append))
    assert {item.cell for item in results} == {item.cell for item in tasks}
    assert Fake.most == most
    assert most == 6 or any("waits for memory" in line for line in said)


@pytest.mark.usefixtures("quick")
def test_a_task_that_fails_does_not_stop_the_others():
    tasks = [task("a"), task("b"), task("huge", disk=10_000)]
    results = list(
        task_crew.run_tasks(
            tasks, lambda item: Fake(item.cell, ok=item.cell != "a"), lambda: PLENTY, jobs=1, notify=len
        )
    )
    assert {item.cell: item.status for item in results} == {
        "a": CellStatus.FAILED,
        "b": CellStatus.BUILT,
        "huge": CellStatus.FAILED,
    }
    assert next(item for item in results if item.cell == "huge").error.exit_code == 4


@pytest.mark.usefixtures("quick")
def test_an_interruption_stops_running_tasks():
    works: list[Fake] = []

    def start(item: BuildTask) -> Fake:
        if works:
            raise KeyboardInterrupt
        works.append(Fake(item.cell))
        return works[0]

    with pytest.raises(KeyboardInterrupt):
        list(task_crew.run_tasks([task("a"), task("b")], start, lambda: PLENTY, jobs=2, notify=len))
    assert works[0].stopped


def child(tmp_path, monkeypatch, code: str) -> CellResult:
    """The result of a cell's process that runs this instead of the program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(task_crew.sys, "executable", str(program))
    return task_crew.TaskProcess(FA4, ["build", FA4], tmp_path).result()


def test_a_process_returns_the_result_of_its_cell(tmp_path, monkeypatch, capsys):
    said = CellResult(
        cell=FA0, status=CellStatus.FAILED, seconds=2.0, tier=Tier.BUILT, note="n", error=KnowngoodError("why")
    )
    said.error.exit_code = 4
    document = json.dumps({"cells": [said.document(tmp_path)]})
    code = f"print('step', file=sys.stderr)\nprint({document!r})"
    found = child(tmp_path, monkeypatch, code)
    assert found.document(tmp_path) == said.document(tmp_path)
    assert capsys.readouterr().err == "step\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [("os.kill(os.getpid(), 9)", "killed by signal 9"), ("sys.exit(3)", "exit 3"), ("print('{')", "exit 0")],
)
def test_a_process_that_dies_is_a_failed_cell(tmp_path, monkeypatch, code, why):
    found = child(tmp_path, monkeypatch, code)
    assert (found.cell, found.status) == (FA4, CellStatus.FAILED)
    assert why in str(found.error)


def test_a_process_that_closes_its_streams_before_it_ends_is_waited_for(tmp_path, monkeypatch):
    found = child(tmp_path, monkeypatch, "import time\nos.close(1), os.close(2), time.sleep(0.3), os._exit(3)")
    assert found.status is CellStatus.FAILED
    assert "exit 3" in str(found.error)


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
