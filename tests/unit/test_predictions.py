from __future__ import annotations

from pathlib import Path

import pytest

from knowngood import cell, predictions
from knowngood.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
FA4 = cell.parse("sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311")
FA2 = cell.parse("sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311")

TEXT = """\
- {check: fa2/*, outcome: refused, because: no kernels, source: seen, when: flash-attn=2.*, device: cpu}
- {check: [fa2/*, fa4/*], outcome: not-run, because: not there, source: the cell, when: flash-attn=4.*}
"""


def test_a_prediction_holds_for_its_cells_and_its_device():
    found = predictions.parse(TEXT, "smoke.yaml")
    assert predictions.predict(found, FA2, gpu=False) == {"fa2/*": {"outcome": "refused", "because": "no kernels"}}
    assert predictions.predict(found, FA2, gpu=True) == {}
    assert set(predictions.predict(found, FA4, gpu=True)) == {"fa2/*", "fa4/*"}


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
def test_a_defect_has_its_line(text, place, why):
    with pytest.raises(InputError) as caught:
        predictions.parse(text, "smoke.yaml")
    assert f"smoke.yaml:{place}:" in str(caught.value)
    assert why in str(caught.value)


def test_the_predictions_of_this_project_are_readable_and_say_where_they_come_from():
    found = predictions.parse((ROOT / "rules/smoke.yaml").read_text(), "rules/smoke.yaml")
    assert all(item.source and item.because for item in found)
    cpu = predictions.predict(found, FA4, gpu=False)
    assert cpu["fa4/*"]["outcome"] == "refused"
    assert cpu["fa2/*"]["outcome"] == "not-run"
