"""The scheduler of several builders: order, memory, lost builders and failures."""

from __future__ import annotations

from collections import Counter

import pytest
from builder_samples import GB, FakeBuilders, make_task

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors import builder_scheduler
from knowngood.images.cell_tasks import CellStatus, MachineResources


@pytest.fixture
def builders(monkeypatch):
    monkeypatch.setattr(builder_scheduler, "_POLL_SECONDS", 0)
    monkeypatch.setattr(builder_scheduler, "_ANSWER_CHECK_SECONDS", 0.01)
    return FakeBuilders()


def test_each_layer_is_built_once_before_the_cells_that_need_it(builders):
    layers = [make_task("foundation", makes=["venv"]), make_task("torch", makes=["torch"], after=["venv"])]
    cells = [make_task(f"c{number}", after=["torch", "venv"]) for number in range(4)]
    results = builders.run(cells, layers, "a", "b")
    assert {result.status for result in results.values()} == {CellStatus.BUILT}
    assert results.keys() == {item.cell for item in cells}
    names = [name for name, _ in builders.started]
    assert names[:2] == ["foundation", "torch"]
    assert sorted(names[2:]) == ["c0", "c1", "c2", "c3"]
    assert {name for _, name in builders.started[2:]} == {"a", "b"}
    assert "built by" in results["c0"].note


@pytest.mark.parametrize("fails", [False, True])
def test_an_idle_builder_makes_layers_of_single_cells(builders, fails):
    layers = [make_task("foundation", makes=["venv"]), make_task("torch", makes=["torch"], after=["venv"])]
    cells = [make_task(f"c{number}", makes=[f"own{number}"], after=["torch", "venv"]) for number in range(3)]
    early = [make_task(f"own{number}", makes=[f"own{number}"], after=["venv"]) for number in (2, 1, 0)]
    builders.fails = {("own2", name): KnowngoodError("hash mismatch") for name in ("a", "b")} if fails else {}
    results = builders.run(cells, layers, "a", "b", early=early)
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(
        ("c0", "c1", "c2"), CellStatus.BUILT
    )
    assert [name for name, _ in builders.started[:3]] == ["foundation", "torch", "own2"]
    assert builders.started[1][1] != builders.started[2][1]
    assert sorted(name for name, _ in builders.started[3:]) == ["c0", "c1", "c2"], (
        "a layer whose cell has started is not built early"
    )
    alone = FakeBuilders()
    alone.run(cells, layers, "a", early=early)
    assert [name for name, _ in alone.started] == ["foundation", "torch", "c0", "c1", "c2"]


def test_a_cell_waits_while_its_early_layer_is_built(builders):
    early = make_task("own", makes=["own"])
    shared = make_task("torch", makes=["torch"])
    results = builders.run([make_task("cell", makes=["own"], after=["torch"])], [shared], "a", "b", early=[early])
    assert builders.started[:2] == [("torch", "a"), ("own", "b")]
    assert builders.started[2][0] == "cell"
    assert results["cell"].status is CellStatus.BUILT


@pytest.mark.parametrize(("torch_checks", "stopped"), [(42, True), (46, False)])
def test_an_early_layer_that_has_just_begun_is_stopped_when_other_work_is_ready(builders, torch_checks, stopped):
    layers = [make_task("torch", makes=["torch"], disk=500), make_task("cudnn", makes=["cudnn"], disk=300)]
    early = [make_task(f"own{number}", makes=[f"own{number}"], disk=150) for number in (0, 1)]
    makes = {"c0": ["own0"], "c1": [], "c2": ["own1"], "c3": []}
    cells = [make_task(name, makes=some, after=["torch", "cudnn"]) for name, some in makes.items()]
    builders.checks = {"torch": torch_checks, "cudnn": 24, "own0": 12, "own1": 12}
    results = builders.run(cells, layers, "a", "b", early=early)
    assert [name for name, _ in builders.started[:4]] == ["torch", "cudnn", "own0", "own1"]
    assert {name: result.status for name, result in results.items()} == {item.cell: CellStatus.BUILT for item in cells}
    assert ("b leaves own1 to the build of its cell: other work is ready" in builders.messages) is stopped
    order = builders.started[4:]
    if stopped:
        assert order == [("c0", "a"), ("c2", "b"), ("c1", "a"), ("c3", "b")], (
            "b first builds the cell of the layer that it stopped"
        )
    else:
        assert [name for name, _ in order] == ["c0", "c1", "c2", "c3"]
        assert [by for _, by in order[:2]] == ["a", "a"], "b finishes a layer that is half done"


