from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.evidence import run_evidence, sealed_files
from knowngood.evidence.run_evidence import Evidence, RunPlace, SettingObservation, Tier
from samples import FA4

SUITE = "5" * 64


def run(
    where=RunPlace.CONTAINER_CPU,
    *,
    ok=True,
    checks=(("eager", "pass"),),
    when="2026-11-21T10:00:00+00:00",
    cell=FA4,
    domain=None,
    suite=SUITE,
    **more,
):
    report = {
        "verdict": {"ok": ok, "domain": domain or ("none" if ok else "image"), "text": "all well"},
        "suite_hash": suite,
        "checks": [{"setting": setting, "outcome": outcome} for setting, outcome in checks],
    }
    fields = {"image": "sha256:" + "1" * 64, "node": {"name": "n"}, "command": ("python",)}
    return Evidence(cell=cell, where=where, when=when, report=report, **(fields | more))


def test_a_run_is_stored_and_loaded(tmp_path):
    path = run_evidence.store_evidence(run(), tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path == tmp_path / FA4 / f"20261121T100000Z-{SUITE[:12]}-{digest[:32]}.json"
    assert run_evidence.load_evidence(path) == run()
    assert run_evidence.load_cell_evidence(tmp_path, FA4) == ([run()], [])


def test_the_time_in_the_name_is_utc(tmp_path):
    assert run_evidence.store_evidence(run(when="2026-11-21T10:00:00+02:00"), tmp_path).name.startswith(
        "20261121T080000Z-"
    )


def test_a_stored_run_is_never_overwritten_and_told_twice_is_one(tmp_path):
    runs = [run(ok=ok) for ok in (True, False, True)]
    paths = [run_evidence.store_evidence(item, tmp_path) for item in runs]
    assert paths[0] == paths[2] != paths[1]
    assert [run_evidence.load_evidence(path) for path in paths] == runs


def test_a_run_that_was_changed_is_told_and_left_out(tmp_path):
    good, bad = (run_evidence.store_evidence(run(ok=ok), tmp_path) for ok in (True, False))
    bad.write_text(bad.read_text().replace('"ok": false', '"ok": true'))
    runs, (why,) = run_evidence.load_cell_evidence(tmp_path, FA4)
    assert runs == [run_evidence.load_evidence(good)]
    assert why.startswith(f"{bad}: forged or damaged: its SHA-256 is ")


def test_of_old_names_only_what_is_listed_counts(tmp_path):
    path = run_evidence.store_evidence(run(), tmp_path)
    old = path.rename(path.with_name(f"20261121T100000Z-{SUITE[:12]}.json"))
    assert "neither its name nor SHA256SUMS holds its digest" in run_evidence.load_evidence(old)
    line = f"{hashlib.sha256(old.read_bytes()).hexdigest()}  {FA4}/{old.name}\n"
    (tmp_path / sealed_files.LEDGER).write_text(line)
    assert run_evidence.load_evidence(old) == run()
    old.write_text(old.read_text().replace("all well", "all good"))
    assert "but SHA256SUMS says" in run_evidence.load_evidence(old)


@pytest.mark.parametrize("place", [0, 1, sealed_files.DIGITS - 1])
def test_every_digit_of_the_digest_in_a_name_counts(tmp_path, place):
    digest = hashlib.sha256(b"text").hexdigest()[: sealed_files.DIGITS]
    other = "0" if digest[place] != "0" else "1"
    assert sealed_files.sealed_name("x", b"text") == f"x-{digest}.json"
    assert sealed_files.find_defect(tmp_path / f"x-{digest}.json", b"text") is None
    forged = tmp_path / f"x-{digest[:place]}{other}{digest[place + 1 :]}.json"
    assert "but its name says" in sealed_files.find_defect(forged, b"text")


@pytest.mark.parametrize("place", [0, 1, sealed_files.DIGITS, 63])
def test_every_digit_of_the_digest_in_the_list_counts(tmp_path, place):
    digest = hashlib.sha256(b"text").hexdigest()
    other = "0" if digest[place] != "0" else "1"
    (tmp_path / sealed_files.LEDGER).write_text(f"{digest[:place]}{other}{digest[place + 1 :]}  cell/x.json\n")
    assert "but SHA256SUMS says" in sealed_files.find_defect(tmp_path / "cell" / "x.json", b"text")


@pytest.mark.parametrize("digits", [1, sealed_files.DIGITS - 1, sealed_files.DIGITS + 1])
def test_a_name_with_another_number_of_digits_is_not_sealed(tmp_path, digits):
    path = tmp_path / f"x-{hashlib.sha256(b'text').hexdigest()[:digits]}.json"
    assert "neither its name nor SHA256SUMS holds its digest" in sealed_files.find_defect(path, b"text")


def _write(place, writer, count):
    for number in range(count):
        run_evidence.store_evidence(run(when="2026-11-21T10:00:00+00:00", node={"name": f"{writer}-{number}"}), place)


def test_a_hundred_writers_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, writer, 10)) for writer in range(100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 100
    runs, left_out = run_evidence.load_cell_evidence(tmp_path, FA4)
    assert {item.node["name"] for item in runs} == {f"{a}-{b}" for a in range(100) for b in range(10)}
    assert (len(runs), left_out) == (1000, [])
    assert all(path.suffix == ".json" for path in (tmp_path / FA4).iterdir())


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
        (lambda text: text.replace(FA4, "other"), "it is evidence of other, not of the cell that its folder names"),
        (lambda text: json.dumps(json.loads(text) | {"command": None}), "not readable as evidence"),
        (lambda text: json.dumps(json.loads(text) | {"report": []}), "not readable as evidence"),
    ],
)
def test_what_is_no_evidence_is_left_out_with_its_reason(tmp_path, damage, message):
    good = run_evidence.store_evidence(run(), tmp_path)
    bad = run_evidence.store_evidence(run(node={}), tmp_path)
    bad.write_bytes(damage(bad.read_text()).encode("latin-1"))
    runs, (why,) = run_evidence.load_cell_evidence(tmp_path, FA4)
    assert runs == [run_evidence.load_evidence(good)]
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


