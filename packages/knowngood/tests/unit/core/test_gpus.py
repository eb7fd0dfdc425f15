from __future__ import annotations

import pytest

from knowngood.core.errors import InputError, UsageError
from knowngood.core.gpus import GpuCatalog, GpuNameKind, UncoveredGpuError, gpu_catalog_from_sections
from knowngood.core.matrix_schema import validate_matrix_file
from knowngood.core.yaml_document import parse_yaml, parse_yaml_data
from samples import ROOT

CASES = parse_yaml_data((ROOT / "packages/knowngood/tests/unit/core/gpu_names.yaml").read_text(), "gpu_names.yaml")
MATRIX = (ROOT / "matrix.yaml").read_text()


@pytest.fixture(scope="module")
def gpus() -> GpuCatalog:
    return gpu_catalog_from_sections(parse_yaml_data(MATRIX, "matrix.yaml")["gpus"])


def test_a_name_means_what_the_table_of_cases_says(gpus: GpuCatalog):
    breaches = []
    for text, wanted in [item for section in CASES.values() for item in section.items()]:
        match = gpus.name_table.match(text)
        if wanted in list(GpuNameKind):
            right = match.kind == wanted
        else:
            capabilities = wanted if isinstance(wanted, list) else [wanted]
            right = (match.kind, list(match.capabilities)) == ("known", capabilities)
        if not right:
            breaches.append(f"{text!r} is {match.kind} {list(match.capabilities)}, not {wanted}")
    assert not breaches, "\n".join(breaches)


def test_every_card_of_the_matrix_is_found_by_its_own_name(gpus: GpuCatalog):
    for sm, (_, cards) in gpus.sections.items():
        for card in cards:
            assert gpus.find_capabilities(card) == [sm]


def test_a_family_of_a_card(gpus: GpuCatalog):
    assert gpus.family("sm_70") == "Volta"


def test_a_name_of_cards_of_two_architectures_is_refused():
    cards = {
        "sm_60": {"family": "Pascal", "cards": ["Quadro X100"]},
        "sm_70": {"family": "Volta", "cards": ["GeForce X100"]},
    }
    known = gpu_catalog_from_sections(cards)
    assert known.find_capabilities("Quadro X100") == ["sm_60"]
    assert known.find_capabilities("GeForce X100") == ["sm_70"]
    with pytest.raises(UsageError, match=r"there is no GPU 'X100', but several.* Quadro X100, GeForce X100"):
        known.find_capabilities("X100")


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


def test_a_gpu_of_another_maker_is_not_covered(gpus: GpuCatalog):
    with pytest.raises(UncoveredGpuError, match=r"^AMD is not covered: 'MI300X' is no GPU of NVIDIA") as caught:
        gpus.find_capabilities("MI300X")
    assert caught.value.exit_code == 3


def test_the_name_of_a_cloud_instance_gets_a_sentence(gpus: GpuCatalog):
    with pytest.raises(UsageError, match=r"'p4d.24xlarge' looks like the name of a cloud instance"):
        gpus.find_capabilities("p4d.24xlarge")


@pytest.mark.parametrize(
    ("text", "architecture"),
    [
        ("NVIDIA GH200 480GB", "aarch64"),
        ("GB200", "aarch64"),
        ("DGX Spark", "aarch64"),
        ("NVIDIA Thor", "aarch64"),
        ("NVIDIA H100 80GB HBM3", "x86_64"),
        ("B200", "x86_64"),
        ("Hopper", None),
        ("sm_90", None),
    ],
)
def test_the_host_of_a_card(gpus: GpuCatalog, text: str, architecture: str | None):
    assert gpus.host_architecture(text) == architecture


def test_a_host_is_named_of_a_card_of_the_same_architecture_only():
    source = parse_yaml(MATRIX.replace("aarch64: [GH200]", "aarch64: [GH300]"), "matrix.yaml")
    _, problems = validate_matrix_file(source)
    assert "names 'GH300', which is not among the cards" in str(InputError(problems))
