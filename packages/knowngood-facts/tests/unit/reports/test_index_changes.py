"""A new release, judged with the real facts: which cells it fits, what it breaks, what `pick` makes of it."""

from __future__ import annotations

import pytest

from knowngood.core.cell import parse_cell
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckVerdict
from knowngood_facts.reports import index_changes
from knowngood_facts.reports.index_changes import ReleaseVerdict, UpstreamRelease

KNOWN = knowledge.load_knowledge()
CELL = parse_cell("sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311")
OLD = parse_cell("sm90-cu124-torch2.5.1-tf4.42.4-fa0-triton3.1.0-py39-xtuner0.1.23")


def judge(package, version, *cells):
    return index_changes.judge_release(
        KNOWN.universe, KNOWN.published, UpstreamRelease(package=package, version=version), cells
    )


def test_a_release_that_fits_takes_the_place_of_a_cells_own():
    (found,) = judge("transformers", "5.17.0", CELL)
    assert (found.cell, found.verdict) == (str(CELL), CheckVerdict.COMPATIBLE)


def test_another_torch_brings_its_own_triton():
    (found,) = judge("torch", "2.10.0", CELL)
    assert found.verdict in (CheckVerdict.COMPATIBLE, CheckVerdict.VERIFIED)


def test_a_release_that_breaks_a_cell_says_by_which_rule():
    (found,) = judge("transformers", "5.17.0", OLD)
    assert found.verdict is CheckVerdict.BROKEN
    assert found.ids


def test_a_package_that_no_cell_has_gives_no_verdicts():
    assert judge("flash-attn", "2.8.3", CELL) == []


def test_pick_makes_a_cell_of_a_release():
    release = UpstreamRelease(package="transformers", version="5.0.0")
    made = index_changes.propose_cells(KNOWN.universe, KNOWN.published, release, ["sm_90"])
    assert "-tf5.0.0-" in made["sm_90"]
    assert made["sm_90"] == str(parse_cell(made["sm_90"]))


def test_a_release_without_a_cell_has_a_reason():
    release = UpstreamRelease(package="flash-attn-4", version="4.0.0b36")
    made = index_changes.propose_cells(KNOWN.universe, KNOWN.published, release, ["sm_70"])
    assert made["sm_70"].startswith("none: ")


def test_the_axis():
    made = index_changes.compare_axis(
        "transformers", ["4.57.6", "5.9.0", "5.10.0", "6.0.0rc1"], [CELL, OLD], ["6.0.0rc1", "5.10.0"]
    )
    assert (made.newest, made.in_cells, made.new) == ("5.10.0", "4.57.6", ("5.10.0", "6.0.0rc1"))
    assert index_changes.list_axis_packages([OLD])[-1] == "xtuner"


@pytest.mark.parametrize(
    ("broken", "severity"), [({}, "info"), ({"xtuner 0.1.23": "xtuner.model uses torch:gone"}, "warning")]
)
def test_the_finding_names_fits_breaks_and_broken_callers(broken, severity):
    release = UpstreamRelease(package="torch", version="2.99.0")
    seen = [
        ReleaseVerdict(cell="a", verdict=CheckVerdict.COMPATIBLE, ids=()),
        ReleaseVerdict(cell="b", verdict=CheckVerdict.BROKEN, ids=("rule-x",)),
        ReleaseVerdict(cell="c", verdict=CheckVerdict.UNKNOWN, ids=()),
    ]
    found = index_changes.release_finding(release, seen, {"sm_90": "new-cell", "sm_70": "none: too old"}, broken)
    assert found.severity == severity
    assert "fits 1 of 3 cells" in found.text
    assert found.text.endswith("pick makes new-cell; breaks 1 (rule-x)")
    assert found.cells == ("a",)
    assert all(name in found.text for name in broken)
