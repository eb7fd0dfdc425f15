from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from samples import FA0, FA4
from test_planning import TORCH, A, B, wanted

from knowngood import paths
from knowngood.building import crew, ownership, schedule
from knowngood.building.planning import Holdings, Wanted
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Refusal, Room, Task, Wait
from knowngood.errors import KnowngoodError
from knowngood.evidence import Tier
from knowngood.paths import cache_dir

GB = 10**9
PLENTY = Room(memory=1000 * GB, disk=1000 * GB)


def task(cell: str, memory: int = 4, disk: int = 10, makes: str = "") -> Task:
    return Task(
        cell=cell, need=Room(memory=memory * GB, disk=disk * GB), makes=frozenset({(makes, "m")} if makes else ())
    )


def test_a_cell_takes_what_its_missing_layers_weigh():
    large = wanted("x", TORCH)
    found = schedule.task(large, Holdings(), prove=False)
    assert found.need == Room(memory=schedule.MEMORY_TO_BUILD, disk=500 * schedule.DISK_PER_BYTE)
    assert schedule.task(large, Holdings(images=frozenset({large.shape.inputs})), prove=False).need == Room(
        memory=0, disk=0
    )
    assert schedule.task(large, Holdings(), prove=True).need.memory == schedule.MEMORY_TO_PROVE
    assert schedule.task(Wanted(cell="y", unlocked="no"), Holdings(), prove=False).need.memory


def test_the_first_starts_and_others_beside_it_while_there_is_room():
    first, second = task("a"), task("b")
    assert schedule.choose([first, second], [], PLENTY, jobs=2) is first
    assert schedule.choose([second], [first], PLENTY, jobs=2) is second
    assert schedule.choose([second], [first], PLENTY, jobs=1) == Wait(reason="1 at once")


@pytest.mark.parametrize(
    ("free", "reason"),
    [
        (Room(memory=7 * GB, disk=1000 * GB), "b waits for memory: it takes up to 4 GB, 3 GB are left"),
        (Room(memory=1000 * GB, disk=19 * GB), "b waits for disk: it takes up to 10 GB, 9 GB are left"),
    ],
)
def test_what_does_not_fit_beside_the_running_waits(free, reason):
    assert schedule.choose([task("b")], [task("a")], free, jobs=9) == Wait(reason=reason)
    small = task("c", memory=1, disk=1)
    assert schedule.choose([task("b"), small], [task("a")], free, jobs=9) is small


def test_memory_never_refuses_and_disk_does_before_the_time_is_spent():
    alone = task("a", memory=4)
    assert schedule.choose([alone], [], Room(memory=0, disk=1000 * GB), jobs=1) is alone
    found = schedule.choose([alone], [], Room(memory=0, disk=4 * GB), jobs=1)
    assert isinstance(found, Refusal)
    assert "a takes up to 10 GB of disk while it is built, 4 GB are free" in found.reason


def test_a_large_layer_is_waited_for_not_built_twice():
    found = schedule.choose([task("b", makes="torch"), task("c")], [task("a", makes="torch")], PLENTY, jobs=9)
    assert found == task("c")
    found = schedule.choose([task("b", makes="torch")], [task("a", makes="torch")], PLENTY, jobs=9)
    assert found == Wait(reason="b waits for layers that a builds")


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

    def result(self) -> Result:
        error = None if self.ok else KnowngoodError("no")
        return Result(cell=self.cell, status=Status.BUILT if self.ok else Status.FAILED, seconds=1, error=error)

    def interrupt(self) -> None:
        """Never asked for here."""

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(crew, "_PAUSE", 0)
    Fake.running = Fake.most = 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("memory", "most"), [(5, 1), (9, 2), (1000, 6)])
def test_thirty_cells_with_memory_for_one_come_out_one_after_the_other(memory, most):
    tasks = [task(f"c{number}", disk=0) for number in range(30)]
    room = Room(memory=memory * GB, disk=1000 * GB)
    said: list[str] = []
    results = list(crew.work(tasks, lambda item: Fake(item.cell), lambda: room, jobs=6, say=said.append))
    assert {item.cell for item in results} == {item.cell for item in tasks}
    assert Fake.most == most
    assert most == 6 or any("waits for memory" in line for line in said)


