from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.cell import Cell, parse
from knowngood.errors import UsageError

HOPPER = "sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311"

versions = st.builds(
    lambda release, suffix: ".".join(map(str, release)) + suffix,
    st.lists(st.integers(0, 99), min_size=2, max_size=3),
    st.sampled_from(["", ".post2", "b36", "rc1", ".dev3"]),
)
cells = st.builds(
    Cell,
    gpu=st.sampled_from(["sm_70", "sm_75", "sm_90", "sm_100", "sm_120"]),
    cuda=st.sampled_from(["11.8", "12.4", "13.0"]),
    torch=versions,
    transformers=versions,
    flash_attn=st.sampled_from(["0", "2.8.3.post2", "4.0.0b36"]),
    triton=versions,
    python=st.sampled_from(["3.9", "3.11", "3.13"]),
    framework=st.one_of(
        st.just("none"),
        st.builds(lambda name, version: name + version, st.sampled_from(["xtuner", "transformer-engine"]), versions),
    ),
)


@given(cells)
def test_an_id_names_exactly_one_cell(cell):
    assert parse(str(cell)) == cell


def test_the_id_of_the_design():
    cell = parse(HOPPER)
    assert (cell.gpu, cell.cuda, cell.python) == ("sm_90", "13.0", "3.11")
    assert cell.flash_attn_package == "flash-attn"
    assert cell.framework_pin is None
    assert "framework" not in cell.axes()
    assert str(cell.without_flash_attn()) == HOPPER.replace("fa2.8.3.post2", "fa0")


def test_a_framework_is_the_end_of_the_id():
    cell = parse(f"{HOPPER}-transformer-engine2.20.2")
    assert cell.framework_pin == ("transformer-engine", "2.20.2")
    assert cell.axes()["framework"] == "transformer-engine2.20.2"
    assert str(cell.without_framework()) == HOPPER


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        HOPPER.upper(),
        HOPPER + "\nRUN evil",
        HOPPER.replace("2.11.0", "2.11.0+cu130"),
        HOPPER.replace("2.11.0", "02.11.0"),
        HOPPER.replace("4.57.6", "x.y"),
        HOPPER.replace("fa2.8.3.post2", "fa3.0.0"),
        HOPPER + "-xtuner",
        HOPPER + "-xtuner00.1",
        HOPPER + "-none",
    ],
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(UsageError):
        parse(text)
