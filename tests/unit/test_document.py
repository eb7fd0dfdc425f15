from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood import document
from knowngood.errors import InputError


def refused(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        document.parse(text, "m.yaml")
    return str(caught.value).splitlines()


def test_scalars_stay_as_written():
    text = "python: 3.10\nschema: 1\nyes: no\nempty:\ndate: 2026-11-20\n"
    assert document.parse(text, "m").data == {
        "python": "3.10",
        "schema": "1",
        "yes": "no",
        "empty": "",
        "date": "2026-11-20",
    }


def test_an_empty_file_is_no_error_here():
    assert document.parse("# nothing\n", "m").data is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "m.yaml:2:1: a tab stands where YAML wants spaces; indent with spaces"),
        ("a:\n  b: 1\n\tc: 2\n", "m.yaml:3:1: a tab stands where YAML wants spaces; indent with spaces"),
        ("a: 1\nbc: \x07\n", "m.yaml:2:5: the character '\\x07' cannot stand in YAML; remove it"),
        ("a: !!python/name:os.system x\n", "m.yaml:1:4: tags (here 'tag:yaml.org,2002:python/name:os.system')"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2:1: not well-formed YAML: but found another document"),
        ("a: b: c\n", "m.yaml:1:5: not well-formed YAML: mapping values are not allowed here"),
        ("a: [1,\n", "m.yaml:2:1: not well-formed YAML: "),
    ],
)
def test_what_is_not_well_formed_is_named_with_its_place(text, message):
    (line,) = refused(text)
    assert line.startswith(message)


def test_every_anchor_and_alias_is_reported():
    assert refused("a: &x [1]\nb: *x\n") == [
        "m.yaml:1:4: anchors and aliases (here 'x') are not read; write the value out",
        "m.yaml:2:4: anchors and aliases (here 'x') are not read; write the value out",
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
    start = time.monotonic()
    refused(bomb)
    assert time.monotonic() - start < 2


def test_twenty_levels_are_read_and_one_more_is_not():
    assert document.parse("[" * 20 + "]" * 20, "m").data is not None
    assert refused("[" * 21 + "]" * 21) == ["m.yaml:1:21: nested more than 20 deep"]


def test_repeated_and_odd_keys_leave_the_rest_readable():
    found = document.read("a: 1\na: 2\n? [x]\n: 3\nb: 4\nb: 5\n", "m")
    assert found.data == {"a": "1", "b": "4"}
    assert [str(problem) for problem in found.problems] == [
        "m:2:1: the key 'a' was given in line 1 already; keep one of them",
        "m:3:3: a key must be plain text",
        "m:6:1: the key 'b' was given in line 5 already; keep one of them",
    ]


def test_who_does_not_ask_for_problems_gets_them_raised():
    assert refused("a: 1\na: 2\n") == ["m.yaml:2:1: the key 'a' was given in line 1 already; keep one of them"]


def test_a_problem_stands_at_its_value_its_key_or_the_nearest_above():
    found = document.parse("cells:\n  - torch: 2\n    gpu: [a, b]\n", "m")
    assert (found.problem(("cells", 0, "torch"), "").line, found.problem(("cells", 0, "torch"), "").column) == (2, 12)
    assert found.problem(("cells", 0, "torch"), "", key=True).column == 5
    assert found.problem(("cells", 0, "gpu", 1), "").column == 14
    assert str(found.problem(("cells", 0, "cuda"), "x")) == "m:2:5: x"
    assert str(found.problem(("aliases",), "x")) == "m:1:1: x"


plain = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3))


@given(values)
def test_what_yaml_writes_is_read_back(value):
    import yaml

    text = yaml.safe_dump(value, default_style='"')
    assert document.parse(text, "m").data == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text):
    try:
        document.parse(text, "m")
    except InputError as error:
        assert all(problem.line >= 1 and problem.column >= 1 and problem.text for problem in error.problems)  # noqa: PT017
