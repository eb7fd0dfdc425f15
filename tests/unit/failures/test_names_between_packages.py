"""Errors about names between packages: whose name it is, which release runs, and what is only a warning."""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main

BEGIN = "Traceback (most recent call last):\n"
PACKAGES = "/opt/conda/lib/python3.10/site-packages"
OWN = '  File "/home/u/project/train.py", line 51, in main\n'


@pytest.fixture
def answer(module_cache, monkeypatch, capsys):
    """A function that gives a log to the command and returns its whole JSON answer."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(module_cache))

    def diagnose(log):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.encode())))
        main(["diagnose", "--json", "-"])
        return json.loads(capsys.readouterr().out)

    return diagnose


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


def test_a_release_in_which_something_was_deprecated_is_not_the_one_that_runs(answer):
    log = (
        f"{BEGIN}{OWN}    tmp = [np.float(i) for i in line.split()]\n"
        f'  File "{PACKAGES}/numpy/__init__.py", line 305, in __getattr__\n'
        "    raise AttributeError(__former_attrs__[attr])\n"
        "AttributeError: module 'numpy' has no attribute 'float'.\n"
        "The aliases was originally deprecated in NumPy 1.20; for more details and guidance see the release note\n"
    )
    found = answer(log)
    assert "numpy" not in found["versions"]
    assert found["matches"][0]["incident"] == "numpy-aliases-gone"


def test_an_error_that_a_warning_quotes_in_its_next_line_is_no_failure(answer):
    log = (
        f"(pid=8) {PACKAGES}/vllm/connections.py:8: RuntimeWarning: Failed to read commit hash:\n"
        "(pid=8) No module named 'vllm._version'\n"
        "(pid=8)   from vllm.version import __version__ as VLLM_VERSION\n"
        "step 1 loss 0.33\n"
    )
    assert answer(log)["outcome"] == "no-failure"


def test_an_error_that_comes_only_with_what_is_not_used_is_no_failure(answer):
    log = (
        "[INFO:swift] No vLLM installed, if you are using vLLM, you will get "
        "`ImportError: cannot import name 'get_vllm_engine' from 'swift.llm'`\n"
        "Train:   1%|          | 1/100 [00:03<05:00,  3.03s/it]\n"
    )
    assert answer(log)["outcome"] == "no-failure"


def test_a_script_with_the_name_of_a_package_hides_it(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/ctranslate2/converters/transformers.py", line 449, in <module>\n    main()\n'
        f'  File "{PACKAGES}/ctranslate2/converters/transformers.py", line 51, in _load\n'
        "    config = transformers.AutoConfig.from_pretrained(self._model_name_or_path)\n"
        "AttributeError: module 'transformers' has no attribute 'AutoConfig'\n- transformers: 4.21.0\n"
    )
    assert (match["component"], match["kind"]) == ("your-code", "shadowed")


def test_a_method_of_a_class_that_moved_within_its_package_is_in_every_release(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    unet.enable_gradient_checkpointing()\n"
        f'  File "{PACKAGES}/torch/nn/modules/module.py", line 1207, in __getattr__\n'
        "    raise AttributeError(\"'{}' object has no attribute '{}'\".format(\n"
        "AttributeError: 'UNet2DConditionModel' object has no attribute 'enable_gradient_checkpointing'\n"
    )
    assert (match["component"], match["kind"]) == ("diffusers", "api-not-yet")


def test_an_attribute_that_another_step_of_the_package_sets_is_not_of_an_older_release(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    accelerator.end_training()\n"
        f'  File "{PACKAGES}/accelerate/accelerator.py", line 2499, in end_training\n    for tracker in self.trackers:\n'
        "AttributeError: 'Accelerator' object has no attribute 'trackers'\n"
    )
    assert "did not set its own `trackers`" in match["title"]
    assert "Call first what sets trackers" in notes(match)


GETATTRIBUTE = (
    f'  File "{PACKAGES}/transformers/configuration_utils.py", line 164, in __getattribute__\n'
    "    return super().__getattribute__(key)\n"
)


def test_settings_of_generation_are_gone_from_configurations_since_transformers_5(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/amrlib/models/parse_xfm/inference.py", line 46, in __init__\n'
        f"    if self.model.config.no_repeat_ngram_size != 0:\n{GETATTRIBUTE}"
        "AttributeError: 'BartConfig' object has no attribute 'no_repeat_ngram_size'\n"
    )
    assert match["component"] == "amrlib"
    assert match["fix"][0]["install"] == 'pip install "transformers==4.57.6"'
    assert "model.generation_config.no_repeat_ngram_size" in notes(match)


def test_a_field_of_one_part_is_not_in_the_configuration_of_the_whole(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    vocab = model.config.vocab_size\n{GETATTRIBUTE}"
        "AttributeError: 'Gemma3Config' object has no attribute 'vocab_size'\n"
    )
    assert match["component"] == "your-code"
    assert "config.get_text_config().vocab_size" in notes(match)


def test_an_engine_learns_a_model_s_own_configuration_in_a_later_release(first_match):
    match = first_match(
        f'{BEGIN}  File "/sgl-workspace/sglang/python/sglang/srt/configs/model_config.py", line 201, in __init__\n'
        f"    self.hf_text_config.hidden_size // self.hf_text_config.num_attention_heads,\n{GETATTRIBUTE}"
        "AttributeError: 'POINTSV15ChatConfig' object has no attribute 'hidden_size'\n"
    )
    assert match["component"] == "sglang"
    assert "has POINTSV15ChatConfig" in notes(match)