def test_tasks_at_once_are_limited_and_builders_on_one_machine_share_its_memory(builders):
    cells = [make_task(f"c{number}") for number in range(6)]
    builders.run(cells, [], "a", "b", jobs=2)
    assert builders.most_running == {"a": 2, "b": 2}
    tight = FakeBuilders()
    tight.run(cells, [], "a", "b", free=MachineResources(memory=3 * GB, disk=0), machine="one")
    assert sum(tight.most_running.values()) == 1, "the memory is enough for one build"


def test_a_heavy_task_goes_to_the_builder_with_enough_memory(builders):
    free = {"small": MachineResources(memory=3 * GB, disk=0), "big": MachineResources(memory=100 * GB, disk=0)}
    builders.run(
        [make_task("heavy", memory=50), make_task("heavier", memory=60), make_task("light")],
        [],
        "small",
        "big",
        free=free,
    )
    assert builders.started == [("heavy", "big"), ("light", "small"), ("heavier", "big")]


def test_a_lost_builder_is_reported_and_its_cells_move_to_the_others(builders):
    builders.kills = {"c0": "a"}
    results = builders.run([make_task("c0"), make_task("c1"), make_task("c2")], [], "a", "b")
    assert {result.status for result in results.values()} == {CellStatus.BUILT}
    assert ("c0", "b") in builders.started
    assert results["c0"].note == "begun by a, which stopped answering; built by b"
    assert any(line.startswith("builder a stopped answering") and "move to b" in line for line in builders.messages)
    assert not [name for name, by in builders.started[3:] if by == "a"]


def test_all_tasks_of_a_lost_builder_are_done_once_by_the_others(builders):
    builders.kills = {"c0": "a"}
    results = builders.run([make_task(f"c{number}") for number in range(5)], [], "a", "b", jobs=3)
    assert {result.status for result in results.values()} == {CellStatus.BUILT}
    assert [by for name, by in builders.started if name == "c0"] == ["a", "b"]
    assert max(Counter(name for name, by in builders.started if by == "b").values()) == 1


def test_a_builder_that_misses_answers_is_given_up_and_its_tasks_are_stopped(builders, monkeypatch):
    start = builders.start

    def hang(task, builder):
        work = start(task, builder)
        if builder.name == "a":
            builders.dead.add("a")
            monkeypatch.setattr(work, "done", lambda: False)
        return work

    monkeypatch.setattr(builders, "start", hang)
    results = builders.run([make_task("c0"), make_task("c1")], [], "a", "b")
    assert {result.status for result in results.values()} == {CellStatus.BUILT}
    assert builders.stopped == ["c0"]


def test_when_all_builders_are_lost_each_cell_fails_with_the_reason(builders):
    builders.kills = {"c0": "a"}
    results = builders.run([make_task("c0"), make_task("c1")], [], "a")
    assert {result.error.exit_code for result in results.values()} == {4}
    assert "no builder is left" in str(results["c1"].error)


def test_a_task_moves_when_the_builder_lacks_something_but_a_wrong_hash_is_final(builders):
    builders.fails = {
        ("full", "a"): MissingError("the disk is full"),
        ("full", "b"): MissingError("the disk is full"),
        ("half", "a"): MissingError("the disk is full"),
        ("half", "b"): MissingError("the disk is full"),
        ("bad", "a"): KnowngoodError("hash mismatch"),
        ("bad", "b"): KnowngoodError("hash mismatch"),
    }
    results = builders.run([make_task("full"), make_task("half"), make_task("bad")], [], "a", "b", "c")
    assert (results["half"].status, results["full"].status) == (CellStatus.BUILT, CellStatus.BUILT)
    builders.fails |= {("full", "c"): MissingError("the disk is full")}
    builders.started.clear()
    results = builders.run([make_task("full"), make_task("bad")], [], "a", "b", "c")
    assert results["full"].error.exit_code == 4
    assert sorted(by for name, by in builders.started if name == "full") == ["a", "b", "c"]
    assert len([by for name, by in builders.started if name == "bad"]) == 1


def test_a_failed_layer_fails_only_the_cells_that_need_it(builders):
    builders.fails = {("torch", name): KnowngoodError("hash mismatch") for name in "ab"}
    layers = [make_task("torch", makes=["torch"])]
    results = builders.run([make_task("c0", after=["torch"]), make_task("c1")], layers, "a", "b")
    assert results["c1"].status is CellStatus.BUILT
    assert str(results["c0"].error) == "it needs torch, which was not built: hash mismatch"
