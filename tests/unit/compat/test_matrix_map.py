"""The map on the real facts: it agrees with `pick`, counts every point once, and its cover has every possible pair."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knowngood.compat import knowledge
from knowngood.compat.matrix_cells import PublishedCells
from knowngood.compat.matrix_map import MAP_AXES, STATE_LETTERS, PointState, build_matrix_map, list_map_values
from knowngood.compat.pick_answer import pick_cells
from knowngood.compat.query import Query, parse_requirement
from knowngood.compat.query_placement import FOREIGN_HOST
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.pair_coverage import list_value_pairs
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.observed_run import RecordedRun
from knowngood.evidence.run_evidence import RunPlace, SettingObservation

KNOWN = knowledge.load_knowledge()
UNIVERSE = KNOWN.universe
VALUES = list_map_values(UNIVERSE)
MAP = build_matrix_map(UNIVERSE, KNOWN.published.cells, {})
CELL = parse_cell("sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311")
PLACE = ("sm_90", "2.11.0", "4.57.6")


def standing(outcomes: dict[str, str], sm: str | None, where: RunPlace = RunPlace.CONTAINER_CPU) -> CellStanding:
    run = RecordedRun(
        file="x",
        when="2026-11-20T00:00:00+00:00",
        where=RunPlace.CONTAINER_GPU if sm and where is not RunPlace.BARE else where,
        image="x",
        suite="0",
        gpu=sm and "a GPU",
        sm=sm,
        ok=True,
        domain="none",
        quick=False,
        verdict="",
        outcomes=outcomes,
    )
    return CellStanding(run=run, settings={name: SettingObservation(outcome=text) for name, text in outcomes.items()})


def map_of(cell: Cell, *standings: CellStanding, cells: tuple[Cell, ...] = ()):
    return build_matrix_map(UNIVERSE, cells, {str(cell): item for item in standings})


def test_the_axes_have_the_newest_release_of_each_minor_release():
    assert VALUES["torch"][-5:] == ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
    assert {"4.57.6", "5.15.1"} <= set(VALUES["transformers"])
    assert not {"4.57.5", "5.15.0", "5.0.0rc3"} & set(VALUES["transformers"])
    assert set(VALUES["gpu"]) == set(UNIVERSE.gpus.names)


@settings(max_examples=150)
@given(st.tuples(*(st.sampled_from(VALUES[name]) for name in MAP_AXES)))
def test_a_point_is_possible_when_pick_finds_a_cell(point):
    gpu, torch, transformers, attn = point
    pins = [parse_requirement(f"torch=={torch}"), parse_requirement(f"transformers=={transformers}")]
    answer = pick_cells(
        UNIVERSE, Query(gpu=gpu, attn=attn, packages=tuple(filter(None, pins))), PublishedCells(), count=1
    )
    assert bool(answer.choices) is (point not in MAP.reasons)


def test_every_point_is_counted_once_and_every_excluded_one_has_its_rules():
    document = MAP.document()
    assert sum(document["counts"].values()) == document["points"] == len(MAP.states)
    letters = Counter(
        letter for grids in document["states"].values() for grid in grids.values() for letter in "".join(grid)
    )
    assert {STATE_LETTERS[PointState(state)]: count for state, count in document["counts"].items() if count} == letters
    ids = {FOREIGN_HOST, *(box.rule.id for box in UNIVERSE.index.boxes)}
    assert all(rules and ids.issuperset(rules) for rules in document["reasons"])
    assert {item["id"] for item in document["rules"]} == {rule for rules in document["reasons"] for rule in rules}
    (excluded,) = {
        len([point for point in MAP.states if point in MAP.reasons]),
        document["counts"]["excluded"] + len(document["contradictions"]),
        sum(
            number >= 0
            for grids in document["excluded_by"].values()
            for grid in grids.values()
            for row in grid
            for number in row
        ),
    }
    assert 0 < excluded < document["points"]


def test_a_point_is_found_in_the_grids_by_its_axes():
    document = MAP.document()
    gpus, torches, releases, _ = (document["axes"][name] for name in MAP_AXES)
    assert "sm_70" in gpus
    row = document["states"]["sm_70"]["sdpa"][torches.index("2.11.0")]
    assert row == "x" * len(releases)
    number = document["excluded_by"]["sm_70"]["sdpa"][torches.index("2.11.0")][releases.index("4.57.6")]
    assert document["reasons"][number] == ["torch-runs-on-gpu"]


def test_the_cover_has_every_possible_pair_with_few_possible_points():
    assert set(MAP.cover) <= set(MAP.possible)
    assert list_value_pairs(MAP.cover) == list_value_pairs(MAP.possible)
    assert MAP.least_cover <= len(MAP.cover) < 1.2 * MAP.least_cover
    assert MAP.pairs == len(list_value_pairs(MAP.possible))


def test_what_no_run_saw_is_in_the_matrix_or_only_possible():
    empty = map_of(CELL)
    assert set(empty.states.values()) == {PointState.POSSIBLE, PointState.EXCLUDED}
    with_cell = map_of(CELL, cells=(CELL,))
    assert with_cell.states[*PLACE, "fa2"] is PointState.IN_MATRIX
    settings_there = {setting for *place, setting in with_cell.matrix if tuple(place) == PLACE}
    assert len(settings_there) == len(with_cell.matrix)
    assert "sdpa" in settings_there
    assert not {"fa4"} & settings_there


def test_a_cell_of_another_minor_release_or_architecture_is_at_its_own_point():
    old = parse_cell("sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311")
    made = map_of(old, cells=(old,))
    assert ("sm_70", "2.10.0", "4.57.6", "sdpa-efficient") in made.matrix
    assert not [point for point in made.matrix if point[3] in ("fa2", "fa4", "sdpa-flash")]
    unknown = replace(old, torch="9.9.0")
    assert map_of(unknown, standing({"sdpa": "pass"}, "sm_70"), cells=(unknown,)).matrix == frozenset()


@pytest.mark.parametrize(
    ("sm", "outcome", "state"),
    [
        ("sm_90", "pass", PointState.SEEN_ON_GPU),
        ("sm_80", "pass", PointState.IN_MATRIX),
        (None, "pass", PointState.SEEN_ON_CPU),
        ("sm_90", "refused", PointState.REFUSED),
        ("sm_90", "fail", PointState.REFUSED),
        (None, "refused", PointState.IN_MATRIX),
        ("sm_90", "not-run", PointState.POSSIBLE),
    ],
)
def test_what_a_run_saw_is_the_state_of_its_point(sm, outcome, state):
    made = map_of(CELL, standing({"fa2": outcome}, sm), cells=(CELL,))
    assert made.states[*PLACE, "fa2"] is state


def test_an_older_release_counts_for_the_newest_of_its_minor_release():
    older = replace(CELL, transformers="4.57.1", flash_attn="0")
    made = map_of(older, standing({"eager": "pass"}, "sm_90"))
    assert made.states[*PLACE, "eager"] is PointState.SEEN_ON_GPU


def test_a_cpu_does_not_show_a_kernel_that_the_rules_know_to_be_missing_but_a_gpu_does():
    old = parse_cell("sm70-cu128-torch2.10.0-tf4.57.6-fa0-triton3.6.0-py311")
    point = ("sm_70", "2.10.0", "4.57.6", "sdpa-flash")
    on_cpu = map_of(old, standing({"sdpa-flash": "pass"}, None))
    assert on_cpu.states[point] is PointState.EXCLUDED
    assert on_cpu.contradictions == []
    on_gpu = map_of(old, standing({"sdpa-flash": "pass"}, "sm_70"))
    assert on_gpu.states[point] is PointState.SEEN_ON_GPU
    assert on_gpu.contradictions == [point]
