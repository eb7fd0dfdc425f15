"""What `diagnose` says of a log beside its matches: the last error, that it does not know, or that the run is well."""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main
from knowngood_diagnose.failures.logs.last_errors import LastErrorReader, redact_secrets
from knowngood_diagnose.failures.logs.log_scan import SignatureScan

AMPERE = "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"
UNKNOWN = (
    'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\nRuntimeError: the widget exploded badly\n'
)


@pytest.fixture
def ask(tmp_path, capsys):
    def diagnose(text, *options, code):
        log = tmp_path / "train.log"
        log.write_text(text)
        assert main(["diagnose", str(log), "--json", *options]) == code
        document = json.loads(capsys.readouterr().out)
        assert main(["diagnose", str(log), *options]) == code
        return document, capsys.readouterr().out

    return diagnose


def last_error(text):
    reader = LastErrorReader()
    SignatureScan(signatures=[]).read(io.BytesIO(text.encode()), reader)
    return reader.error


def test_the_last_error_is_shown_beside_a_match(ask):
    document, text = ask(AMPERE + "step 3\nValueError: and then this\n", code=0)
    assert document["outcome"] == "known"
    assert document["last_error"] == {"text": "ValueError: and then this", "line": 3}
    assert "the last error, in line 3: ValueError: and then this" in text


def test_an_unknown_failure_shows_what_was_understood_and_what_to_paste(ask):
    document, text = ask("transformers==4.44.2\nGPU: NVIDIA H100\n" + UNKNOWN, code=3)
    assert document["outcome"] == "unknown"
    assert document["last_error"]["text"] == "RuntimeError: the widget exploded badly"
    assert document["paste"] == ["pip freeze"]
    assert "the last error, in line 5: RuntimeError: the widget exploded badly" in text
    assert "versions in the log: transformers 4.44.2, gpu 90" in text
    assert "pip freeze" in text
    assert "no failure" not in text


def test_the_nearest_known_failure_is_named(ask):
    document, text = ask("RuntimeError: FlashAttention only supports Amper GPU or new.\n", code=3)
    assert document["nearest"] in {"flash-attn-2-needs-ampere", "flash-attn-newer-gpu-only"}
    assert "the nearest known failure: " in text
    assert document["paste"] == ["the whole traceback, from its first line on", "pip freeze", "nvidia-smi"]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("epoch 1 loss 0.7\nepoch 2 loss 0.5\nsaved\n", 2),
        ("{'loss': 1.2, 'epoch': 1.0}\n{'train_runtime': 12.3, 'epoch': 1.0}\n", 2),
        ("0 errors, 3 warnings\ndone\n", 2),
        ("Successfully installed torch-2.8.0\n", 1),
        ("FlashAttention only supports Ampere GPUs or newer, falling back to sdpa\nloss=0.7\n", 2),
        (
            "E0000 cuda_dnn.cc:8310] Unable to register cuDNN factory: one was registered already\nstep 1 loss: 0.4\n",
            2,
        ),
    ],
)
def test_a_run_in_health_is_no_failure(ask, log, line):
    document, text = ask(log, code=1)
    assert document["matches"] == []
    assert document["outcome"] == "no-failure"
    assert document["health"]["line"] == line
    assert text.startswith(f"no failure: line {line} shows a run in health: ")
    assert "unknown" not in text


@pytest.mark.parametrize(
    "log",
    [
        "hello\n",
        "- Fixed `ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'`\n",
        "* fix FlashAttention only supports Ampere GPUs or newer on T4 (#12)\n",
        "UserWarning: something minor\n",
        "epoch 1 loss nan\n",
    ],
)
def test_a_log_without_a_sign_of_health_is_not_called_healthy(ask, log):
    document, text = ask(log, code=3)
    assert (document["matches"], document["outcome"], document["health"]) == ([], "unknown", None)
    assert text.startswith("unknown: nothing known is in this log\n  looked for: ")
    assert "no failure" not in text


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: nvidia_probe: the card at 0000:01:00.0 is in use by another driver",
        "0/3 nodes are available: 3 node(s) were unreachable.",
    ],
)
def test_what_a_driver_or_a_scheduler_says_is_no_health(ask, line):
    document, _ = ask(f"step 1 loss 0.4\nstep 2 loss 0.3\n{line}\n", code=3)
    assert document["outcome"] == "unknown"
    assert document["trouble"] == {"text": line, "line": 3}


def test_a_harmless_warning_alone_is_shown_and_says_nothing_of_health(ask):
    line = (
        "Warning: import flash_attn rms_norm fail, please install FlashAttention layer_norm to get higher efficiency\n"
    )
    document, text = ask(line, code=3)
    assert [match["severity"] for match in document["matches"]] == ["harmless"]
    assert document["outcome"] == "unknown"
    assert "what it has is harmless" in text
    assert ask(line + "train_loss: 0.4\n", code=1)[0]["outcome"] == "no-failure"


