from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.gpus import gpu_catalog_from_sections
from knowngood.core.selection import CellFilter, select_cells
from samples import FA0, FA2, FA4

CELLS = [
    parse_cell(name) for name in (FA4, FA2, FA0, FA4.replace("sm90", "sm100"), FA0.replace("torch2.11.0", "torch2.9.1"))
]
ALIASES = {"default": FA4, "hopper-stable": FA2}


GPUS = gpu_catalog_from_sections(
    {"sm_90": {"family": "Hopper", "cards": ["H100", "GH200"], "aarch64": ["GH200"]}, "sm_100": {"cards": ["B200"]}}
)


def selected_ids(*words: str) -> list[str]:
    return [str(cell) for cell in select_cells(CELLS, ALIASES, words, GPUS)]


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        ((), [0, 1, 2, 3, 4]),
        (("default",), [0]),
        ((FA2,), [1]),
        (("sm90-*",), [0, 1, 2, 4]),
        (("*-fa0-*", "default"), [0, 2, 4]),
        (("gpu=sm_90",), [0, 1, 2, 4]),
        (("gpu!=sm_90",), [3]),
        (("gpu=sm_*",), [0, 1, 2, 3, 4]),
        (("gpu>=sm_100",), [3]),
        (("gpu=H100",), [0, 1, 2, 4]),
        (("gpu!=NVIDIA H100 80GB HBM3",), [3]),
        (("gpu=Hopper,flash-attn=none",), [2, 4]),
        (("gpu=B200", "gpu=h100,torch<2.10"), [3, 4]),
        (("gpu<sm_100,flash-attn=none",), [2, 4]),
        (("flash-attn=4.*",), [0, 3]),
        (("flash-attn=4.0.0b36",), [0, 3]),
        (("flash-attn<4",), [1, 2, 4]),
        (("flash-attn>=2.9",), [0, 3]),
        (("flash-attn>=2.9,torch>=2.11",), [0, 3]),
        (("torch>=2.11, gpu=sm_90",), [0, 1, 2]),
        (("torch~=2.9",), [0, 1, 2, 3, 4]),
        (("torch == 2.9.*",), [4]),
        (("cuda>=13",), [0, 1, 2, 3, 4]),
        (("python=3.11", "default"), [0, 1, 2, 3, 4]),
    ],
)
def test_words_select_cells(words, indices):
    assert selected_ids(*words) == [str(CELLS[index]) for index in indices]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("defualt", "'defualt' selects no cell; the nearest name is default (`knowngood cells` lists them)"),
        ("sm75-*", "'sm75-*' selects no cell"),
        (FA4.replace("tf5", "tf6"), f"{FA4.replace('tf5', 'tf6')} is not in matrix.yaml; add it: `knowngood add sm90-"),
        ("", "'' selects no cell"),
        ("gpu=H1000", "there is no GPU 'H1000' in matrix.yaml; the nearest name is H100"),
        ("gpu=GH200", "'gpu=GH200' selects no cell"),
        ("torch>=3", "'torch>=3' selects no cell"),
        ("torhc>=2", "there is no axis 'torhc'; did you mean torch?"),
        ("rust>=2", "there is no axis 'rust'; the axes are gpu, cuda, torch, transformers, flash-attn, triton, python"),
        ("framework>=xtuner1", "'framework>=xtuner1': a framework takes = or !=, as in framework=xtuner0.1.23"),
        ("torch>=two", "'torch>=two': 'two' is not a version"),
        ("torch>=2.11,", "'' in 'torch>=2.11,' is not a condition; one is written like torch>=2.11"),
        ("gpu>=H100", "'gpu>=H100': 'H100' is not a GPU architecture; one is written like sm_90"),
    ],
)
def test_a_word_that_selects_nothing_is_an_error(word, message):
    with pytest.raises(UsageError) as caught:
        selected_ids(word)
    assert str(caught.value).startswith(message)


def test_one_bad_word_among_good_ones_is_an_error():
    with pytest.raises(UsageError, match="sm75"):
        selected_ids("default", "sm75-*")


@given(
    st.lists(
        st.sampled_from(["default", "hopper-stable", FA0, "sm90-*", "*", "torch>=2.10", "gpu=sm_100", "*tf4*"]),
        max_size=4,
    )
)
def test_a_selection_has_the_order_of_the_matrix(words):
    chosen = selected_ids(*words)
    order = [str(cell) for cell in CELLS]
    assert chosen == [name for name in order if name in set(chosen)]
    assert all(set(selected_ids(word)) <= set(chosen) for word in words)


@given(st.text(max_size=12))
def test_any_word_selects_or_is_refused(word):
    try:
        assert selected_ids(word)
    except UsageError as error:
        assert str(error)  # noqa: PT017


def test_all_conditions_of_a_filter_must_hold():
    condition = CellFilter("gpu=sm_90,flash-attn=2.*")
    assert [condition.matches(cell) for cell in CELLS] == [False, True, False, False, False]


def test_a_framework_is_matched_by_name_and_a_cell_without_one_has_none():
    plain, on_top = parse_cell(FA0), parse_cell(f"{FA0}-xtuner0.1.23")
    for condition, expected in {"xtuner*": [False, True], "xtuner0.2.0": [False, False], "none": [True, False]}.items():
        assert [CellFilter(f"framework={condition}").matches(cell) for cell in (plain, on_top)] == expected


def test_a_host_is_selected_by_any_of_its_names_and_is_x86_64_unless_the_cell_says_otherwise():
    arm = parse_cell(f"{FA4}-aarch64")
    cells = [*CELLS, arm]
    assert select_cells(cells, ALIASES, ["host=arm64"]) == [arm]
    assert select_cells(cells, ALIASES, ["host=x86_64"]) == CELLS
    assert select_cells(cells, ALIASES, ["host!=aarch64,flash-attn=4.*"]) == [CELLS[0], CELLS[3]]
    for word, message in (("host=mips", "no host that images are for"), ("host>=aarch64", "takes = or !=")):
        with pytest.raises(UsageError, match=message):
            select_cells(cells, ALIASES, [word])
