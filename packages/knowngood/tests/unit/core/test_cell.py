from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.hosts import HostArchitecture

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
        st.builds(
            lambda name, version: name + version, st.sampled_from(["xtuner", "transformer-engine", "aarch"]), versions
        ),
    ),
    host=st.sampled_from(HostArchitecture),
)


@given(cells)
def test_parsing_the_id_of_a_cell_gives_that_cell(cell):
    assert parse_cell(str(cell)) == cell


def test_an_id_is_parsed_to_its_axes():
    cell = parse_cell(HOPPER)
    assert (cell.gpu, cell.cuda, cell.python) == ("sm_90", "13.0", "3.11")
    assert cell.flash_attn_package == "flash-attn"
    assert cell.framework_pin is None
    assert "framework" not in cell.axes()
    assert str(cell.without_flash_attn()) == HOPPER.replace("fa2.8.3.post2", "fa0")


def test_a_framework_stands_at_the_end_of_the_id():
    cell = parse_cell(f"{HOPPER}-transformer-engine2.20.2")
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
def test_text_that_is_not_an_id_is_refused(text):
    with pytest.raises(UsageError):
        parse_cell(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torch": "1!2.0"}, "torch 1!2.0: write a public version"),
        ({"torch": "2.11.0+cu130"}, "torch 2.11.0+cu130: write a public version"),
        ({"triton": "latest"}, "'latest' is not a version of triton"),
        ({"triton": "03.6.0"}, "triton 03.6.0: write the normalized version 3.6.0"),
        ({"cuda": "130.0"}, "'130.0' is not a CUDA release"),
        ({"cuda": "9.2"}, "'9.2' is not a CUDA release"),
        ({"gpu": "sm_9"}, "'sm_9' is not a GPU architecture"),
        ({"python": "2.7"}, "'2.7' is not a Python release"),
        ({"framework": "xtuner"}, "'xtuner' is not a framework with its version"),
    ],
)
def test_a_cell_refuses_values_that_its_id_cannot_hold(change, message):
    with pytest.raises(UsageError) as caught:
        replace(parse_cell(HOPPER), **change)
    assert str(caught.value).startswith(message)


def test_an_id_names_the_host_only_where_it_is_not_x86_64():
    cell = parse_cell(HOPPER)
    assert "host" not in cell.axes()
    arm = cell.on_host(HostArchitecture.AARCH64)
    assert str(arm) == f"{HOPPER}-aarch64"
    assert arm.axes()["host"] == "aarch64"
    assert str(parse_cell(f"{HOPPER}-aarch64-xtuner0.1.23").without_framework()) == f"{HOPPER}-aarch64"
    assert parse_cell(f"{HOPPER}-aarch641").framework == "aarch641"


def test_no_framework_is_called_as_a_host_and_no_host_as_another():
    with pytest.raises(UsageError, match="'aarch64' is not a framework"):
        replace(parse_cell(HOPPER), framework="aarch64")
    with pytest.raises(UsageError, match="'riscv64' is no host of a cell; they are x86-64 and aarch64"):
        replace(parse_cell(HOPPER), host="riscv64")
    with pytest.raises(UsageError, match="not a cell id"):
        parse_cell(f"{HOPPER}-x86-64")
