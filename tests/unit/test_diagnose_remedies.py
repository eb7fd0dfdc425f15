"""Remedies tried against what a log shows: the release to install, what does not go, the smallest change for all."""

from __future__ import annotations

import json

import pytest

from knowngood.cli import main
from knowngood.diagnosing.remedies import install

XTUNER = "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'\n"
PADDING = (
    "ValueError: You are attempting to perform batched generation with padding_side='right' this may lead to unexpected"
    " behaviour for Flash Attention version of Qwen2. Make sure to  call `tokenizer.padding_side  = 'left'`\n"
)
SOFTCAP = "TypeError: _flash_attn_varlen_backward() missing 1 required positional argument: 'softcap'\n"
AMPERE = "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"


@pytest.fixture
def ask(tmp_path, capsys):
    def diagnose(text):
        log = tmp_path / "train.log"
        log.write_text(text)
        assert main(["diagnose", str(log), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return diagnose


def fixes(document, number=0):
    return {
        json.dumps(fix.get("change", fix["note"]), sort_keys=True): fix for fix in document["matches"][number]["fix"]
    }


def test_a_range_is_settled_to_the_release_nearest_to_the_one_at_hand(ask):
    found = ask(
        "xtuner==0.1.23 transformers==4.44.2 torch==2.4.0+cu121\nPython 3.10.14\n  /lib/python3.10/x\n" + XTUNER
    )
    assert found["install"] == 'pip install "transformers==4.42.4"'
    first, *_ = found["matches"][0]["fix"]
    assert first["change"] == {"transformers": ">=4.39,<4.43"}
    assert first["install"] == found["install"]
    both = fixes(found)['{"transformers": "==4.48.0", "xtuner": ">=0.2.0"}']
    assert both["install"] == 'pip install "transformers==4.48.0" "xtuner==0.2.0"'


def test_a_remedy_that_the_rest_of_the_log_forbids_comes_last_with_the_reason(ask):
    found = ask("Successfully installed openrlhf-0.8.5 transformers-4.52.4 torch-2.7.0\n" + PADDING)
    *good, _, last = found["matches"][0]["fix"]
    assert last["broken_by"] == "openrlhf 0.8.5 requires transformers==4.52.4"
    assert "install" not in last
    assert all("broken_by" not in fix for fix in good)
    assert found["install"] is None


def test_the_python_of_the_log_counts(ask):
    failure = "RuntimeError: Dynamo is not supported on Python 3.12+\n"
    assert 'install "torch==2.4.0"' in ask("torch==2.3.1\nPython version: 3.12.3\n" + failure)["install"]
    found = ask("torch==2.3.1\ntransformers==4.44.2\nPython version: 3.12.3\n" + failure)
    assert found["install"] == 'pip install "torch==2.4.0"'


def test_what_a_package_pins_follows_it(ask):
    failure = "RuntimeError: Dynamo is not supported on Python 3.12+\n"
    assert ask("torch==2.3.1\ntriton==2.3.1\nPython version: 3.12.3\n" + failure)["install"] == (
        'pip install "torch==2.4.0"'
    )


def test_one_change_for_two_failures(ask):
    log = "xtuner==0.1.23 transformers==4.44.2 transformer-engine==1.12.0 flash-attn==2.6.3 torch==2.4.0\n"
    found = ask(log + XTUNER + SOFTCAP)
    assert [match["incident"] for match in found["matches"]] == [
        "xtuner-qwen2-flash-attention-forward",
        "transformer-engine-softcap-backward",
    ]
    assert found["install"] == 'pip install "flash-attn==2.5.9.post1" "transformers==4.42.4" --no-build-isolation'


def test_what_collides_already_is_no_reason_against_a_remedy(ask):
    log = "torch==2.3.1\ntriton==2.0.0\nflash-attn==2.5.8\nPython version: 3.12.3\nGPU: Tesla V100-SXM2-32GB\n"
    found = ask(log + "RuntimeError: Dynamo is not supported on Python 3.12+\n")
    assert 'pip install "torch==2.4.0"' in [fix.get("install") for fix in found["matches"][0]["fix"]]


def test_a_consequence_is_no_reason_to_install(ask):
    log = "GPU: Tesla V100-SXM2-32GB\n/tmp/x/main.c:4:10: fatal error: Python.h: No such file or directory\n"
    found = ask(
        log
        + "CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c', '-lcuda']' returned non-zero exit status 1."
    )
    assert [match["incident"] for match in found["matches"]] == ["python-h-missing", "triton-launcher-does-not-compile"]
    assert found["install"] is None


def test_without_versions_nothing_is_tried(ask):
    found = ask(XTUNER)
    assert found["install"] is None
    assert not any("install" in fix or "broken_by" in fix for fix in found["matches"][0]["fix"])


def test_of_two_versions_of_a_package_neither_is_held_against_a_remedy(ask):
    found = ask("transformers==4.42.4\nupgraded\ntransformers==4.44.2\nxtuner==0.1.23\n" + XTUNER)
    assert found["install"]


@pytest.mark.parametrize("gpu", ["Tesla V100-SXM2-32GB", "NVIDIA B200"])
def test_the_gpu_of_the_log_counts(ask, gpu):
    found = ask(f"GPU type: {gpu}\nflash-attn==2.6.3\n" + AMPERE)
    change = fixes(found).get('{"flash-attn": ">=2.7.3"}')
    if "V100" in gpu:
        assert change["broken_by"].startswith("flash-attn")
    else:
        assert change["install"] == 'pip install "flash-attn==2.7.3" --no-build-isolation'


def test_the_text_says_it_too(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("openrlhf==0.8.5\ntransformers==4.52.4\n" + PADDING)
    assert main(["diagnose", str(log)]) == 0
    assert "not here: openrlhf 0.8.5 requires transformers==4.52.4" in capsys.readouterr().out
    log.write_text("xtuner==0.1.23\ntransformers==4.44.2\n" + XTUNER)
    assert main(["diagnose", str(log)]) == 0
    assert 'the smallest change that goes with the rest of the log: pip install "transf' in capsys.readouterr().out


def test_a_range_where_there_are_no_facts():
    assert install({"trl": ">=0.8.1", "transformers": "4.42.4"}) == 'pip install "transformers==4.42.4" "trl>=0.8.1"'
