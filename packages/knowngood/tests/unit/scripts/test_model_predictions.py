"""What the sources of a transformers release say of the outcomes of the model suite."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from knowngood.core.errors import InputError, UsageError
from knowngood.smoke.model_config import PREDICTIONS_FOLDER, read_model_predictions
from samples import ROOT

SPEC = importlib.util.spec_from_file_location(
    "model_predictions", ROOT / "packages/knowngood/scripts/model_predictions.py"
)
model_predictions = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = model_predictions
SPEC.loader.exec_module(model_predictions)
predict_model_checks, read_family_sources = (
    model_predictions.predict_model_checks,
    model_predictions.read_family_sources,
)

MODELING = """
class TinyPreTrainedModel(PreTrainedModel):
    _supports_sdpa = {sdpa}
    _supports_flash_attn = True

class TinyAttention:
    def forward(self):
        attention_interface(self, softcap=self.cap)

class TinyModel(TinyPreTrainedModel):
    def forward(self):
        create_causal_mask(config=1, {positions})
"""
CONFIGURATION = "class TinyConfig:\n    attn_logit_softcapping: float | None = {cap}\n    v_head_dim: int = 128\n"
PLAIN_SDPA = "def sdpa_attention_forward(module, query): ..."
FLASH = 'flash_kwargs["window_size"] = (sliding_window - 1, sliding_window - 1)'


def predict(
    *,
    sdpa="True",
    cap="None",
    positions="position_ids=position_ids",
    more="",
    configured="",
    function=None,
    flash=FLASH,
):
    modeling = MODELING.format(sdpa=sdpa, positions=positions) + more
    sources = read_family_sources(modeling, CONFIGURATION.format(cap=cap) + configured, function or PLAIN_SDPA, flash)
    return predict_model_checks("tiny", sources)


def test_a_plain_model_is_right_wherever_torch_has_kernels_for_a_cpu():
    predictions = predict()
    outcomes = {check: item["outcome"] for check, item in predictions.items()}
    assert {outcomes[f"tiny/{name}/*"] for name in ("eager", "sdpa", "sdpa-math", "sdpa-flash")} == {"pass"}
    assert outcomes["tiny/sdpa-cudnn/*"] == outcomes["tiny/flex/*"] == "refused"
    assert outcomes["tiny/fa2/*"] == "not-run"
    assert "tiny/eager/*/packed" not in outcomes


def test_a_model_without_flash_attention_refuses_the_fourth_where_the_release_has_a_name_for_it():
    without = "\nclass OtherPreTrainedModel:\n    _supports_flash_attn = False\n"
    assert predict(more=without)["tiny/fa4/*"]["outcome"] == "not-run"
    newer = predict(more=without, flash=f"{FLASH}\nname = 'flash_attention_4'")
    assert newer["tiny/fa4/*"] == {"outcome": "refused", "because": "the model states no flash attention"}
    assert predict(flash=f"{FLASH}\nname = 'flash_attention_4'")["tiny/fa4/*"]["outcome"] == "not-run"


def test_a_soft_cap_that_the_function_of_sdpa_does_not_know_fails():
    assert predict(cap="50.0")["tiny/sdpa/*"] == {
        "outcome": "fail",
        "because": "the model has a soft-cap of 50.0 and the function of SDPA ignores it",
    }
    raising = "if kwargs.get('softcap'): raise ValueError"
    assert predict(cap="50.0", function=raising)["tiny/sdpa/*"]["because"].endswith("raises an error for it")
    assert predict(cap="50.0", sdpa="False")["tiny/sdpa/*"]["outcome"] == "refused"
    assert predict(cap="50.0")["tiny/eager/*"]["outcome"] == "pass"


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"positions": "attention_mask=None"}, "the masks are made without position_ids"),
        ({"more": "class TinyMambaMixer: ..."}, "layers that carry a state are not told where a packed sample begins"),
    ],
)
def test_packed_rows_leak_where_nothing_keeps_them_apart(changed, because):
    assert predict(**changed)["tiny/eager/*/packed"] == {"outcome": "fail", "because": because}


def test_masks_may_be_made_from_prepared_arguments():
    prepared = (
        "\ndef make():\n    mask_kwargs = {'config': 1, 'position_ids': 2}\n    create_causal_mask(**mask_kwargs)\n"
    )
    assert "tiny/eager/*/packed" not in predict(more=prepared)
    assert "tiny/eager/*/packed" in predict(more=prepared.replace("'position_ids'", "'other'"))


def test_on_a_gpu_flash_attn_refuses_fp32_and_memory_efficient_kernels_shared_keys():
    shared = "\nclass Groups:\n    def __init__(self, num_attention_heads=8, num_key_value_heads=2, head_dim=64): ...\n"
    sdpa = "def use_gqa_in_sdpa(attention_mask, key): ..."
    for configured, function, dense in ((shared, sdpa, True), (shared, PLAIN_SDPA, False), ("", sdpa, False)):
        sources = read_family_sources(
            MODELING.format(sdpa="True", positions="position_ids=1"),
            CONFIGURATION.format(cap="None") + configured,
            function,
            FLASH,
        )
        predictions = predict_model_checks("tiny", sources, "gpu")
        assert ("tiny/sdpa-efficient/*/dense" in predictions) == dense
        assert predictions["tiny/fa2/*"]["outcome"] == "pass"
        assert predictions["tiny/fa2/fp32/*"]["outcome"] == "refused"


def test_heads_wider_than_flash_attn_2_has_kernels_for_are_refused():
    wide = "\nclass Wide:\n    head_dim: int = 256\n\n    def __post_init__(self, **kwargs):\n        {popped}\n"
    for popped, outcome in [('kwargs.pop("global_head_dim", 512)', "refused"), ("pass", "pass")]:
        sources = read_family_sources(
            MODELING.format(sdpa="True", positions="position_ids=position_ids"),
            CONFIGURATION.format(cap="None") + wide.format(popped=popped),
            PLAIN_SDPA,
            FLASH,
        )
        assert predict_model_checks("tiny", sources, "gpu")["tiny/fa2/*"]["outcome"] == outcome


def test_values_of_another_width_have_no_flash_kernel_on_a_cpu():
    wide = "\nclass Wide:\n    def __init__(self, qk_nope_head_dim=128, qk_rope_head_dim=64): ...\n"
    assert predict(configured=wide)["tiny/sdpa-flash/*"]["outcome"] == "refused"


def test_a_model_that_names_its_flash_implementations_is_left_open():
    names = "\nclass OtherPreTrainedModel(X):\n    _compatible_flash_implementations = ['a']\n"
    predictions = predict(more=names)
    assert "tiny/fa2/*" not in predictions
    assert "tiny/fa4/*" in predictions


def test_flash_attn_2_drops_the_sinks_of_a_model_that_passes_them_on():
    passes = "\ndef forward(function, sinks):\n    return function(s_aux=sinks)\n"
    sources = read_family_sources(
        MODELING.format(sdpa="True", positions="position_ids=1") + passes, "class TinyConfig: ...", PLAIN_SDPA, FLASH
    )
    assert predict_model_checks("tiny", sources, "gpu")["tiny/fa2/*"]["outcome"] == "fail"


@pytest.mark.parametrize(
    ("defaults", "flash", "outcome"),
    [
        ("sliding_window=4096", FLASH.replace(" - 1", ""), "fail"),
        ("sliding_window=4096, use_sliding_window=True", FLASH.replace(" - 1", ""), "fail"),
        ("sliding_window=4096", FLASH, "pass"),
        ("sliding_window=4096, use_sliding_window=False", FLASH.replace(" - 1", ""), "pass"),
        ("sliding_window=None", FLASH.replace(" - 1", ""), "pass"),
    ],
)
def test_a_sliding_window_that_flash_attn_gets_one_token_too_wide_fails(defaults, flash, outcome):
    passes = "\ndef forward(function, window):\n    return function(sliding_window=window)\n"
    modeling = MODELING.format(sdpa="True", positions="position_ids=1") + passes
    configuration = f"class TinyConfig:\n    def __init__(self, {defaults}): ...\n"
    sources = read_family_sources(modeling, configuration, PLAIN_SDPA, flash)
    assert predict_model_checks("tiny", sources, "gpu")["tiny/fa2/*"]["outcome"] == outcome
    assert predict_model_checks("tiny", sources, "gpu")["tiny/eager/*"]["outcome"] == "pass"


def test_the_committed_predictions_can_be_read():
    for path in sorted((ROOT / PREDICTIONS_FOLDER).glob("*.json")):
        assert len(read_model_predictions(path)) > 100


def test_a_file_that_is_none_of_predictions_is_named(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_model_predictions(tmp_path / "none.json")
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"gemma2/sdpa/*": {"outcome": "maybe", "because": "?"}}))
    with pytest.raises(InputError, match="outcome"):
        read_model_predictions(path)


def test_on_a_gpu_the_kernels_without_a_mask_refuse_and_flash_attn_takes_packed_rows():
    sources = read_family_sources(
        MODELING.format(sdpa="True", positions="attention_mask=None"),
        "class TinyConfig:\n    head_dim: int = 256\n",
        PLAIN_SDPA,
        FLASH,
    )
    outcomes = {check: item["outcome"] for check, item in predict_model_checks("tiny", sources, "gpu").items()}
    assert outcomes["tiny/sdpa-flash/*/packed"] == "refused"
    assert outcomes["tiny/sdpa-efficient/*/packed"] == "fail"
    assert "tiny/fa2/*/packed" not in outcomes
    assert outcomes["tiny/fa2/*"] == "pass"
    assert not any(check.startswith("tiny/sdpa-cudnn") for check in outcomes)
