"""What `check` says of the runs of the model suite."""

from __future__ import annotations

import pytest

from knowngood.evidence.model_judgement import model_name_of_type
from knowngood.evidence.model_runs import ModelRun, merge_model_runs
from knowngood_facts.compat.rule_files import load_run_incidents
from knowngood_facts.compat.trainer_findings import describe_model_runs, was_seen_right

DROPPED = "silently-wrong: the soft-cap of the scores is dropped; the loss is off by 1.9e-03"
LEAKS = "silently-wrong: attention does not stop between the sequences of a row; the loss is off by 1e-02"
NO_SDPA = "transformers has no SDPA for this model"


def check(setting, layout, outcome="pass", reason=None):
    silent = str(reason).startswith("silently-wrong")
    entry = {"id": f"m/{setting}/bf16/{layout}", "topic": "model", "setting": setting, "dtype": "bf16"}
    entry |= {"layout": layout, "detail": None}
    return {**entry, "outcome": outcome, "silent": silent, "reason": reason, "figures": None}


def run(model_type, release, checks, when="2026-11-23T21:00:00+00:00", gpu=None):
    report = {"environment": {"transformers": release, "gpu": gpu}, "checks": checks}
    return ModelRun(
        file=f"models/{model_type}/{release}-{when}.json",
        content={"config": {"model_type": model_type}, "when": when, "report": report},
    )


RUNS = [
    run(
        "gemma2",
        "5.17.0",
        [
            *(check("eager", layout) for layout in ("left-padded", "packed")),
            *(check("sdpa", layout, "fail", DROPPED) for layout in ("left-padded", "packed")),
        ],
    ),
    run("gemma2", "5.23.0", [check("sdpa", layout, "refused", NO_SDPA) for layout in ("left-padded", "packed")]),
    run("gpt_oss", "5.17.0", [check("eager", "left-padded"), check("eager", "packed", "fail", LEAKS)]),
]
SEEN = merge_model_runs(RUNS)


def findings(transformers, **conditions):
    return list(describe_model_runs(conditions, transformers, SEEN, load_run_incidents))


def test_a_setting_that_was_silently_wrong_is_an_error_with_its_incident_and_what_was_right():
    (finding,) = findings("5.17.0", model="gemma2", attn="sdpa")
    assert finding.severity == "error"
    assert finding.because.startswith(
        "a run saw gemma2 under sdpa: padded data SILENTLY WRONG, packed data SILENTLY WRONG"
    )
    assert "the soft-cap of the scores is dropped; on a CPU" in finding.because
    assert finding.fix == ({"note": "seen right for this model with the same release: eager"},)
    assert finding.source == (f"evidence/{RUNS[0].file}",)
    assert finding.pages == ("packages/knowngood-diagnose/incidents/sdpa-drops-softcap.yaml",)


def test_a_setting_that_transformers_refuses_for_a_model_is_an_error():
    (finding,) = findings("5.23.0", model="gemma2", attn="sdpa")
    assert (finding.severity, finding.fix) == ("error", ())
    assert NO_SDPA in finding.because


@pytest.mark.parametrize(("setting", "severity"), [("fa2", "error"), ("fa4", "info")])
def test_heads_too_wide_for_flash_attn_2_are_so_on_every_gpu(setting, severity):
    because = "the kernel takes no heads of this width"
    wide = [check(setting, kind, "refused", because) for kind in ("left-padded", "packed")]
    seen = merge_model_runs([run("gemma4_text", "5.17.0", wide, gpu="H100")])
    (finding,) = describe_model_runs({"model": "gemma4", "attn": setting}, "5.17.0", seen, load_run_incidents)
    assert finding.severity == severity


def test_an_error_in_all_kinds_of_data_is_a_warning():
    broken = check("flex", "packed", "fail", "an error that no library is known to refuse with")
    runs = [[broken], [broken, check("flex", "left-padded")]]
    for checks, severity in zip(runs, ("warning", "info"), strict=True):
        seen = merge_model_runs([run("gemma4_text", "5.17.0", [*checks, check("sdpa", "packed")], gpu="H100")])
        (finding,) = describe_model_runs({"model": "gemma4", "attn": "flex"}, "5.17.0", seen, load_run_incidents)
        assert finding.severity == severity
        assert bool(finding.fix) == (severity == "warning")


