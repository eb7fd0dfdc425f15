"""What `knowngood certify` answers from the model suite's report, and which configurations it takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from knowngood.cli import certify
from knowngood.core.errors import InputError, MissingError, UnknownError, UsageError
from knowngood.evidence import model_judgement
from knowngood.project.checkout import Project
from knowngood.smoke import certificate, certify_run
from knowngood.smoke.model_config import ModelConfig, read_families, read_model_config
from knowngood.smoke.suite_command import SuiteOptions
from knowngood_facts.compat.rule_files import load_run_incidents
from samples import ROOT

PROJECT = Project(ROOT)
INCIDENTS = load_run_incidents()
SUITES = ("model_tests", "smoke_tests")
DROPPED = "silently-wrong: the soft-cap of the scores is dropped; the loss is off by 1.9e-03 (5e-04 is allowed)"


def check(setting, layout, outcome="pass", *, dtype="bf16", reason=""):
    silent = reason.startswith(("silently-wrong", "kernel-swapped"))
    entry = {"topic": "model", "setting": setting, "dtype": dtype, "layout": layout, "detail": None}
    return {**entry, "outcome": outcome, "silent": silent, "reason": reason, "figures": None}


def speed(setting, step_ms):
    return {**check(setting, "dense"), "topic": "model-speed", "figures": {"step_ms": step_ms}}


def report(checks, **changed):
    base = {
        "given": {"gemma2": {"model_type": "gemma2"}},
        "environment": {"torch": "2.11.0", "transformers": "5.17.0", "gpu": None},
        "checks": checks,
        "suite_hash": "a" * 64,
    }
    return {**base, **changed}


GEMMA = [
    *(check("eager", layout) for layout in ("left-padded", "packed")),
    *(check("sdpa", layout, "fail", reason=DROPPED) for layout in ("left-padded", "packed")),
    check("fa2", "left-padded"),
    check("fa2", "packed"),
    check("flex", "packed", "refused", reason="FlexAttention has no backward on CPU"),
]


def test_a_setting_that_is_silently_wrong_is_named_with_its_incident_and_what_to_write_instead():
    document = certificate.certificate_document(report(GEMMA), INCIDENTS)
    assert document["silently_wrong"] == ["sdpa"]
    assert document["use"]["packed"] == {"setting": "fa2", "write": 'attn_implementation="flash_attention_2"'}
    sdpa = next(item for item in document["settings"] if item["setting"] == "sdpa")
    assert sdpa["states"] == {"padded": "silently wrong", "packed": "silently wrong"}
    assert sdpa["incidents"] == ["sdpa-drops-softcap"]
    sentences = certificate.certificate_sentences(document)
    assert "sdpa: the soft-cap of the scores is dropped (incident sdpa-drops-softcap)" in sentences
    assert any(line.startswith("Speed was not measured") for line in sentences)


def test_a_gradient_at_its_bound_is_undecided_and_one_far_beyond_is_wrong():
    reason = "silently-wrong: attention is right in every layer; the layers read the padding; the loss is off by 2e-08"
    errors = {"loss": 2e-8, "loss_allowed": 1e-6, "gradient": 1.18e-5, "gradient_allowed": 1.12e-5}
    failed = {**check("sdpa", "left-padded", "fail", reason=reason), "errors": errors}
    (item,) = model_judgement.judge_settings([check("sdpa", "right-padded"), failed])
    assert item.states == {"padded": "undecided"}
    assert not item.silent
    (near,) = model_judgement.judge_settings([{**failed, "errors": {**errors, "loss": 1.2e-6}}])
    assert near.states == {"padded": "undecided"}
    for changed in ({"gradient": 1.7e-5}, {"loss": 2e-6}):
        (item,) = model_judgement.judge_settings([{**failed, "errors": {**errors, **changed}}])
        assert item.states == {"padded": "silently wrong"}
    other = {**failed, "reason": DROPPED}
    assert model_judgement.judge_settings([other])[0].silent


@pytest.mark.parametrize(
    ("model_type", "incidents"),
    [
        ("mistral", ["flash-attn-2-window-one-token-too-wide"]),
        ("qwen2", ["flash-attn-2-optional-window-one-token-too-wide"]),
        ("llama", []),
    ],
)
def test_a_window_that_is_one_token_too_wide_is_named_with_its_incident(model_type, incidents):
    reason = "silently-wrong: the sliding window is off by one (9 places instead of 8); the loss is off by 0.1"
    (item,) = model_judgement.judge_settings([check("fa2", "right-padded", "fail", reason=reason)])
    assert item.find_incidents(model_type, INCIDENTS) == incidents


def test_an_incident_links_to_words_that_the_suite_says():
    sources = " ".join(
        path.read_text() for name in SUITES for path in sorted((ROOT / "smoke_tests" / name).glob("*.py"))
    )
    said = re.sub(r'"\s*\n\s*f?"', "", sources)
    assert len(INCIDENTS) >= 11
    for incident in INCIDENTS:  # or an error's words, which the incident knows from logs
        own = (
            (ROOT / f"packages/knowngood-diagnose/incidents/{incident.id}.yaml")
            .read_text()
            .partition("run_reasons:")[0]
        )
        assert [words for words in incident.reasons if words not in said and words not in own] == []


def test_an_error_that_a_log_would_show_links_to_its_incident_for_any_model():
    error = "No valid triton configs. OutOfMemoryError: out of resource: triton_tem_fused_flex_attention_2"
    failed = check("flex", "packed", "fail", reason="an error that no library is known to refuse with")
    (item,) = model_judgement.judge_settings([failed | {"exception": "InductorError", "message": error}])
    assert item.find_incidents("any_model", INCIDENTS) == ["flex-attention-no-choices"]


def test_with_times_the_fastest_setting_that_is_right_is_chosen_and_a_wrong_one_never():
    timed = [*GEMMA, speed("eager", 9.0), speed("fa2", 12.0), speed("sdpa", 1.0)]
    document = certificate.certificate_document(report(timed), INCIDENTS)
    assert document["speed_measured"] is True
    assert document["use"]["padded"]["setting"] == "eager"
    assert certificate.certificate_rows(document)[0] == ["setting", "padded", "packed", "a step"]
    assert not any("Speed" in line for line in certificate.certificate_sentences(document))


def test_a_setting_that_is_wrong_for_packed_data_is_not_advised_for_padded_data_while_another_is_right():
    leaks = "silently-wrong: attention does not stop between the sequences of a row; the loss is off by 1e-3 (5e-04)"
    checks = [
        check("sdpa", "left-padded"),
        check("sdpa", "packed", "fail", reason=leaks),
        check("eager", "left-padded"),
    ]
    document = certificate.certificate_document(report(checks), INCIDENTS)
    assert document["use"]["padded"]["setting"] == "eager"
    assert document["use"]["packed"] is None
    assert "packed data: no setting that was tried is right" in certificate.certificate_sentences(document)


def test_one_dtype_that_fails_makes_the_setting_wrong_and_only_right_dtypes_are_listed():
    checks = [check("sdpa", "packed"), check("sdpa", "packed", "fail", dtype="fp16", reason="crash: SIGSEGV")]
    judgement = certificate.judge_settings(checks)[0]
    assert judgement.states == {"packed": "fails"}
    assert judgement.dtypes == {"packed": ("bf16",)}
    assert not judgement.silent


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("attention's query gradient has an error of 3.4e-02 (3e-02 is allowed)", "undecided"),
        ("attention's query gradient has an error of 5.4e-02 (3e-02 is allowed)", "silently wrong"),
        ("attention's query gradient is off by +1.0% (0.4% is allowed)", "silently wrong"),
        ("attention does not stop between the sequences of a row", "silently wrong"),
    ],
)
def test_an_error_of_attention_that_has_no_direction_and_is_little_over_its_bound_is_undecided(words, state):
    errors = {"loss": 3e-5, "loss_allowed": 5e-4, "gradient": 7.3e-2, "gradient_allowed": 7.1e-2}
    failed = {**check("sdpa", "left-padded", "fail", reason=f"silently-wrong: {words}"), "errors": errors}
    (item,) = model_judgement.judge_settings([failed])
    assert item.states == {"padded": state}


def test_an_error_is_told_in_its_own_words_and_settings_that_fail_alike_share_a_sentence():
    words = "view size is not compatible with\ninput tensor's size"
    unknown = "an error that no library is known to refuse with"
    failed = [
        {**check(name, "packed", "fail", reason=unknown), "exception": "RuntimeError", "message": words}
        for name in ("eager", "sdpa")
    ]
    sentences = certificate.certificate_sentences(certificate.certificate_document(report(failed), INCIDENTS))
    assert f"eager, sdpa: {unknown}: RuntimeError: view size is not compatible with input tensor's size" in sentences


def test_a_setting_that_changes_nothing_is_said_to():
    reason = "no layer of this model asks transformers for attention, so this setting changes nothing"
    checks = [check("eager", "packed"), check("sdpa", "packed", "not-run", reason=reason)]
    document = certificate.certificate_document(report(checks), INCIDENTS)
    assert f"sdpa: {reason}" in certificate.certificate_sentences(document)
    assert document["use"]["packed"]["setting"] == "eager"


def test_faults_made_on_purpose_do_not_count_as_settings():
    fault = {**check("sdpa", "dense", "fail", reason="the fault went unnoticed"), "detail": "scale-1-percent"}
    assert certificate.judge_settings([fault, check("sdpa", "dense")])[0].states == {"dense": "right"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sdpa", 'attn_implementation="sdpa"'),
        ("fa4", 'attn_implementation="flash_attention_4"'),
        ("sdpa-math", 'attn_implementation="sdpa" within torch.nn.attention.sdpa_kernel(SDPBackend.MATH)'),
    ],
)
def test_a_setting_is_described_as_it_is_written(setting, words):
    assert certificate.describe_setting(setting) == words


def test_a_file_a_folder_and_a_family_are_read(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for place in (tmp_path, tmp_path / "config.json"):
        assert read_model_config(place, PROJECT.model_suite).model_type == "llama"
    family = read_model_config(type(tmp_path)("gemma2"), PROJECT.model_suite)
    assert family.fields == {"model_type": "gemma2"}
    assert "qwen2-vl" in read_families(PROJECT.model_suite)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": ', r"config.json:1:\d+: this is no JSON"),
        ("[1]", "a JSON object, this is a list"),
        ("{}", '"model_type" is missing'),
        ('{"model_type": 7}', '"model_type" is missing'),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_reason(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        read_model_config(tmp_path, PROJECT.model_suite)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises((UsageError, InputError)) as caught:
        read_model_config(tmp_path, PROJECT.model_suite)
    assert caught.value.exit_code == 2


def test_a_place_that_is_not_there_names_the_families(tmp_path):
    with pytest.raises(UsageError, match=r"does not exist; .* families deepseek-v3"):
        read_model_config(tmp_path / "nothing", PROJECT.model_suite)
    with pytest.raises(UsageError, match=r"has no config\.json"):
        read_model_config(tmp_path, PROJECT.model_suite)
    with pytest.raises(MissingError, match="is not the model suite"):
        read_families(tmp_path)


@pytest.mark.parametrize(
    ("kind", "error", "code", "words"),
    [
        ("unknown-model", UnknownError, 3, "a newer transformers may"),
        ("remote-code", UsageError, 2, "--remote-code"),
        ("not-causal", UsageError, 2, "no causal language model"),
    ],
)
def test_a_model_of_which_no_miniature_can_be_made_has_its_exit_code(tmp_path, kind, error, code, words):
    config = ModelConfig(path=tmp_path / "config.json", fields={"model_type": "vit"})
    problem = {"kind": kind, "text": "no causal language model of model_type 'vit'"}
    with pytest.raises(error, match=words) as caught:
        certify._raise_problem(config, report([], problem=problem))
    assert caught.value.exit_code == code


def test_an_environment_without_torch_is_something_missing(tmp_path):
    config = ModelConfig(path=tmp_path, fields={"model_type": "llama"})
    first = {
        **check("eager", "dense", "fail", reason="torch or transformers cannot be imported"),
        "message": "no torch",
    }
    with pytest.raises(MissingError, match="cannot be imported no torch"):
        certify._raise_problem(config, report([first], environment={"python": "3.11"}))


def test_the_bundle_holds_both_suites_the_configuration_and_code_only_when_it_may_run(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {}}')
    (tmp_path / "modeling_own.py").write_text("raise SystemExit")
    (tmp_path / "weights.bin").write_text("not sent")
    config = read_model_config(tmp_path, PROJECT.model_suite)
    plain = certify_run.suite_bundle(PROJECT, certify_run.ModelRequest(config=config))
    assert {"smoke_tests/runner.py", "model_tests/__main__.py", "config.json"} <= set(plain)
    assert not [name for name in plain if name.startswith("model/")]
    coded = certify_run.suite_bundle(PROJECT, certify_run.ModelRequest(config=config, remote_code=True))
    assert sorted(set(coded) - set(plain)) == ["model/config.json", "model/modeling_own.py"]


def test_evidence_is_sealed_and_says_neither_path_nor_name_of_the_user(tmp_path):
    config = ModelConfig(path=tmp_path / "home/alice/config.json", fields={"model_type": "gemma2"})
    evidence = certify_run.ModelEvidence(
        config=config,
        cell=None,
        where=certify_run.RunPlace.BARE,
        image=None,
        when="2026-11-23T21:20:53+00:00",
        node={"name": "0123456789ab"},
        command=("python", "-m", "model_tests"),
        report=report(GEMMA),
    )
    path = certify_run.store_model_evidence(evidence, tmp_path / "evidence")
    assert path.parent == tmp_path / "evidence/models/gemma2"
    assert certify_run.sealed_files.find_defect(path, path.read_bytes()) is None
    stored = json.loads(path.read_text())
    assert stored["schema"] == "knowngood/model-evidence/1"
    assert "alice" not in path.read_text()


def test_the_suite_ends_before_the_run_is_killed_and_asks_for_a_gpu_only_where_one_was_given(tmp_path):
    config = ModelConfig(path=Path("config.json"), fields={"model_type": "gemma2"})
    plain = certify_run.ModelRequest(config=config)
    words = certify_run.suite_words(SuiteOptions(seconds=1000), "/suite", plain, cell_gpu="sm_90")
    assert words == ["--config", "/suite/config.json", "--report", "/suite/report.json", "--budget", "700"]
    folder = tmp_path / "config.json"
    folder.write_text('{"model_type": "gemma2"}')
    config = ModelConfig(path=folder, fields={"model_type": "gemma2"})
    full = certify_run.ModelRequest(config=config, remote_code=True, predictions={})
    words = certify_run.suite_words(SuiteOptions(seconds=1000, gpus=True, quick=True), ".", full, cell_gpu="sm_90")
    assert words[-8:-2] == ["--quick", "--demand-gpu", "--cell-gpu", "sm_90", "--predictions", "./predictions.json"]
    assert words[-2:] == ["--remote-code", "./model"]
    assert set(full.files()) == {"config.json", "predictions.json", "model/config.json"}


def test_a_run_here_names_no_folder_of_this_machine(tmp_path):
    root = tmp_path / "checkout"
    (root / "smoke_tests/model_tests").mkdir(parents=True)
    (root / "smoke_tests/model_tests/__main__.py").write_text(
        "import json, pathlib, sys\n"
        "report = {'log_tail': f'File \"{__file__}\" and \"{sys.prefix}/lib\"'}\n"
        "pathlib.Path(sys.argv[sys.argv.index('--report') + 1]).write_text(json.dumps(report))\n"
    )
    config = ModelConfig(path=tmp_path / "config.json", fields={"model_type": "tiny"})
    request = certify_run.ModelRequest(config=config)
    evidence = certify_run.certify_in_environment(
        Project(root), request, SuiteOptions(quick=True), log=tmp_path / "log", notify=print
    )
    assert evidence.report["log_tail"] == 'File "model_tests/__main__.py" and "lib"'
