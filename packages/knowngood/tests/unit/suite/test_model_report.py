"""The model suite's list of checks, its shards, and its report."""

from __future__ import annotations

import pytest

from model_tests import model_catalogue, model_report
from model_tests.families import FAMILIES
from model_tests.limits import LIMITS
from smoke_tests.outcomes import unreached

CHECKS = list(model_catalogue.list_checks("gemma2", faults=True))


def result(outcome="pass", reason=""):
    return {"outcome": outcome, "reason": reason, "seconds": 1.0}


def document(checks, listed=CHECKS, **changed):
    entries = [model_report.describe_check(check, result(), {}) for check in checks]
    base = {
        "schema": model_report.SCHEMA,
        "suite_hash": "a" * 64,
        "selection": "whole",
        "given": {"gemma2": {"model_type": "gemma2"}},
        "environment": {"torch": "2.11.0"},
        "listed": [check.id for check in listed],
        "started": "2026-11-23T20:00:00Z",
        "finished": "2026-11-23T20:01:00Z",
        "seconds": 60.0,
        "shard": [1, 2],
        "checks": entries,
    }
    return {**base, **changed}


def test_every_check_has_an_id_of_its_own_and_every_precision_has_limits():
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert set(model_catalogue.PRECISIONS) == set(LIMITS)
    assert any(check.id == "gemma2/fault/scale-1-percent/sdpa/bf16/dense" for check in CHECKS)


def test_at_least_the_families_of_the_issue_are_there():
    types = {family.model_type for family in FAMILIES.values()}
    wanted = "qwen2 qwen3 qwen3_moe llama mistral gemma2 gemma3_text phi3 gpt_oss deepseek_v3 granite olmo2 qwen2_vl"
    assert set(wanted.split()) | {"qwen3_next"} <= types


def test_the_quick_part_has_padded_and_packed_data_in_bf16_under_every_setting():
    quick = [check for check in CHECKS if check.quick and check.topic == "model"]
    assert {(check.setting, check.layout) for check in quick if check.dtype == "bf16"} >= {
        (setting, layout) for setting in ("eager", "sdpa", "fa2", "flex") for layout in ("left-padded", "packed")
    }
    assert len(quick) < len(CHECKS) / 4


def test_shards_have_every_check_once_and_keep_together_what_shares_a_reference():
    shards = [model_catalogue.choose_shard(CHECKS, number, 3) for number in (1, 2, 3)]
    assert sorted(check.id for shard in shards for check in shard) == sorted(check.id for check in CHECKS)
    assert all(shards)
    for group in {check.group for check in CHECKS}:
        assert len([shard for shard in shards if any(check.group == group for check in shard)]) == 1


def test_shards_are_joined_in_the_order_of_the_list():
    halves = [document(model_catalogue.choose_shard(CHECKS, number, 2)) for number in (1, 2)]
    joined = model_report.join_reports(halves[::-1])
    assert [entry["id"] for entry in joined["checks"]] == [check.id for check in CHECKS]
    assert joined["verdict"] == {"ok": True, "text": f"{len(CHECKS)} pass"}
    assert joined["shard"] is None


def test_what_no_shard_ran_is_not_run():
    joined = model_report.join_reports([document(CHECKS[:-1])])
    assert joined["checks"][-1]["outcome"] == "not-run"
    assert joined["checks"][-1]["reason"] == "no shard ran this check"


@pytest.mark.parametrize("changed", [{"suite_hash": "b" * 64}, {"environment": {"torch": "2.12.0"}}])
def test_reports_of_other_runs_are_not_joined(changed):
    with pytest.raises(ValueError, match=r"no shards of one run: their (suite_hash|environment) differs"):
        model_report.join_reports([document(CHECKS[:2]), document(CHECKS[2:], **changed)])


def test_a_check_that_two_shards_ran_is_an_error():
    with pytest.raises(ValueError, match="two of these shards ran gemma2/formulas"):
        model_report.join_reports([document(CHECKS), document(CHECKS[:1])])


@pytest.mark.parametrize(
    ("outcome", "reason", "silent", "sign"),
    [
        ("fail", "silently-wrong: the soft-cap of the scores is dropped", True, "SILENT"),
        ("fail", "kernel-swapped: fa2 was asked for and torch-flash ran", True, "SILENT"),
        ("fail", "crash: SIGSEGV", False, "FAIL"),
        ("refused", "flash-attn needs a GPU", False, "refused"),
    ],
)
def test_a_fault_that_no_error_shows_is_silent(outcome, reason, silent, sign):
    check = next(check for check in CHECKS if check.topic == "model")
    entry = model_report.describe_check(check, result(outcome, reason), {})
    assert entry["silent"] is silent
    made = {**document([]), "checks": [entry], "verdict": model_report.verdict_of([entry])}
    table = model_report.format_table(made)
    assert sign in table.splitlines()[2]
    assert reason in table
    assert made["verdict"]["ok"] is False


def test_a_fault_that_was_predicted_leaves_the_verdict_good():
    first, second = (check for check in CHECKS if check.id in ("gemma2/eager/fp32/dense", "gemma2/sdpa/fp32/dense"))
    predictions = {"gemma2/sdpa/*": {"outcome": "fail", "because": "SDPA takes no soft-cap"}}
    entries = [
        model_report.describe_check(first, result(), predictions),
        model_report.describe_check(second, result("fail", "silently-wrong: so it is"), predictions),
    ]
    assert model_report.verdict_of(entries)["ok"] is True


def test_no_prediction_is_about_a_check_that_the_run_did_not_come_to():
    predicted = {"*": {"outcome": "pass", "because": "it is right"}}
    entry = model_report.describe_check(CHECKS[0], unreached("the time given to the run (60 s) was used up"), predicted)
    assert (entry["outcome"], entry["agreement"]) == ("not-run", None)
    assert entry["predicted"] == predicted["*"]
    assert "reached" not in entry
