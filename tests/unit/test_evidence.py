from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import FA4

from knowngood import evidence
from knowngood.evidence import Evidence, Tier, Where

SUITE = "5" * 64


def run(
    where=Where.CONTAINER_CPU,
    *,
    ok=True,
    checks=(("eager", "pass"),),
    when="2026-11-21T10:00:00+00:00",
    cell=FA4,
    **more,
):
    report = {
        "verdict": {"ok": ok, "domain": "suite", "text": "all well"},
        "suite_hash": SUITE,
        "checks": [{"setting": setting, "outcome": outcome} for setting, outcome in checks],
    }
    fields = {"image": "sha256:" + "1" * 64, "node": {"name": "n"}, "command": ("python",)}
    return Evidence(cell=cell, where=where, when=when, report=report, **(fields | more))


def test_a_run_is_stored_and_loaded(tmp_path):
    path = evidence.store(run(), tmp_path)
    assert path == tmp_path / FA4 / f"20261121T100000Z-{SUITE[:12]}.json"
    assert evidence.load(path) == run()
    assert evidence.load_all(tmp_path, FA4) == ([run()], [])


def test_the_time_in_the_name_is_utc(tmp_path):
    assert evidence.store(run(when="2026-11-21T10:00:00+02:00"), tmp_path).name.startswith("20261121T080000Z-")


def test_a_stored_run_is_never_overwritten(tmp_path):
    runs = [run(ok=ok) for ok in (True, False, True)]
    paths = [evidence.store(item, tmp_path) for item in runs]
    assert [path.name.removeprefix("20261121T100000Z-" + SUITE[:12]) for path in paths] == [
        ".json",
        "-2.json",
        "-3.json",
    ]
    assert [evidence.load(path) for path in paths] == runs


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:100], "not readable as evidence"),
        (lambda _: "", "not readable as evidence"),
        (lambda _: "[]", "not readable as evidence"),
        (lambda _: "null", "not readable as evidence"),
        (lambda _: "\xff", "not readable as evidence"),
        (lambda text: text.replace("evidence/1", "evidence/2"), "schema 'knowngood/evidence/2', this program reads"),
        (lambda text: text.replace("container-cpu", "moon"), "not readable as evidence"),
        (lambda text: text.replace('"pass"', '"perhaps"'), "not readable as evidence"),
        (lambda text: text.replace('"verdict"', '"verdit"'), "not readable as evidence"),
        (lambda text: text.replace('"suite_hash"', '"suite"'), "not readable as evidence"),
        (lambda text: text.replace(FA4, "other"), "it is of other, not of its folder's cell"),
        (lambda text: json.dumps(json.loads(text) | {"command": None}), "not readable as evidence"),
        (lambda text: json.dumps(json.loads(text) | {"report": []}), "not readable as evidence"),
    ],
)
def test_what_is_no_evidence_is_left_out_with_its_reason(tmp_path, damage, message):
    good = evidence.store(run(), tmp_path)
    bad = evidence.store(run(), tmp_path)
    bad.write_bytes(damage(bad.read_text()).encode("latin-1"))
    runs, (why,) = evidence.load_all(tmp_path, FA4)
    assert runs == [evidence.load(good)]
    assert why.startswith(str(bad))
    assert message in why


@pytest.mark.parametrize(
    ("outcomes", "whole"),
    [
        (["pass", "fail", "pass"], "fail"),
        (["refused", "pass"], "pass"),
        (["not-run", "refused"], "refused"),
        (["not-run", "not-run"], "not-run"),
        (["not-run", "pass"], "pass"),
    ],
)
def test_the_outcome_of_a_setting_over_its_checks(outcomes, whole):
    assert run(checks=[("sdpa", outcome) for outcome in outcomes]).outcomes == {"sdpa": whole}


@given(st.permutations(["fail", "pass", "refused", "not-run"]))
def test_the_order_of_the_checks_decides_nothing(outcomes):
    assert run(checks=[("sdpa", outcome) for outcome in outcomes]).outcomes == {"sdpa": "fail"}


GPU, CPU, BARE = Where.CONTAINER_GPU, Where.CONTAINER_CPU, Where.BARE


@pytest.mark.parametrize(
    ("runs", "locked", "tier"),
    [
        ([], False, Tier.NONE),
        ([], True, Tier.RESOLVED),
        ([run(BARE)], True, Tier.RESOLVED),
        ([run(BARE)], False, Tier.NONE),
        ([run(CPU, ok=False)], True, Tier.BUILT),
        ([run(CPU, checks=[("eager", "not-run")])], True, Tier.BUILT),
        ([run(CPU, checks=[("eager", "refused")])], True, Tier.BUILT),
        ([run(CPU)], True, Tier.TRAINS_ON_CPU),
        ([run(GPU)], True, Tier.TRAINS_ON_GPU),
        ([run(GPU), run(CPU, ok=False)], True, Tier.TRAINS_ON_GPU),
        ([run(GPU, ok=False), run(CPU)], True, Tier.TRAINS_ON_CPU),
    ],
)
def test_the_tier(runs, locked, tier):
    assert evidence.tier(runs, locked=locked) is tier


def test_a_quick_run_knows_that_it_is():
    assert run(command=("pytest", "--quick")).quick
    assert not run().quick


def test_the_attention_table_is_of_the_run_that_says_most():
    gpu = run(Where.CONTAINER_GPU, checks=[("fa4", "pass")], when="2026-11-20T10:00:00+00:00")
    quick = run(checks=[("fa4", "fail")], command=("python", "--quick"), when="2026-11-23T10:00:00+00:00")
    whole = run(checks=[("fa4", "refused")])
    newer = run(checks=[("fa4", "not-run")], when="2026-11-22T10:00:00+00:00")
    assert evidence.attention([gpu, whole, quick]) == {"fa4": "pass"}
    assert evidence.attention([whole, quick]) == {"fa4": "refused"}
    assert evidence.attention([newer, whole]) == {"fa4": "not-run"}
    assert evidence.attention([]) == {}


def test_checks_without_a_setting_and_predicted_failures_do_not_decide():
    item = run()
    item.report["checks"].extend(
        [
            {"setting": None, "outcome": "fail"},
            {"setting": "eager", "outcome": "fail", "agreement": "agree"},
            {"setting": "sdpa", "outcome": "fail", "agreement": None},
        ]
    )
    assert item.outcomes == {"eager": "pass", "sdpa": "fail"}