GPU, CPU, BARE = RunPlace.CONTAINER_GPU, RunPlace.CONTAINER_CPU, RunPlace.BARE
EMULATED = RunPlace.CONTAINER_EMULATED
LATER = "2026-11-25T10:00:00+00:00"


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
        ([run(EMULATED)], True, Tier.TRAINS_EMULATED),
        ([run(EMULATED, ok=False)], True, Tier.BUILT),
        ([run(CPU), run(EMULATED, when=LATER)], True, Tier.TRAINS_ON_CPU),
        ([run(GPU)], True, Tier.TRAINS_ON_GPU),
        ([run(GPU, when=LATER), run(CPU, ok=False)], True, Tier.TRAINS_ON_GPU),
        ([run(GPU), run(CPU, ok=False, when=LATER)], True, Tier.BUILT),
        ([run(GPU), run(GPU, ok=False, when=LATER)], True, Tier.BUILT),
        ([run(GPU), run(GPU, ok=False, when=LATER, domain="host")], True, Tier.TRAINS_ON_GPU),
        ([run(GPU), run(BARE, ok=False, when=LATER)], True, Tier.TRAINS_ON_GPU),
        ([run(GPU, ok=False), run(CPU, when=LATER)], True, Tier.TRAINS_ON_CPU),
    ],
)
def test_the_tier(runs, locked, tier):
    assert run_evidence.proven_tier(runs, locked=locked) is tier


def test_a_green_run_between_two_red_ones_proves_nothing():
    whens = [f"2026-11-2{day}T10:00:00+00:00" for day in range(1, 4)]
    first, green, last = (run(GPU, ok=ok, when=when) for ok, when in zip((False, True, False), whens, strict=True))
    for told in itertools.permutations([first, green, last]):
        assert run_evidence.valid_runs(told) == [last]
        assert run_evidence.proven_tier(told, locked=True) is Tier.BUILT


def test_only_what_ran_after_the_last_red_run_is_valid():
    whens = [f"2026-11-2{day}T10:00:00+00:00" for day in range(1, 6)]
    runs = [run(GPU, ok=ok, when=when) for ok, when in zip((True, False, True, False), whens, strict=False)]
    newest = run(CPU, when=whens[-1])
    assert run_evidence.valid_runs([newest, *runs]) == [newest]
    assert run_evidence.proven_tier([newest, *runs], locked=True) is Tier.TRAINS_ON_CPU


@pytest.mark.parametrize(("sm", "tier"), [("sm_90", Tier.TRAINS_ON_GPU), ("sm_80", Tier.TRAINS_ON_CPU)])
def test_a_gpu_of_another_architecture_proves_as_much_as_a_cpu(sm, tier):
    item = run(GPU)
    item.report["environment"] = {"sm": sm}
    assert run_evidence.proven_tier([item], locked=True) is tier