def test_what_was_right_is_a_remark():
    (finding,) = findings("5.17.0", model="gemma2", attn="eager")
    assert (finding.severity, finding.incidents) == ("info", ())
    assert finding.because == "a run saw gemma2 under eager: padded data right, packed data right (on a CPU)"


@pytest.mark.parametrize(
    ("stated", "severity", "undecided"),
    [({}, "warning", True), ({"packing": "true"}, "error", False), ({"packing": "false"}, "info", False)],
)
def test_what_is_wrong_for_packed_data_alone_depends_on_packing(stated, severity, undecided):
    (finding,) = findings("5.17.0", model="gpt-oss", attn="eager", **stated)
    assert (finding.severity, finding.undecided) == (severity, undecided)
    assert finding.when == ({"packing": "true|position-ids"} if undecided else {})


def test_a_release_that_was_not_run_is_answered_with_what_others_did():
    (finding,) = findings("5.20.0", model="gemma2", attn="sdpa")
    assert finding.severity == "info"
    assert finding.because.startswith("5.20.0 was not run with gemma2 under sdpa; runs with others saw: 5.17.0: padded")
    assert "5.23.0: padded data refused" in finding.because
    (finding,) = findings(None, model="gemma2", attn="sdpa")
    assert finding.because.startswith("no release of transformers is stated with gemma2 under sdpa")
    assert findings("5.17.0", model="llama", attn="sdpa") == []


def test_a_change_of_the_release_helps_only_where_a_run_saw_the_model_right():
    stated = {"model": "gemma2", "attn": "sdpa"}
    assert not any(was_seen_right(stated, release, SEEN) for release in ("5.17.0", "5.20.0", "5.23.0", None))
    assert was_seen_right({**stated, "attn": "eager"}, "5.17.0", SEEN)
    assert not was_seen_right({"model": "gpt-oss", "attn": "eager", "packing": "true"}, "5.17.0", SEEN)


def test_a_newer_run_decides_and_one_on_a_gpu_before_others():
    old, new = "2026-11-23T21:00:00+00:00", "2026-11-24T21:00:00+00:00"
    right, wrong, absent = (
        check("fa2", "packed"),
        check("fa2", "packed", "fail", LEAKS),
        check("fa2", "packed", "not-run", "the kernels' package is not installed"),
    )
    for runs, state in [
        ([run("llama", "5.17.0", [wrong], old), run("llama", "5.17.0", [right], new)], "right"),
        ([run("llama", "5.17.0", [right], old), run("llama", "5.17.0", [absent], new)], "right"),
        ([run("llama", "5.17.0", [right], old, gpu="H100"), run("llama", "5.17.0", [wrong], new)], "right"),
    ]:
        assert merge_model_runs(runs)["llama", "5.17.0", "fa2"].judgement.states == {"packed": state}


def test_a_run_that_was_cut_short_leaves_what_older_runs_saw_of_other_checks():
    refused = check("fa2", "packed", "refused", "flash-attn has no kernel for this dtype or GPU") | {"dtype": "fp32"}
    refused |= {"id": "m/fa2/fp32/packed"}
    unfinished = check("fa2", "packed", "not-run", "the time given to the run was used up")
    runs = [
        run("llama", "5.17.0", [check("fa2", "packed")], "2026-11-23T21:00:00+00:00", gpu="H100"),
        run("llama", "5.17.0", [refused, unfinished], "2026-11-24T21:00:00+00:00", gpu="H100"),
    ]
    seen = merge_model_runs(runs)["llama", "5.17.0", "fa2"]
    assert (seen.judgement.states, seen.run.content["when"][:10]) == ({"packed": "right"}, "2026-11-24")


def test_model_types_have_the_names_of_conditions():
    assert [model_name_of_type(name) for name in ("gemma3_text", "gpt_oss", "llama")] == ["gemma3", "gpt-oss", "llama"]
