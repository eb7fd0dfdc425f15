import pytest

from knowngood.core import local_files
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.flash_attn_reader import FlashAttnFacts
from knowngood_facts.facts.framework_reader import TransformersFacts
from knowngood_facts.facts.torch_reader import TorchFacts
from knowngood_facts.reports import compatibility_tables


def test_the_committed_page_is_the_rendered_one():
    page = local_files.data_folder() / "docs" / "compatibility.md"
    assert page.read_text() == compatibility_tables.render_compatibility_page(), "run: knowngood render"


@pytest.mark.parametrize(
    ("sass", "ptx", "gpu", "code"),
    [
        ("75 80 90", "", "90", "90"),
        ("75 80 86", "", "89", "86"),
        ("75 80", "", "86", "80"),
        ("86", "", "80", None),
        ("100", "", "120", None),
        ("100", "", "103", "100"),
        ("90a", "", "90", None),
        ("80", "80", "90", "80 (PTX)"),
        ("", "100", "90", None),
        ("", "", "80", None),
    ],
)
def test_the_code_that_a_gpu_runs(sass, ptx, gpu, code):
    assert compatibility_tables.find_gpu_code(sass.split(), ptx.split(), gpu) == code


def test_the_statements_of_the_page_are_true():
    assert all(release.facts.ptx == () for release in fact_store.load_facts("torch", TorchFacts).values())
    assert all(release.facts.ptx == {} for release in fact_store.load_facts("flash-attn", FlashAttnFacts).values())
    majors = [
        release.facts.flash_attention_min_major
        for release in fact_store.load_facts("transformers", TransformersFacts).values()
    ]
    assert {found["4"] for found in majors if found} == {9}


def test_equal_releases_share_a_row_newest_first():
    rows = compatibility_tables.gpu_rows(fact_store.load_facts("torch", TorchFacts))
    assert [row[:2] for row in rows[-2:]] == [("2.1.0 to 2.4.1", "12.1"), ("2.0.0 to 2.0.1", "11.7")]
