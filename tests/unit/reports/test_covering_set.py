"""The covering set: every pair that any cell has, in fewer combinations than there are."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import FA2, FA4

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.pair_coverage import list_value_pairs
from knowngood.reports.nightly_plan import find_covering_set


def cell(gpu, torch, transformers):
    return Cell(gpu=gpu, cuda="13.0", torch=torch, transformers=transformers, triton="3.6.0", python="3.11")


GPUS = ("sm_70", "sm_75", "sm_80", "sm_90")
WHOLE = [cell(*values) for values in itertools.product(GPUS, ("2.10.0", "2.11.0", "2.12.0"), ("4.57.6", "5.0.0"))]


def rows(chosen):
    return {(one.gpu, one.torch, one.transformers, setting) for one, names in chosen.items() for setting in names}


def covered(made):
    return list_value_pairs(
        [(one.gpu, one.torch, one.transformers, setting) for name, setting in made.rows for one in [parse_cell(name)]]
    )


def test_a_full_product_is_covered_by_far_fewer():
    chosen = dict.fromkeys(WHOLE, ("eager", "sdpa", "flex"))
    made = find_covering_set(chosen)
    assert covered(made) == list_value_pairs(list(rows(chosen)))
    assert made.combinations == len(WHOLE) * 3
    assert len(made.rows) < made.combinations / 3
    assert len(made.cells) < len(WHOLE)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=8, unique=True), st.data())
def test_all_pairs_are_covered_by_existing_cells(some, data):
    names = st.lists(st.sampled_from(["eager", "sdpa", "fa2"]), min_size=1, max_size=3, unique=True)
    chosen = {one: data.draw(names) for one in some}
    made = find_covering_set(chosen)
    assert set(made.rows) <= {(str(one), name) for one, listed in chosen.items() for name in listed}
    assert covered(made) == list_value_pairs(list(rows(chosen)))


def test_one_cell_has_all_its_settings():
    made = find_covering_set({parse_cell(FA4): ["eager", "fa4"]})
    assert made.rows == ((FA4, "eager"), (FA4, "fa4"))


def test_a_setting_stays_with_the_cells_that_have_it():
    made = find_covering_set({parse_cell(FA4): ["eager", "fa4"], parse_cell(FA2): ["eager", "fa2"]})
    assert (FA2, "fa4") not in made.rows
    assert made.cells == {FA2, FA4}
