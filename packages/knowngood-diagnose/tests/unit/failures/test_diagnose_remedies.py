"""Remedies tried against a log: the release to install, what collides, the smallest change for all failures."""

from __future__ import annotations

import json
import shutil

import pytest

from knowngood.cli.main import main
from knowngood.core.local_files import data_folder
from knowngood_diagnose.failures.diagnosis import render_install_command

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


def test_a_range_becomes_the_nearest_release_to_the_one_in_the_log(ask):
    found = ask(
        "xtuner==0.1.23 transformers==4.44.2 torch==2.4.0+cu121\nPython 3.10.14\n  /lib/python3.10/x\n" + XTUNER
    )
    assert found["install"] == 'pip install "transformers==4.42.4"'
    first, *_ = found["matches"][0]["fix"]
    assert first["change"] == {"transformers": ">=4.39,<4.43"}
    assert first["install"] == found["install"]
    both = fixes(found)['{"transformers": "==4.48.0", "xtuner": ">=0.2.0"}']
    assert both["install"] == 'pip install "transformers==4.48.0" "xtuner==0.2.0"'


def test_a_release_that_goes_with_the_rest_comes_before_advice_and_no_stand_in_is_a_new_place(ask):
    frame = '  File "/home/u/run/train.py", line 3, in <module>\n'
    name = "cannot import name 'apply_chunking_to_forward' from 'transformers.modeling_utils'"
    found = ask(f"transformers==4.57.0\nTraceback (most recent call last):\n{frame}ImportError: {name} (/x/y.py)\n")
    first, *others = found["matches"][0]["fix"]
    assert first["install"].startswith('pip install "transformers==4.5')
    assert [fix["note"] for fix in others] == ["In your code: transformers.pytorch_utils.apply_chunking_to_forward"]


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


def test_pinned_packages_change_with_the_package_that_pins_them(ask):
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


def test_a_collision_in_the_log_does_not_count_against_a_remedy(ask):
    log = "torch==2.3.1\ntriton==2.0.0\nflash-attn==2.5.8\nPython version: 3.12.3\nGPU: Tesla V100-SXM2-32GB\n"
    found = ask(log + "RuntimeError: Dynamo is not supported on Python 3.12+\n")
    assert 'pip install "torch==2.4.0"' in [fix.get("install") for fix in found["matches"][0]["fix"]]


def test_a_consequence_does_not_change_the_install_command(ask):
    log = "GPU: Tesla V100-SXM2-32GB\n/tmp/x/main.c:4:10: fatal error: Python.h: No such file or directory\n"
    found = ask(
        log
        + "CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c', '-lcuda']' returned non-zero exit status 1."
    )
    assert [match["incident"] for match in found["matches"]] == ["python-h-missing", "triton-launcher-does-not-compile"]
    assert found["install"] is None


def test_the_first_failure_counts_even_if_the_log_does_not_confirm_it(ask):
    found = ask("transformers==4.44.2\n" + XTUNER)
    assert not found["matches"][0]["versions_confirmed"]
    assert found["install"] == 'pip install "transformers==4.42.4"'


def test_a_package_that_the_log_does_not_show_is_not_installed(ask):
    assert ask("torch==2.4.0\n" + XTUNER)["install"] is None


WIDGET_INCIDENT = """\
title: A widget
kind: config
component: widget
signatures: [the widget exploded badly]
affected: [{xtuner: "*", transformers: "*"}]
when: {packing: "true"}
because: It does.
fix: [FIX]
source: owner/name#1
confidence: measured
"""


