"""A new release, judged with the real facts: which cells it fits, what it breaks, what `pick` makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import MissingError
from knowngood.lock.resolver import NoSolutionError
from knowngood.project.checkout import find_project, read_matrix_text
from knowngood.project.core_facts import load_matrix_facts
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckVerdict
from knowngood_facts.facts.broken_use_table import BrokenUse, UseFailure
from knowngood_facts.reports import index_changes
from knowngood_facts.reports.index_changes import CellProposal, ReleaseVerdict, UpstreamRelease
from knowngood_facts.reports.new_breaks import NewBreak

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
    made = index_changes.propose_cells(KNOWN, release, ["sm_90"])["sm_90"]
    assert (made.cell.gpu, made.cell.transformers) == ("sm_90", "5.0.0")


def test_the_cell_of_a_trainer_without_facts_has_the_trainer():
    release = UpstreamRelease(package="trl", version="1.16.0")
    made = index_changes.propose_cells(KNOWN, release, ["sm_90"])["sm_90"]
    assert made.cell.framework_pin == ("trl", "1.16.0")


def test_a_release_without_a_cell_has_a_reason():
    release = UpstreamRelease(package="flash-attn-4", version="4.0.0b36")
    made = index_changes.propose_cells(KNOWN, release, ["sm_70"])["sm_70"]
    assert made.cell is None
    assert made.note
    assert index_changes.lock_proposal(made, "", None, "2026-11-20") is made


@pytest.mark.parametrize(
    ("answer", "locks", "note"),
    [
        (["a", "b"], True, "locks with 2 distributions"),
        (NoSolutionError("nothing satisfies it"), False, "nothing satisfies it"),
        (MissingError("no answer"), None, "no answer"),
    ],
)
def test_a_proposed_cell_is_resolved_with_the_releases_up_to_a_day(monkeypatch, answer, locks, note):
    asked = []

    def resolve(request):
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(index_changes, "resolve_distributions", resolve)
    cell = replace(CELL, transformers="5.16.0")
    made = CellProposal(cell=cell, extras=("trl==1.16.0",))
    locked = index_changes.lock_proposal(made, read_matrix_text(find_project().root), load_matrix_facts(), "2026-11-27")
    assert (locked.cell, locked.locks, locked.note) == (cell, locks, note)
    (request,) = asked
    assert request.locked_at == "2026-11-27"
    assert {"transformers==5.16.0", "trl==1.16.0", "accelerate"} <= set(request.requirements)


def test_a_cell_that_the_matrix_has_or_no_base_can_have_is_not_resolved():
    text, facts = read_matrix_text(find_project().root), load_matrix_facts()
    notes = [
        index_changes.lock_proposal(CellProposal(cell=cell), text, facts, "2026-11-27").note
        for cell in (CELL, replace(CELL, python="3.14"))
    ]
    assert notes == ["matrix.yaml has it", "no base of matrix.yaml has Python 3.14"]


def test_the_axis():
    made = index_changes.compare_axis(
        "transformers", ["4.57.6", "5.9.0", "5.10.0", "6.0.0rc1"], [CELL, OLD], ["6.0.0rc1", "5.10.0"]
    )
    assert (made.newest, made.in_cells, made.new) == ("5.10.0", "4.57.6", ("5.10.0", "6.0.0rc1"))
    assert index_changes.list_axis_packages([OLD])[-1] == "xtuner"


@pytest.mark.parametrize(
    ("declared", "stops", "severity", "words"),
    [
        (False, True, "warning", "breaks: app 1.0 with torch 2.99.0: app uses torch:old"),
        (True, True, "info", "(its metadata excludes that)"),
        (False, False, "warning", "fails in part"),
    ],
)
def test_the_finding_names_fits_breaks_and_broken_pairs(declared, stops, severity, words):
    release = UpstreamRelease(package="torch", version="2.99.0")
    seen = [
        ReleaseVerdict(cell="a", verdict=CheckVerdict.COMPATIBLE, ids=()),
        ReleaseVerdict(cell="b", verdict=CheckVerdict.BROKEN, ids=("rule-x",)),
        ReleaseVerdict(cell="c", verdict=CheckVerdict.UNKNOWN, ids=()),
    ]
    use = BrokenUse(
        module="app",
        target="torch:old",
        failure=UseFailure.NAME,
        detail="",
        place="",
        callers=1,
        reached=int(stops),
        callees=1,
    )
    pair = {"app": "1.0", "torch": "2.99.0"}
    broken = [
        NewBreak(pair=pair, imports=(use,), stops=stops, functions=0, declared=declared),
        NewBreak(pair=pair, imports=(), stops=False, functions=2, declared=False),
    ]
    proposals = [CellProposal(cell=CELL, locks=True, note="locks"), CellProposal(cell=None, note="too old")]
    found = index_changes.release_finding(release, seen, proposals, broken)
    assert found.severity == severity
    assert "fits 1 of 3 cells" in found.text
    assert found.text.endswith(f"pick makes {CELL}: locks; pick makes none: too old; breaks 1 (rule-x)")
    assert words in found.text
    assert "; 2 functions of other packages fail when they run; pick makes" in found.text
    assert found.cells == ("a",)
