from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core import yaml_document
from knowngood.core.errors import InputError


def refused(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        yaml_document.parse_yaml(text, "m.yaml")
    return str(caught.value).splitlines()


def test_scalars_stay_as_written():
    text = "python: 3.10\nschema: 1\nyes: no\nempty:\ndate: 2026-11-20\n"
    assert yaml_document.parse_yaml(text, "m").data == {
        "python": "3.10",
        "schema": "1",
        "yes": "no",
        "empty": "",
        "date": "2026-11-20",
    }


def test_an_empty_file_has_no_data():
    assert yaml_document.parse_yaml("# nothing\n", "m").data is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "m.yaml:2:1: YAML does not allow this tab; indent with spaces"),
        ("a:\n  b: 1\n\tc: 2\n", "m.yaml:3:1: YAML does not allow this tab; indent with spaces"),
        ("a: 1\nbc: \x07\n", "m.yaml:2:5: the character '\\x07' is not allowed in YAML; remove it"),
        ("a: 1\nbc: 2\nd: \x07\n", "m.yaml:3:4: the character '\\x07' is not allowed in YAML; remove it"),
        ("a: !!python/name:os.system x\n", "m.yaml:1:4: tags (here 'tag:yaml.org,2002:python/name:os.system')"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2:1: not well-formed YAML: but found another document"),
        ("a: b: c\n", "m.yaml:1:5: not well-formed YAML: mapping values are not allowed here"),
        ("a: [1,\n", "m.yaml:2:1: not well-formed YAML: "),
    ],
)
def test_a_syntax_error_is_reported_with_its_place(text, message):
    (line,) = refused(text)
    assert line.startswith(message)


def test_every_anchor_and_alias_is_reported():
    assert refused("a: &x [1]\nb: *x\n") == [
        "m.yaml:1:4: anchors and aliases (here 'x') are not supported; write the value out",
        "m.yaml:2:4: anchors and aliases (here 'x') are not supported; write the value out",
    ]


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x,x]\n" + "".join(f"{n}: &{n} [*{p},*{p},*{p}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)),
        "[" * 100_000,
        "{a: " * 50_000,
        "? " * 50_000,
        "- " * 50_000,
        "x" * 300_000,
    ],
    ids=["aliases", "brackets", "braces", "keys", "dashes", "long"],
)
def test_a_bomb_is_refused_at_once(bomb):
    start = time.process_time()
    refused(bomb)
    assert time.process_time() - start < 2


def test_twenty_levels_of_nesting_are_allowed():
    assert yaml_document.parse_yaml("[" * 20 + "]" * 20, "m").data is not None
    assert refused("[" * 21 + "]" * 21) == ["m.yaml:1:21: nested more than 20 deep"]


def test_repeated_and_odd_keys_leave_the_rest_readable():
    document = yaml_document.parse_yaml_with_problems("a: 1\na: 2\n? [x]\n: 3\nb: 4\nb: 5\n", "m")
    assert document.data == {"a": "1", "b": "4"}
    assert [str(problem) for problem in document.problems] == [
        "m:2:1: the key 'a' is given in line 1 already; keep one of them",
        "m:3:3: a key must be plain text",
        "m:6:1: the key 'b' is given in line 5 already; keep one of them",
    ]


def test_problems_are_raised_unless_they_are_asked_for():
    assert refused("a: 1\na: 2\n") == ["m.yaml:2:1: the key 'a' is given in line 1 already; keep one of them"]


def test_a_problem_is_at_its_value_its_key_or_the_nearest_place_above():
    document = yaml_document.parse_yaml("cells:\n  - torch: 2\n    gpu: [a, b]\n", "m")
    assert str(document.problem(("cells", 0, "torch"), "x")) == "m:2:12: x"
    assert document.problem(("cells", 0, "torch"), "", key=True).column == 5
    assert document.problem(("cells", 0, "gpu", 1), "").column == 14
    assert str(document.problem(("cells", 0, "cuda"), "x")) == "m:2:5: x"
    assert str(document.problem(("aliases",), "x")) == "m:1:1: x"


plain = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3))


@given(values)
def test_what_yaml_writes_is_read_back(value):
    text = yaml.safe_dump(value, default_style='"')
    assert yaml_document.parse_yaml(text, "m").data == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text):
    try:
        yaml_document.parse_yaml(text, "m")
    except InputError as error:
        assert all(problem.line >= 1 and problem.column >= 1 and problem.text for problem in error.problems)  # noqa: PT017


def test_a_file_of_the_maximum_length_is_read_and_a_longer_one_is_refused():
    text = "#" + "x" * (yaml_document.MAX_LENGTH - 1)
    assert yaml_document.parse_yaml(text, "m").data is None
    assert refused(text + "x") == ["m.yaml:1:1: the file is longer than 250,000 characters; is it the right one?"]


def test_a_problem_with_the_whole_document_is_where_the_content_begins():
    document = yaml_document.parse_yaml("# what it is\n\na: 1\n", "m")
    assert str(document.problem(("b",), "x")) == "m:3:1: x"
    assert str(document.problem((), "x")) == "m:3:1: x"