@pytest.mark.usefixtures("quick")
def test_one_that_fails_does_not_stop_the_others():
    tasks = [task("a"), task("b"), task("huge", disk=10_000)]
    results = list(crew.work(tasks, lambda item: Fake(item.cell, ok=item.cell != "a"), lambda: PLENTY, jobs=1, say=len))
    assert {item.cell: item.status for item in results} == {
        "a": Status.FAILED,
        "b": Status.BUILT,
        "huge": Status.FAILED,
    }
    assert next(item for item in results if item.cell == "huge").error.exit_code == 4


@pytest.mark.usefixtures("quick")
def test_an_interruption_stops_what_runs():
    works: list[Fake] = []

    def start(item: Task) -> Fake:
        if works:
            raise KeyboardInterrupt
        works.append(Fake(item.cell))
        return works[0]

    with pytest.raises(KeyboardInterrupt):
        list(crew.work([task("a"), task("b")], start, lambda: PLENTY, jobs=2, say=len))
    assert works[0].stopped


def child(tmp_path, monkeypatch, code: str) -> Result:
    """The result of a cell's process that runs this instead of the program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(crew.sys, "executable", str(program))
    work = crew.Child(FA4, ["build", FA4], tmp_path)
    deadline = time.monotonic() + 10
    while not work.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    return work.result()


def test_a_process_says_how_its_cell_came_out(tmp_path, monkeypatch, capsys):
    said = Result(cell=FA0, status=Status.FAILED, seconds=2.0, tier=Tier.BUILT, note="n", error=KnowngoodError("why"))
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
    assert (found.cell, found.status) == (FA4, Status.FAILED)
    assert why in str(found.error)


def test_a_process_that_is_asked_to_end_says_no_more(tmp_path, monkeypatch, capsys):
    program = tmp_path / "python"
    waits = "signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))\nprint('on', file=sys.stderr, flush=True)"
    program.write_text(f"#!{sys.executable}\nimport signal, sys, time\n{waits}\ntime.sleep(60)\n")
    program.chmod(0o755)
    monkeypatch.setattr(crew.sys, "executable", str(program))
    work = crew.Child(FA4, ["build", FA4], tmp_path)
    deadline = time.monotonic() + 10
    said = ""
    while not said and time.monotonic() < deadline:
        said += capsys.readouterr().err
    work.interrupt()
    work.interrupt()
    while not work.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert work.result().status is Status.FAILED
    assert (said, capsys.readouterr().err) == ("on\n", "")


HOLD = """
from knowngood.building import ownership
with ownership.held("c", wait=True, say=print):
    print("got", flush=True)
    input()
"""
KILLED = """
import os
from knowngood import paths
with paths.scratch() as folder:
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


def test_who_has_a_cell_is_said(holder):
    with pytest.raises(ownership.HeldError) as caught, ownership.held("c", wait=False, say=print):
        pass
    assert f"process {holder.pid} on " in str(caught.value)
    assert "since 20" in str(caught.value)
    with ownership.held("another", wait=False, say=print):
        pass


def test_the_next_waits_and_a_killed_holder_lets_go(holder):
    said: list[str] = []
    timer = threading.Timer(0.5, holder.kill)
    timer.start()
    with ownership.held("c", wait=True, say=said.append):
        assert json.loads((cache_dir() / "locks/c.json").read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert str(holder.pid) in said[0]
    assert not (cache_dir() / "locks/c.json").exists()


def test_what_a_killed_run_left_is_cleared_and_what_lives_is_not():
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    (left,) = (cache_dir() / "scratch").iterdir()
    with paths.scratch() as mine:
        assert not left.exists()
        with paths.scratch() as other:
            assert mine.is_dir()
            assert other != mine
            assert oct(mine.stat().st_mode)[-3:] == "700"
    assert not list((cache_dir() / "scratch").iterdir())


def test_cells_that_share_are_ordered_before(home, lock_of):
    from knowngood.building import planning, survey
    from knowngood.cell import parse

    for cell in (FA4, FA0):
        lock_of(cell)
    asked = survey.asked(home, [parse(FA4), parse(FA0)], home.root)
    assert [item.cell for item in planning.order(list(asked), Holdings())] == [FA4, FA0]
    assert A.shape.making == B.shape.making
