"""Reproductions: how they are written, and what follows from what was seen."""

from __future__ import annotations

import pytest

from knowngood.diagnosing.signature import compile_signature
from knowngood.errors import InputError
from knowngood.reproducing.observation import Observation, Outcome, Seen, judge, whole
from knowngood.reproducing.reproduction import Expect, parse

SIGNATURES = (
    compile_signature("AttributeError: '{name}Attention' object has no attribute '_flash_attention_forward'"),
)
TEXT = """
python: "3.11"
requirements: [torch==2.11.0]
sources:
  flash-attn==2.6.3: ["flash_attn/*.py"]
sides:
  failing:
    requirements: [transformers==4.44.2]
  fixed:
    requirements: transformers==4.42.4
    sources:
      flash-attn==2.5.8: "flash_attn/*.py"
  said:
    expect: fails
"""


def seen(*, code=0, exception=None, output="", said=None):
    return Observation(
        exit=code, seconds=1.0, python="3.11.7", packages={}, exception=exception, output=output, said=said or {}
    )


def removed(text="'Qwen2Attention' object has no attribute '_flash_attention_forward'"):
    return seen(code=1, exception={"type": "AttributeError", "text": text, "where": []})


def test_a_side_has_what_all_have_and_its_own():
    found = parse(TEXT, "x.yaml")
    assert found.pins("fixed") == ("torch==2.11.0", "transformers==4.42.4")
    assert list(found.unpacked("failing")) == ["flash-attn==2.6.3"]
    assert list(found.unpacked("fixed")) == ["flash-attn==2.5.8"]  # not both releases of one package
    assert [found.expected(side) for side in found.sides] == [Expect.FAILS, Expect.TRAINS, Expect.FAILS]


@pytest.mark.parametrize(
    ("wanted", "sides"),
    [
        (None, ["failing", "fixed", "said"]),
        ("failing", ["failing"]),
        ("fixed", ["fixed"]),
        ("said", ["said"]),
        ("no", []),
    ],
)
def test_sides_are_chosen_by_name_or_by_what_they_should_do(wanted, sides):
    assert parse(TEXT, "x.yaml").chosen(wanted) == sides


def test_defects_are_told_with_their_lines():
    text = TEXT.replace("torch==2.11.0", "torch>=2").replace("  said:\n    expect: fails", "  said:\n    expekt: fails")
    with pytest.raises(InputError) as error:
        parse(text, "x.yaml")
    told = str(error.value)
    assert "x.yaml:3:16: 'torch>=2' does not name one version" in told
    assert "x.yaml:14:5: unknown key 'expekt'; the keys here are expect, said," in told


def test_a_reproduction_has_a_failing_side():
    with pytest.raises(InputError, match="there is no side 'failing'"):
        parse(TEXT.replace("failing:", "broken:"), "x.yaml")


@pytest.mark.parametrize(
    ("expect", "did", "reason"),
    [
        (Expect.FAILS, removed(), ""),
        (Expect.FAILS, seen(code=1, output="boom: Qwen2Attention\n"), "which is not the signature"),
        (Expect.FAILS, removed("'Qwen2Attention' object has no attribute 'forward'"), "which is not the signature"),
        (Expect.FAILS, seen(), "it did not fail"),
        (Expect.FAILS_OTHERWISE, removed(), "it has the signature all the same"),
        (Expect.FAILS_OTHERWISE, seen(code=1), ""),
        (Expect.FAILS_OTHERWISE, seen(), "it did not fail"),
        (Expect.TRAINS, seen(said={"losses": [4.0, 3.0]}), ""),
        (Expect.TRAINS, seen(said={"losses": [3.0, 4.0]}), "losses do not fall"),
        (Expect.TRAINS, seen(said={"losses": [3.0, float("nan")]}), "losses do not fall"),
        (Expect.TRAINS, seen(), "losses do not fall"),
        (Expect.TRAINS, removed(), "it ended with AttributeError: 'Qwen2Attention' object"),
        (Expect.WORKS, seen(), ""),
        (Expect.WORKS, seen(code=3), "it ended with exit 3"),
        (Expect.WARNS, seen(), "the warning did not come"),
        (Expect.WARNS, removed(), "it ended with"),
    ],
)
def test_what_a_side_did_is_compared_with_what_it_should(expect, did, reason):
    found = judge("side", expect, did, SIGNATURES)
    assert reason in found.reason
    assert (found.reason == "") == (reason == "")
    assert found.outcome is (Outcome.NOT_REPRODUCED if reason else Outcome.REPRODUCED)


def test_a_warning_is_found_in_the_output_and_spoils_a_side_that_should_be_without():
    warned = seen(output="WARN AttributeError: 'Qwen2Attention' object has no attribute '_flash_attention_forward'\n")
    assert judge("side", Expect.WARNS, warned, SIGNATURES).outcome is Outcome.REPRODUCED
    assert "its output has the signature" in judge("side", Expect.WORKS, warned, SIGNATURES).reason


def side(name, outcome):
    did = None if outcome is Outcome.NOT_RUN else seen()
    return Seen(
        side=name, expect=Expect.WORKS, observation=did, reason="x" if outcome is Outcome.NOT_REPRODUCED else ""
    )


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"failing": Outcome.REPRODUCED, "fixed": Outcome.REPRODUCED}, Outcome.REPRODUCED),
        ({"failing": Outcome.REPRODUCED, "a": Outcome.REPRODUCED, "b": Outcome.NOT_RUN}, Outcome.REPRODUCED),
        ({"failing": Outcome.REPRODUCED, "a": Outcome.REPRODUCED, "b": Outcome.NOT_REPRODUCED}, Outcome.NOT_REPRODUCED),
        ({"failing": Outcome.REPRODUCED, "fixed": Outcome.NOT_RUN}, Outcome.NOT_RUN),
        ({"failing": Outcome.NOT_RUN, "fixed": Outcome.REPRODUCED}, Outcome.NOT_RUN),
        ({"failing": Outcome.REPRODUCED}, Outcome.NOT_RUN),
    ],
)
def test_reproduced_means_seen_to_fail_and_seen_to_work(outcomes, expected):
    assert whole([side(name, outcome) for name, outcome in outcomes.items()]) is expected
