"""A new release on the real facts: which cells it fits, what it breaks, what `pick` makes of it."""

from __future__ import annotations

import pytest

from knowngood.cell import parse
from knowngood.nightly import upstream
from knowngood.nightly.upstream import Met, Release
from knowngood.solving import knowledge
from knowngood.solving.verdict import Verdict

KNOWN = knowledge.read()
CELL = parse("sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311")
OLD = parse("sm90-cu124-torch2.5.1-tf4.42.4-fa0-triton3.1.0-py39-xtuner0.1.23")


def met(package, version, *cells):
    return upstream.met(KNOWN.universe, KNOWN.published, Release(package=package, version=version), cells)


def test_a_release_that_fits_takes_the_place_of_a_cells_own():
    (found,) = met("transformers", "5.17.0", CELL)
    assert (found.cell, found.verdict) == (str(CELL), Verdict.COMPATIBLE)


def test_another_torch_brings_its_own_triton():
    (found,) = met("torch", "2.10.0", CELL)
    assert found.verdict in (Verdict.COMPATIBLE, Verdict.VERIFIED)


def test_a_release_that_breaks_a_cell_says_by_which_rule():
    (found,) = met("transformers", "5.17.0", OLD)
    assert found.verdict is Verdict.BROKEN
    assert found.ids


def test_a_package_that_no_cell_has_meets_nothing():
    assert met("flash-attn", "2.8.3", CELL) == []


def test_what_pick_makes_of_a_release():
    release = Release(package="transformers", version="5.0.0")
    made = upstream.proposed(KNOWN.universe, KNOWN.published, release, ["sm_90"])
    assert "-tf5.0.0-" in made["sm_90"]
    assert made["sm_90"] == str(parse(made["sm_90"]))


def test_what_nothing_can_be_made_of_has_a_reason():
    release = Release(package="flash-attn-4", version="4.0.0b36")
    made = upstream.proposed(KNOWN.universe, KNOWN.published, release, ["sm_70"])
    assert made["sm_70"].startswith("none: ")


def test_the_axis():
    made = upstream.axis("transformers", ["4.57.6", "5.9.0", "5.10.0", "6.0.0rc1"], [CELL, OLD], ["6.0.0rc1", "5.10.0"])
    assert (made.newest, made.in_cells, made.new) == ("5.10.0", "4.57.6", ("5.10.0", "6.0.0rc1"))
    assert upstream.packages([OLD])[-1] == "xtuner"


@pytest.mark.parametrize(
    ("contracts", "severity"), [({}, "info"), ({"xtuner-calls": "with xtuner 0.1.23: AttributeError"}, "warning")]
)
def test_a_finding_says_all_of_it(contracts, severity):
    release = Release(package="torch", version="2.99.0")
    seen = [
        Met(cell="a", verdict=Verdict.COMPATIBLE, ids=()),
        Met(cell="b", verdict=Verdict.BROKEN, ids=("rule-x",)),
        Met(cell="c", verdict=Verdict.UNKNOWN, ids=()),
    ]
    found = upstream.finding(release, seen, {"sm_90": "new-cell", "sm_70": "none: too old"}, contracts)
    assert found.severity == severity
    assert "fits 1 of 3 cells" in found.text
    assert found.text.endswith("pick makes new-cell; breaks 1 (rule-x)")
    assert found.cells == ("a",)
    assert all(name in found.text for name in contracts)