def test_a_traceback_after_a_mention_is_a_failure(ask):
    document, _ = ask("falling back to sdpa\nTraceback (most recent call last):\n" + AMPERE, code=0)
    assert document["outcome"] == "known"


def test_the_gpu_beside_the_log_decides_remedies(ask):
    on_blackwell, _ = ask("flash-attn==2.6.3\n" + AMPERE, "--gpu", "B200", code=0)
    assert any("install" in fix for fix in on_blackwell["matches"][0]["fix"])
    on_volta, _ = ask("flash-attn==2.6.3\n" + AMPERE, "--gpu", "V100", code=0)
    assert not any("change" in fix for fix in on_volta["matches"][0]["fix"])
    assert on_volta["versions"]["gpu"] == ["70"]


def test_an_unknown_gpu_is_a_wrong_use(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(AMPERE)
    assert main(["diagnose", str(log), "--gpu", "nosuchcard"]) in {2, 3}
    assert "nosuchcard" in capsys.readouterr().err


def test_versions_beside_the_log_count(ask, tmp_path):
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("trl==0.7.10\ntransformers==4.49.0\n")
    error = "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'\n"
    document, _ = ask(error, "-r", str(freeze), code=0)
    assert document["versions"] == {"trl": ["0.7.10"], "transformers": ["4.49.0"]}
    assert document["matches"][0]["versions_confirmed"]
    stated, _ = ask("transformers==4.30.0\n" + error, "--with", "transformers==4.49.0", code=0)
    assert stated["versions"]["transformers"] == ["4.49.0"]


def test_conditions_of_use_beside_the_log_exclude(ask):
    dynamo = "torch==2.3.1\nPython version: 3.12.3\nRuntimeError: Dynamo is not supported on Python 3.12+\n"
    ask(dynamo, code=0)
    ask(dynamo, "--with", "compile=false", code=3)


def test_a_token_in_a_local_version_is_not_shown(ask):
    _, text = ask("torch==2.4.0+ghp_0123456789abcdefABCDEF\ntransformers==4.44.2+hf_AbCdEfGhIjKlMn\n" + AMPERE, code=0)
    assert "ghp_" not in text
    assert "hf_" not in text
    assert "torch 2.4.0" in text


@pytest.mark.parametrize("version", ["2.4.0+cu121", "2.8.3+cu12torch2.6cxx11abiFALSE", "2.1.0+cpu", "2.5.0+git1a2b3c4"])
def test_a_local_version_that_is_none_is_shown(ask, version):
    _, text = ask(f"torch=={version}\n" + AMPERE, code=0)
    assert version in text


def test_a_login_in_the_last_error_is_not_shown():
    assert redact_secrets("OSError: https://me:secret@host/x hf_AbCdEfGhIjKlMn") == "OSError: https://***@host/x ***"


def test_the_last_of_many_errors_is_found_and_warnings_are_not():
    text = "ValueError: first\n" + "step\n" * 5 + "KeyError: 'last'\nFutureWarning: Error: no\n"
    assert last_error(text).text == "KeyError: 'last'"
    assert last_error(text).line == 7


def test_the_help_has_an_example_and_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    text = capsys.readouterr().out
    assert "pip freeze > freeze.txt; knowngood diagnose train.log -r freeze.txt" in text
    assert "exit codes: 0 a known failure; 1 none" in text


def test_conditions_of_use_may_be_written_as_check_takes_them(ask):
    dynamo = "torch==2.3.1\nPython version: 3.12.3\nRuntimeError: Dynamo is not supported on Python 3.12+\n"
    ask(dynamo, "--with", "Compile=No", code=3)
    ask(dynamo, "--with", "Compile=Yes", code=0)


def test_a_condition_of_use_that_cannot_be_is_a_wrong_use(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(AMPERE)
    assert main(["diagnose", str(log), "--with", "attn=fastest"]) == 2
    assert "fastest" in capsys.readouterr().err
    assert main(["diagnose", str(log), "--with", "no-such-key=1"]) == 0
    assert "no rule asks about 'no-such-key'" in capsys.readouterr().err


def test_the_answer_is_short_and_the_rest_is_behind_why(ask):
    _, short = ask(AMPERE, code=0)
    _, long = ask(AMPERE, "--why", code=0)
    assert (short.count("fix: "), "other remed" in short, "Dao-AILab" in short) == (1, True, False)
    assert long.count("fix: ") > 1
    assert "github" in long or "#" in long


def test_the_known_failures_are_listed_by_words(capsys):
    assert main(["diagnose", "--json", "--list", "CUDA", "out", "of", "memory"]) == 0
    listed = json.loads(capsys.readouterr().out)["incidents"]
    assert listed[0] == {"incident": "cuda-out-of-memory", "title": "The GPU has not enough memory"}
    assert main(["diagnose", "--list", "aardvark"]) == 1
    assert capsys.readouterr().out == "no known failure is told in: aardvark\n"
    assert main(["diagnose", "train.log", "--list", "memory"]) == 2
