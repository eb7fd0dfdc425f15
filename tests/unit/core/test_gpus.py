from __future__ import annotations

import pytest
from samples import ROOT

from knowngood.core.errors import UsageError
from knowngood.core.gpus import GpuCatalog, gpu_catalog_from_sections
from knowngood.core.yaml_document import parse_yaml_data


@pytest.fixture(scope="module")
def gpus() -> GpuCatalog:
    return gpu_catalog_from_sections(parse_yaml_data((ROOT / "matrix.yaml").read_text(), "matrix.yaml")["gpus"])


@pytest.mark.parametrize(
    ("text", "sm"),
    [
        ("V100", "sm_70"),
        ("Tesla V100-SXM2-32GB", "sm_70"),
        ("sm_70", "sm_70"),
        ("sm70", "sm_70"),
        ("7.0", "sm_70"),
        ("Volta", "sm_70"),
        ("RTX 5000 16GB", "sm_75"),
        ("Quadro RTX 5000", "sm_75"),
        ("NVIDIA RTX 5000 Ada Generation", "sm_89"),
        ("RTX 6000", "sm_75"),
        ("RTX A6000", "sm_86"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("A100-PCIE-40GB", "sm_80"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "sm_89"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "sm_86"),
        ("RTX5090", "sm_120"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120"),
        ("P100", "sm_60"),
    ],
)
def test_a_card_is_found_by_any_of_its_names(gpus: GpuCatalog, text: str, sm: str):
    assert gpus.find_capabilities(text) == [sm]


def test_a_family_means_all_its_architectures(gpus: GpuCatalog):
    assert gpus.find_capabilities("ampere")[:2] == ["sm_80", "sm_86"]
    assert gpus.family("sm_70") == "Volta"


def test_a_name_of_cards_of_two_architectures_is_refused():
    cards = {
        "sm_60": {"family": "Pascal", "cards": ["Quadro X100"]},
        "sm_70": {"family": "Volta", "cards": ["GeForce X100"]},
    }
    known = gpu_catalog_from_sections(cards)
    assert known.find_capabilities("Quadro X100") == ["sm_60"]
    assert known.find_capabilities("GeForce X100") == ["sm_70"]
    with pytest.raises(UsageError, match="there is no GPU 'X100'"):
        known.find_capabilities("X100")


@pytest.mark.parametrize("text", ["H100 banana", "GTX 1080 banana", "RTX 6000 banana"])
def test_an_unknown_word_is_not_ignored(gpus: GpuCatalog, text: str):
    with pytest.raises(UsageError, match="there is no GPU"):
        gpus.find_capabilities(text)


def test_the_longest_matching_card_name_decides():
    known = gpu_catalog_from_sections(
        {"sm_60": {"cards": ["X100", "Quadro Y1"]}, "sm_70": {"cards": ["X100 Super", "Quadro Y1 Super"]}}
    )
    assert [known.find_capabilities(text) for text in ("X100 Super", "X100", "Y1 Super", "Y1")] == [
        ["sm_70"],
        ["sm_60"],
        ["sm_70"],
        ["sm_60"],
    ]


@pytest.mark.parametrize(
    ("text", "near"), [("H1000", "H100"), ("sm_71", "sm_70"), ("V10O", "V100"), ("hoper", "Hopper")]
)
def test_the_error_for_an_unknown_gpu_names_the_nearest(gpus: GpuCatalog, text: str, near: str):
    with pytest.raises(UsageError, match=near):
        gpus.find_capabilities(text)
