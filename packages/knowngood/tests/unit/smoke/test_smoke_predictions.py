from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from knowngood.core import cell
from knowngood.core.errors import InputError
from knowngood.smoke import predictions

ROOT = Path(__file__).resolve().parents[5]
FA4 = cell.parse_cell("sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311")
FA2 = cell.parse_cell("sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311")

TEXT = """\
- {check: fa2/*, outcome: refused, because: no kernels, source: seen, when: flash-attn=2.*, device: cpu}
- {check: [fa2/*, fa4/*], outcome: not-run, because: not there, source: the cell, when: flash-attn=4.*}
"""


def test_a_prediction_applies_to_its_cells_and_its_device():
    found = predictions.parse_predictions(TEXT, "smoke.yaml")
    assert predictions.predictions_for_cell(found, FA2, gpu=False) == {
        "fa2/*": {"outcome": "refused", "because": "no kernels"}
    }
    assert predictions.predictions_for_cell(found, FA2, gpu=True) == {}
    assert set(predictions.predictions_for_cell(found, FA4, gpu=True)) == {"fa2/*", "fa4/*"}


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("- {check: a, outcome: passed, because: b, source: c}", "1:23", "outcome"),
        ("- {check: a, outcome: pass, because: b}", "1:3", "source"),
        ("- {check: a, outcome: pass, because: b, source: c, when: torc>=2}", "1:58", "did you mean torch"),
        ("check: a", "1:1", "list"),
        ("- [\t", "1:4", ""),
    ],
)
def test_a_defect_is_reported_with_its_line(text, place, why):
    with pytest.raises(InputError) as caught:
        predictions.parse_predictions(text, "smoke.yaml")
    assert f"smoke.yaml:{place}:" in str(caught.value)
    assert why in str(caught.value)


def test_the_predictions_of_this_project_are_valid_and_have_a_source():
    found = predictions.parse_predictions(
        (ROOT / "smoke_tests/predictions.yaml").read_text(), "smoke_tests/predictions.yaml"
    )
    assert all(item.source and item.because for item in found)
    cpu = predictions.predictions_for_cell(found, FA4, gpu=False)
    assert cpu["fa4/*"]["outcome"] == "refused"
    assert cpu["fa2/*"]["outcome"] == "not-run"


@pytest.mark.parametrize(
    ("trainer", "torch", "gpu", "check", "outcome"),
    [
        ("torchtitan0.3.0", "2.11.0", True, "trainer/torchtitan-text/qwen3/flex/fp32/packed/full", "fail"),
        ("torchtitan0.3.0", "2.11.0", False, "trainer/torchtitan-text/qwen3/fa4/bf16/packed/full", "fail"),
        ("torchtitan0.3.0", "2.11.0", False, "trainer/torchtitan-chat/labels-shifted/sdpa/fp32/padded/full", "fail"),
        ("torchtitan0.3.0", "2.15.0", False, "trainer/torchtitan-text/qwen3/flex/fp32/packed/full", "refused"),
        ("torchtitan0.3.0", "2.15.0", True, "trainer/torchtitan-text/qwen3/flex/fp32/packed/full", None),
        ("torchtitan0.3.0", "2.15.0", False, "trainer/torchtitan-text/qwen3/eager/fp32/packed/full", None),
        ("torchtitan0.3.0", "2.15.0", True, "trainer/torchtitan-text/qwen3/sdpa/fp32/packed/full", "refused"),
        ("torchtitan0.3.0", "2.15.0", True, "trainer/torchtitan-chat/qwen3/sdpa/fp32/padded/full", None),
        ("megatron-core0.16.1", "2.11.0", False, "trainer/megatron-core-gpt/qwen2/eager/fp32/packed/full", None),
        (
            "megatron-core0.16.1",
            "2.11.0",
            True,
            "trainer/megatron-core-gpt/qwen2/eager/fp32/padded/accumulated",
            "fail",
        ),
        (
            "megatron-core0.16.1",
            "2.11.0",
            False,
            "trainer/megatron-core-gpt/qwen3/eager/fp32/padded/resumed-distributed",
            "fail",
        ),
        ("megatron-core0.16.1", "2.11.0", True, "trainer/megatron-core-gpt/qwen3/eager/fp32/padded/distributed", None),
        (
            "megatron-core0.16.1",
            "2.11.0",
            True,
            "trainer/megatron-core-gpt/qwen3/eager/bf16-pure/packed/fused",
            "not-run",
        ),
    ],
)
def test_what_is_predicted_of_torchtitan_and_megatron_core(trainer, torch, gpu, check, outcome):
    pins = str(FA4).replace("torch2.11.0", f"torch{torch}")
    found = predictions.parse_predictions(
        (ROOT / "smoke_tests/predictions.yaml").read_text(), "smoke_tests/predictions.yaml"
    )
    made = predictions.predictions_for_cell(found, cell.parse_cell(f"{pins}-{trainer}"), gpu=gpu)
    globs = [glob for glob in made if fnmatch.fnmatchcase(check, glob)]
    assert (made[max(globs, key=len)]["outcome"] if globs else None) == outcome
