from __future__ import annotations

import pytest

from knowngood.errors import UsageError
from knowngood.gpus import Gpus
from knowngood.solving import knowledge, relations


@pytest.fixture(scope="module")
def gpus() -> Gpus:
    return knowledge.read().universe.gpus


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
def test_a_card_is_found_by_any_of_its_names(gpus: Gpus, text: str, sm: str):
    assert gpus.find(text) == [sm]


def test_a_family_is_all_its_architectures(gpus: Gpus):
    assert gpus.find("ampere")[:2] == ["sm_80", "sm_86"]
    assert gpus.family("sm_70") == "Volta"


@pytest.mark.parametrize(
    ("text", "near"), [("H1000", "H100"), ("sm_71", "sm_70"), ("V10O", "V100"), ("hoper", "Hopper")]
)
def test_an_unknown_gpu_is_told_with_the_nearest(gpus: Gpus, text: str, near: str):
    with pytest.raises(UsageError, match=near):
        gpus.find(text)


@pytest.mark.parametrize(
    ("gpu", "sass", "ptx", "runs"),
    [
        ("sm_86", ["80"], [], True),  # same major, newer minor
        ("sm_80", ["86"], [], False),
        ("sm_90", ["80"], [], False),
        ("sm_120", ["100"], [], False),
        ("sm_103", ["100"], [], True),
        ("sm_61", ["60"], [], True),
        ("sm_90", ["90a"], [], True),
        ("sm_103", ["100a"], [], False),  # that very capability
        ("sm_103", ["100f"], [], True),  # its family
        ("sm_120", ["100f"], [], False),
        ("sm_120", [], ["90"], True),  # the driver compiles PTX for anything newer
        ("sm_80", [], ["90"], False),
        ("sm_120", [], ["90a"], False),
    ],
)
def test_binary_compatibility(gpu: str, sass: list[str], ptx: list[str], runs: bool):
    assert relations.runs(gpu, sass, ptx) is runs