def test_a_quick_run_knows_that_it_is():
    assert run(command=("pytest", "--quick")).quick
    assert not run().quick
    assert run(EMULATED).quick


def test_a_run_on_a_processor_says_more_than_an_emulated_one():
    emulated = run(EMULATED, checks=[("eager", "pass")], when=LATER)
    assert run_evidence.most_telling_run([run(CPU, checks=[("eager", "refused")]), emulated]).outcomes == {
        "eager": "refused"
    }
    assert list(Tier).index(Tier.BUILT) < list(Tier).index(Tier.TRAINS_EMULATED) < list(Tier).index(Tier.TRAINS_ON_CPU)


def test_the_attention_table_is_of_the_run_that_says_most():
    gpu = run(RunPlace.CONTAINER_GPU, checks=[("fa4", "pass")], when="2026-11-20T10:00:00+00:00")
    quick = run(checks=[("fa4", "pass")], command=("python", "--quick"), when="2026-11-23T10:00:00+00:00")
    whole = run(checks=[("fa4", "refused")])
    newer = run(checks=[("fa4", "not-run")], when="2026-11-22T10:00:00+00:00")
    red = run(RunPlace.CONTAINER_GPU, checks=[("fa4", "fail")], ok=False, when=LATER)
    assert run_evidence.most_telling_run([gpu, whole, quick]).outcomes == {"fa4": "pass"}
    assert run_evidence.most_telling_run([whole, quick]).outcomes == {"fa4": "refused"}
    assert run_evidence.most_telling_run([newer, whole]).outcomes == {"fa4": "not-run"}
    assert run_evidence.most_telling_run([gpu, whole, red]).outcomes == {"fa4": "fail"}
    assert run_evidence.most_telling_run([]) is None


def test_the_newest_suite_comes_before_a_whole_run_of_an_older_one():
    older = run(checks=[("fa4", "refused")])
    quick = run(checks=[("fa4", "pass")], command=("python", "--quick"), when=LATER, suite="a" * 64)
    assert run_evidence.most_telling_run([older, quick]) == quick
    gpu = run(RunPlace.CONTAINER_GPU)
    assert run_evidence.most_telling_run([gpu, quick]) == gpu


def training_check(setting, outcome, *, dtype="bf16", layout="dense", mode="full", **fields):
    name = f"{setting}/{dtype}/{layout}/{mode}"
    about = {"id": name, "topic": "training", "setting": setting, "dtype": dtype, "layout": layout, "mode": mode}
    return {**about, "outcome": outcome, **fields}


def test_a_setting_that_trains_in_a_special_mode_only_is_refused():
    item = run(checks=[])
    item.report["checks"] = [
        training_check("sdpa-flash", "refused", message="No available  kernel."),
        training_check("sdpa-flash", "pass", mode="use-cache"),
    ]
    assert item.observations == {"sdpa-flash": SettingObservation(outcome="refused", message="No available kernel.")}


def test_what_a_setting_that_trains_does_not_do_is_listed():
    item = run(checks=[])
    item.report["checks"] = [
        training_check("sdpa-flash", "pass"),
        training_check("sdpa-flash", "refused", dtype="fp32"),
        training_check("sdpa-flash", "fail", layout="packed", mode="use-cache", agreement="agree"),
    ]
    assert item.observations == {
        "sdpa-flash": SettingObservation(
            outcome="pass", limits=("fp32/dense",), defects=("sdpa-flash/bf16/packed/use-cache",)
        )
    }


def test_a_setting_that_only_fails_as_predicted_has_failed():
    item = run(checks=[])
    item.report["checks"] = [training_check("flex", "fail", agreement="agree", reason="kernel-swapped")]
    assert item.observations["flex"].outcome == "fail"
    assert item.observations["flex"].message == "kernel-swapped"


def test_checks_without_a_setting_and_predicted_failures_do_not_decide():
    item = run()
    item.report["checks"].extend(
        [
            {"setting": None, "outcome": "fail"},
            {"setting": "eager", "outcome": "fail", "agreement": "agree"},
            {"setting": "sdpa", "outcome": "fail", "agreement": None},
            {"setting": "fa2", "outcome": "pass", "agreement": "agree"},
            {"setting": "flex", "outcome": "refused", "agreement": "agree"},
        ]
    )
    assert item.outcomes == {"eager": "pass", "sdpa": "fail", "fa2": "pass", "flex": "refused"}
