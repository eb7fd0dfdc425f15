"""One answer about a cell: its errors by rules, what matrix.yaml waives, and the state of each attention setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell, parse_cell
from knowngood.evidence.cell_answer import (
    SettingStateKind,
    answer_about_cell,
    describe_tier,
    explain_tier,
    setting_state,
)
from knowngood.evidence.cell_standing import CellStanding
from knowngood.evidence.observed_run import RecordedRun
from knowngood.evidence.run_evidence import RunPlace, SettingObservation, Tier
from knowngood.project.checkout import find_project
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.cell_judgement import find_cell_errors, judge_cell, judge_setting
from knowngood_facts.compat.check_answer import CheckVerdict, check_query
from knowngood_facts.compat.matrix_cells import values_of_cell, waivers_from_matrix
from knowngood_facts.compat.pick_answer import pick_cells
from knowngood_facts.compat.query import PackageSpec, Query
from knowngood_facts.compat.universe import build_universe
from knowngood_facts.compat.waivers import Waiver

KNOWN = knowledge.load_knowledge()
HOPPER = parse_cell("sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311")
T4 = parse_cell("sm75-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311")
OLD_GPU = parse_cell("sm70-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311")
OPENRLHF = next(cell for cell in KNOWN.published.cells if "openrlhf" in str(cell))


def standing(sm=None, place=RunPlace.CONTAINER_CPU, **settings):
    """The standing of a cell with one run that observed these settings."""
    observed = {name.replace("_", "-"): SettingObservation(**item) for name, item in settings.items()}
    run = RecordedRun(
        file="x.json",
        when="2026-11-22T00:00:00+00:00",
        where=place,
        image=None,
        suite="5" * 64,
        gpu=sm and "NVIDIA",
        sm=sm,
        ok=True,
        domain="none",
        quick=False,
        verdict="",
        outcomes={name: item.outcome for name, item in observed.items()},
    )
    return CellStanding(proven=Tier.TRAINS_ON_CPU, count=1, run=run, settings=observed)


def states(cell, how):
    return answer_about_cell(judge_cell(KNOWN.universe, cell), cell, how, locked=True).settings


@pytest.mark.parametrize(
    ("outcome", "kind", "trains"),
    [
        ("pass", SettingStateKind.SEEN_ON_GPU, True),
        ("refused", SettingStateKind.REFUSED, False),
        ("fail", SettingStateKind.WRONG, False),
        ("not-run", SettingStateKind.NOT_RUN, False),
    ],
)
def test_a_run_on_the_gpu_decides(outcome, kind, trains):
    how = standing("sm_90", RunPlace.CONTAINER_GPU, fa2={"outcome": outcome, "message": "its words"})
    state = states(HOPPER, how)["fa2"]
    assert (state.kind, state.trains, state.reason) == (kind, trains, "its words")


def test_a_gpu_of_another_architecture_is_no_proof():
    how = standing("sm_80", RunPlace.CONTAINER_GPU, sdpa={"outcome": "pass"})
    assert states(HOPPER, how)["sdpa"].kind is SettingStateKind.PREDICTED


def test_what_a_cpu_saw_is_said_as_that():
    how = standing(sdpa={"outcome": "pass"}, flex={"outcome": "refused"}, fa4={"outcome": "not-run"})
    found = states(HOPPER, how)
    assert found["sdpa"].kind is SettingStateKind.SEEN_ON_CPU
    assert "unseen on a GPU" in found["sdpa"].text
    assert (found["flex"].kind, found["flex"].trains) == (SettingStateKind.PREDICTED, True)
    assert not found["fa4"].trains


def test_rules_about_the_card_come_before_what_a_cpu_saw():
    state = states(T4, standing(sdpa_flash={"outcome": "pass"}))["sdpa-flash"]
    assert (state.kind, state.trains, state.rule) == (SettingStateKind.PREDICTED, False, "sdpa-flash-gpu")
    assert "sm_80" in state.reason


def test_a_failure_that_was_predicted_for_a_cpu_says_nothing_about_the_gpu():
    foretold = standing(flex={"outcome": "fail", "defects": ("flex/fp32/dense/full",)})
    unexpected = standing(flex={"outcome": "fail"})
    assert states(HOPPER, foretold)["flex"].kind is SettingStateKind.PREDICTED
    assert states(HOPPER, unexpected)["flex"].kind is SettingStateKind.WRONG


def test_every_setting_has_a_state_without_any_run():
    assert states(HOPPER, CellStanding()).keys() == set(ATTENTION)


def test_a_cell_without_code_for_its_gpu_is_broken():
    assert [finding.id for finding in find_cell_errors(KNOWN.universe, OLD_GPU)] == ["torch-runs-on-gpu"]


def test_the_glibc_of_a_base_counts():
    findings = {
        error.id: error.finding["packages"].get("glibc") for error in find_cell_errors(KNOWN.universe, HOPPER, "2.17")
    }
    assert findings["binary:torch:glibc"] == "2.17"


def query_of(cell: Cell, setting: str | None = None) -> Query:
    values = values_of_cell(cell)
    packages = [
        PackageSpec(name=name, specifier="none" if value == "none" else f"=={value}")
        for name, value in values.items()
        if name not in ("gpu", "python")
    ]
    host = {"machine": cell.host.machine}
    return Query(gpu=cell.gpu, axes={"python": cell.python}, attn=setting, conditions=host, packages=tuple(packages))


@pytest.mark.parametrize("cell", KNOWN.published.cells, ids=str)
def test_no_cell_of_the_matrix_is_broken(cell):
    assert not judge_cell(KNOWN.universe, cell, "2.36").errors
    verdict = check_query(KNOWN.universe, query_of(cell), KNOWN.published).verdict
    # What DeepSpeed requires no artefact states before it is built.
    unknown = [CheckVerdict.UNKNOWN] if cell.framework.startswith("deepspeed") else []
    assert verdict in (CheckVerdict.VERIFIED, CheckVerdict.COMPATIBLE, *unknown)


@pytest.mark.parametrize("cell", KNOWN.published.cells, ids=str)
def test_pick_with_the_axes_of_a_cell_gives_that_cell_first(cell):
    assert pick_cells(KNOWN.universe, query_of(cell), KNOWN.published).choices[0].cell == cell


@pytest.mark.parametrize("setting", ATTENTION)
def test_pick_offers_a_cell_exactly_where_its_answer_says_that_it_trains(setting):
    for cell in KNOWN.published.cells:
        picked = pick_cells(KNOWN.universe, query_of(cell, setting), KNOWN.published, count=100)
        offered = cell in [choice.cell for choice in picked.choices if choice.published]
        standing = KNOWN.published.standing(str(cell))
        state = setting_state(judge_setting(KNOWN.universe, cell, setting), cell, setting, standing)
        assert offered is state.trains, (str(cell), setting, state)
        assert (str(cell) in picked.left_out) <= (not state.trains)


def test_a_waiver_is_needed_and_holds_for_its_cell_only():
    universe = KNOWN.universe
    strict = build_universe(universe.space.book, universe.gpus, universe.written_rules)
    [finding] = find_cell_errors(strict, OPENRLHF)
    assert finding.id == "requires:openrlhf:flash-attn"
    assert find_cell_errors(universe, OPENRLHF) == ()
    earlier = replace(OPENRLHF, framework="openrlhf0.11.1")
    assert [item.id for item in find_cell_errors(universe, earlier)] == ["requires:openrlhf:flash-attn"]


def test_a_waived_pair_is_a_note_in_its_cell_and_an_error_elsewhere():
    pins = (PackageSpec(name="bitsandbytes", specifier="==0.45.0"), PackageSpec(name="triton", specifier="==3.6.0"))
    values = {"bitsandbytes": "0.45.0", "triton": "3.6.0"}
    waiver = Waiver(finding="uses:bitsandbytes:triton", values=values, on="2026-11-23", because="it is tried")
    answer = check_query(replace(KNOWN.universe, waivers=(waiver,)), Query(packages=pins), KNOWN.published)
    [note] = [finding for finding in answer.findings if finding.id == "uses:bitsandbytes:triton"]
    assert (note.severity, note.fix) == ("info", ())
    assert note.because.endswith("(waived in matrix.yaml on 2026-11-23: it is tried)")
    answer = check_query(KNOWN.universe, Query(packages=pins), KNOWN.published)
    assert [finding.id for finding in answer.findings if finding.severity == "error"] == ["uses:bitsandbytes:triton"]


def test_a_waived_pin_gives_way_to_what_the_cell_has_in_its_place():
    [cell] = [cell for cell in KNOWN.published.cells if str(cell).endswith("fa0-triton3.6.0-py311-xtuner0.2.0")]
    query = query_of(cell)
    there = PackageSpec(name="bitsandbytes", specifier="==" + KNOWN.published.read_lock(cell)["bitsandbytes"])
    answer = check_query(KNOWN.universe, replace(query, packages=(*query.packages, there)), KNOWN.published)
    assert answer.verdict in (CheckVerdict.VERIFIED, CheckVerdict.COMPATIBLE)


def test_a_waived_finding_is_a_note_with_its_reason_and_day():
    answer = check_query(KNOWN.universe, query_of(OPENRLHF), KNOWN.published)
    [note] = [finding for finding in answer.findings if finding.id == "requires:openrlhf:flash-attn"]
    assert note.severity == "info"
    assert "waived in matrix.yaml on 2026-" in note.because
    assert answer.verdict is CheckVerdict.VERIFIED


@pytest.mark.parametrize(
    "item",
    [
        {"when": "framework=openrlhf*", "because": "no waive"},
        {"when": "no condition", "waive": "x", "on": "2026-11-22", "because": "y"},
        "text",
    ],
)
def test_amendments_that_waive_nothing(item):
    assert waivers_from_matrix({"amendments": [item]}, [OPENRLHF]) == ()


def test_the_matrix_and_the_quick_reader_see_the_same_waivers():
    matrix = find_project().matrix
    expected = {
        (finding, str(cell))
        for amendment in matrix.amendments
        for finding in amendment.waive
        for cell in matrix.cells
        if amendment.when.matches(cell)
    }
    cells = KNOWN.published.cells
    quick = {
        (waiver.finding, str(cell))
        for waiver in KNOWN.universe.waivers
        for cell in cells
        if values_of_cell(cell).items() <= waiver.values.items()
    }
    assert quick == expected
    assert expected


def test_what_was_seen_under_emulation_is_said_in_words_of_its_own():
    text = explain_tier("trains-emulated", "sm_90")
    assert text.startswith("Emulated: ")
    assert "No run has observed it on a CPU of its own host." in text
    assert describe_tier("trains-emulated") == (
        "seen training on an emulated CPU only; unseen on its own CPU and on a GPU"
    )