@pytest.mark.parametrize("fix", ["{note: none is known}", '{note: again, change: {transformers: "*"}}'])
def test_a_failure_without_a_remedy_does_not_prevent_the_remedy_of_another(tmp_path, capsys, fix):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "widget.yaml").write_text(WIDGET_INCIDENT.replace("FIX", fix))
    shutil.copy(
        data_folder() / "packages/knowngood-diagnose/incidents" / "xtuner-qwen2-flash-attention-forward.yaml", folder
    )
    log = tmp_path / "train.log"
    log.write_text("xtuner==0.1.23\ntransformers==4.44.2\nthe widget exploded badly\n" + XTUNER)
    assert main(["diagnose", str(log), "--json", "--incidents", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [match["incident"] for match in found["matches"]] == ["widget", "xtuner-qwen2-flash-attention-forward"]
    assert not {"install", "broken_by"} & found["matches"][0]["fix"][0].keys()
    assert found["install"] == 'pip install "transformers==4.42.4"'


def test_without_versions_nothing_is_tried(ask):
    found = ask(XTUNER)
    assert found["install"] is None
    assert not any("install" in fix or "broken_by" in fix for fix in found["matches"][0]["fix"])


def test_two_versions_of_a_package_do_not_count_against_a_remedy(ask):
    found = ask("transformers==4.42.4\nupgraded\ntransformers==4.44.2\nxtuner==0.1.23\n" + XTUNER)
    assert found["install"]


@pytest.mark.parametrize("gpu", ["Tesla V100-SXM2-32GB", "NVIDIA B200"])
def test_the_gpu_of_the_log_counts(ask, gpu):
    found = ask(f"GPU type: {gpu}\nflash-attn==2.6.3\n" + AMPERE)
    change = fixes(found).get('{"flash-attn": ">=2.7.3"}')
    if "V100" in gpu:
        assert change is None  # it is a remedy for Blackwell only
    else:
        assert change["install"] == 'pip install "flash-attn==2.7.3" --no-build-isolation'


def test_a_remedy_is_tried_with_what_all_packages_require(ask):
    """Packages such as trl and peft have no facts about GPUs, and their requirements count all the same."""
    log = "transformers==4.49.0\ntrl==0.7.10\npeft==0.10.0\nPython 3.10.12\n"
    frame = '  File "/lib/site-packages/trl/core.py", line 25, in <module>\n'
    frame += "    from transformers import top_k_top_p_filtering\n"
    found = ask(log + frame + "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'\n")
    assert found["install"] == 'pip install "trl==0.8.0"'


def test_a_release_that_no_facts_cover_is_offered_all_the_same(ask):
    log = "transformers==4.49.0\nAttributeError: 'BertModel' object has no attribute 'nothing'\n"
    found = ask(log + "'DynamicCache' object has no attribute 'get_max_length'\n")
    assert not any("broken_by" in fix for fix in found["matches"][0]["fix"])


def test_a_remedy_for_one_gpu_is_not_installed_where_the_log_names_none(ask):
    found = ask("flash-attn==2.6.3\ntorch==2.4.0\n" + AMPERE)
    change = fixes(found)['{"flash-attn": ">=2.7.3"}']
    assert change["gpu"] == ">=100"
    assert "install" not in change
    assert found["install"] is None


def test_another_torch_is_no_cure_for_the_fault_of_another_package(ask):
    found = ask("torch==2.6.0\ntransformers==4.50.0\nModuleNotFoundError: No module named 'triton.ops'\n")
    assert "torch" not in str(found["install"])


def test_the_text_has_the_remedies_too(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("openrlhf==0.8.5\ntransformers==4.52.4\n" + PADDING)
    assert main(["diagnose", str(log), "--why"]) == 0
    assert "not here: openrlhf 0.8.5 requires transformers==4.52.4" in capsys.readouterr().out
    log.write_text("xtuner==0.1.23\ntransformers==4.44.2\n" + XTUNER)
    assert main(["diagnose", str(log)]) == 0
    assert 'the smallest change that fits the other versions in the log: pip install "transf' in capsys.readouterr().out


def test_a_range_where_there_are_no_facts():
    assert (
        render_install_command({"trl": ">=0.8.1", "transformers": "4.42.4"})
        == 'pip install "transformers==4.42.4" "trl>=0.8.1"'
    )
