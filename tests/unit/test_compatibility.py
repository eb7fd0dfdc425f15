import pytest

from knowngood import compatibility, facts, resources


def test_the_committed_page_is_the_rendered_one():
    page = resources.root() / "docs" / "compatibility.md"
    assert page.read_text() == compatibility.page(), "run: knowngood render"


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
def test_code_for(sass, ptx, gpu, code):
    assert compatibility.code_for(sass.split(), ptx.split(), gpu) == code


def test_readme_has_a_row_for_the_newest_torch():
    newest = list(facts.load("torch"))[-1]
    assert newest in compatibility.readme()


def test_what_the_page_says_in_words_is_so():
    assert all(release.facts.ptx == () for release in facts.load("torch").values())
    assert all(release.facts.ptx == {} for release in facts.load("flash-attn").values())
    majors = [release.facts.flash_attention_min_major for release in facts.load("transformers").values()]
    assert {found["4"] for found in majors if found} == {9}


def test_runs_of_equal_releases_are_joined_newest_first():
    rows = compatibility.gpu_rows(facts.load("torch"))
    assert [row[:2] for row in rows[-2:]] == [("2.1.0 to 2.4.1", "12.1"), ("2.0.0 to 2.0.1", "11.7")]
