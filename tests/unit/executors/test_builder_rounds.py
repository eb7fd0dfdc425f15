"""The rounds of bakes on several builders: what comes first, lost builders, failures, and the end."""

from __future__ import annotations

import pytest
from builder_samples import FakeFleet, image_build, layer_tags

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.images.cell_tasks import CellStatus

MB = 10**6
CELLS = [image_build(number, torch=500 * MB, cudnn=300 * MB, **{f"own_{number}": 10}) for number in range(4)]
NAMES = [cell.name for cell in CELLS]


@pytest.fixture
def fleet():
    return FakeFleet()


def statuses(results):
    return {name: result.status for name, result in results.items()}


def cell_bakes(fleet):
    return [(builder, builds) for builder, builds in fleet.bakes if set(builds) <= set(NAMES)]


def test_each_shared_layer_is_built_once_before_the_cells_and_everything_is_divided(fleet):
    results = fleet.run(CELLS, a=8, b=8)
    assert statuses(results) == dict.fromkeys(NAMES, CellStatus.BUILT)
    foundation, *layers = fleet.bakes[:3]
    assert foundation[1] == ["venv"]
    assert sorted(layers) == [("a", ["torch"]), ("b", ["cudnn"])]
    assert sorted(len(builds) for _, builds in cell_bakes(fleet)) == [2, 2]
    assert {builder for builder, _ in cell_bakes(fleet)} == {"a", "b"}
    assert {results[name].note for name in NAMES} == {"built by a", "built by b"}


def test_one_builder_makes_the_layers_with_the_cells_and_no_bake_is_larger_than_its_room(fleet):
    results = fleet.run(CELLS, a=3)
    assert [len(builds) for _, builds in fleet.bakes] == [3, 1]
    assert statuses(results) == dict.fromkeys(NAMES, CellStatus.BUILT)


def test_what_the_registry_has_is_not_built_again(fleet):
    fleet.tags = {cell.tags[0] for cell in CELLS[:3]}
    results = fleet.run(CELLS, a=8, b=8)
    assert [builds for _, builds in fleet.bakes] == [[NAMES[3]]]
    assert [results[name].image.built for name in NAMES] == [False, False, False, True]
    assert [results[name].note for name in NAMES[:2]] == ["", ""]


def test_the_work_of_a_lost_builder_moves_to_the_others(fleet):
    fleet.kills = {NAMES[1]: "b"}
    results = fleet.run(CELLS, a=8, b=8)
    assert statuses(results) == dict.fromkeys(NAMES, CellStatus.BUILT)
    (begun,) = [builds for builder, builds in cell_bakes(fleet) if builder == "b"]
    assert {results[name].note for name in begun} == {"begun by b, which stopped answering; built by a"}
    (message,) = [line for line in fleet.messages if line.startswith("builder b stopped answering")]
    assert message.endswith("its unfinished tasks move to a")


def test_a_builder_lost_with_a_shared_layer_costs_nothing_but_that_layer(fleet):
    fleet.kills = {"torch": "a"}
    results = fleet.run(CELLS, a=8, b=8)
    assert statuses(results) == dict.fromkeys(NAMES, CellStatus.BUILT)
    assert {result.note for result in results.values()} == {"built by b"}


def test_bakes_that_a_lost_builder_has_not_begun_are_not_said_to_be_begun(fleet):
    cells = [image_build(number) for number in range(4)]
    fleet.tags = layer_tags(cells)
    fleet.kills = {cells[0].name: "a"}
    results = fleet.run(cells, a=1, b=1)
    assert statuses(results) == dict.fromkeys(NAMES, CellStatus.BUILT)
    assert sum("begun by a" in result.note for result in results.values()) == 1


def test_without_any_builder_left_each_cell_fails_with_the_reason(fleet):
    fleet.kills = dict.fromkeys(NAMES, "a")
    results = fleet.run(CELLS, a=1)
    assert {result.error.exit_code for result in results.values()} == {4}
    assert "no builder is left" in str(results[NAMES[3]].error)


def test_a_build_moves_when_the_builder_lacks_something(fleet):
    full = MissingError("the disk is full")
    fleet.fails = {(NAMES[0], "a"): full, (NAMES[1], "a"): full, (NAMES[1], "b"): full}
    results = fleet.run(CELLS, a=8, b=8)
    assert results[NAMES[0]].note == "built by b"
    assert str(results[NAMES[1]].error) == "the disk is full"
    assert results[NAMES[1]].error.exit_code == 4
    assert {results[name].status for name in NAMES[2:]} == {CellStatus.BUILT}


def test_a_wrong_content_is_final_and_the_cancelled_builds_are_tried_again(fleet):
    fleet.fails = {(NAMES[0], name): KnowngoodError("hash mismatch (log: /l)") for name in "ab"}
    results = fleet.run(CELLS, a=8, b=8)
    assert str(results[NAMES[0]].error) == "hash mismatch (log: /l)"
    assert sum(NAMES[0] in builds for _, builds in fleet.bakes) == 1
    assert {results[name].status for name in NAMES[1:]} == {CellStatus.BUILT}


def test_a_failed_layer_fails_only_the_cells_that_need_it(fleet):
    fleet.fails = {("cudnn", name): KnowngoodError("hash mismatch") for name in "ab"}
    other = image_build(4, torch=500 * MB)
    results = fleet.run([*CELLS, other], a=8, b=8)
    assert results[other.name].status is CellStatus.BUILT
    assert {str(results[name].error) for name in NAMES} == {"it needs cudnn, which was not built: hash mismatch"}


def test_a_registry_that_fails_once_does_not_end_the_run(fleet, monkeypatch):
    def bake(builder, _builds):
        if builder == "a":
            raise MissingError("the registry does not answer")
        return {}

    monkeypatch.setattr(fleet, "bake", bake)
    fleet.tags = layer_tags(CELLS)
    results = fleet.run(CELLS, a=8, b=8)
    assert {result.note for result in results.values()} == {"built by b"}


def test_an_error_of_the_program_stops_all_builds(fleet, monkeypatch):
    def bake(builder, _builds):
        if builder == "a":
            raise ZeroDivisionError
        assert fleet.stop.wait(30), "the other builder is told to stop"
        return {}

    monkeypatch.setattr(fleet, "bake", bake)
    fleet.tags = layer_tags(CELLS)
    with pytest.raises(ZeroDivisionError):
        fleet.run(CELLS, a=8, b=8)
    assert fleet.stop.is_set()
