"""The definition of a reproduction, and how observations are judged by it."""

from __future__ import annotations

import pytest

from knowngood.core.errors import InputError
from knowngood_diagnose.reproductions.reproduction import (
    Observation,
    ReproductionOutcome,
    SideExpectation,
    SideResult,
    judge_side,
    overall_outcome,
    parse_reproduction,
)
from knowngood_facts.compat.incident import compile_signature

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


def observation(*, code=0, exception=None, output="", result=None):
    return Observation(
        exit=code, seconds=1.0, python="3.11.7", packages={}, exception=exception, output=output, result=result or {}
    )


def removed(text="'Qwen2Attention' object has no attribute '_flash_attention_forward'"):
    return observation(code=1, exception={"type": "AttributeError", "text": text, "where": []})


def test_a_side_joins_the_shared_settings_with_its_own():
    definition = parse_reproduction(TEXT, "x.yaml")
    assert definition.side("fixed").requirements == ("torch==2.11.0", "transformers==4.42.4")
    assert list(definition.side("failing").sources) == ["flash-attn==2.6.3"]
    assert list(definition.side("fixed").sources) == ["flash-attn==2.5.8"]  # not both releases of one package
    assert [definition.expected(side) for side in definition.sides] == [
        SideExpectation.FAILS,
        SideExpectation.TRAINS,
        SideExpectation.FAILS,
    ]


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
def test_sides_are_chosen_by_name_or_by_expectation(wanted, sides):
    assert parse_reproduction(TEXT, "x.yaml").choose_sides(wanted) == sides


def test_defects_are_reported_with_their_lines():
    text = TEXT.replace("torch==2.11.0", "torch>=2").replace("  said:\n    expect: fails", "  said:\n    expekt: fails")
    with pytest.raises(InputError) as error:
        parse_reproduction(text, "x.yaml")
    message = str(error.value)
    assert "x.yaml:3:16: 'torch>=2' does not name one version" in message
    assert "x.yaml:14:5: unknown key 'expekt'; the keys here are expect, said," in message


def test_a_reproduction_needs_a_failing_side():
    with pytest.raises(InputError, match="there is no side 'failing'"):
        parse_reproduction(TEXT.replace("failing:", "broken:"), "x.yaml")


@pytest.mark.parametrize(
    ("expect", "did", "reason"),
    [
        (SideExpectation.FAILS, removed(), ""),
        (SideExpectation.FAILS, observation(code=1, output="boom: Qwen2Attention\n"), "which is not the signature"),
        (
            SideExpectation.FAILS,
            removed("'Qwen2Attention' object has no attribute 'forward'"),
            "which is not the signature",
        ),
        (SideExpectation.FAILS, observation(), "it did not fail"),
        (SideExpectation.FAILS_OTHERWISE, removed(), "it failed with the signature"),
        (SideExpectation.FAILS_OTHERWISE, observation(code=1), ""),
        (SideExpectation.FAILS_OTHERWISE, observation(), "it did not fail"),
        (SideExpectation.TRAINS, observation(result={"losses": [4.0, 3.0]}), ""),
        (SideExpectation.TRAINS, observation(result={"losses": [3.0, 4.0]}), "losses do not fall"),
        (SideExpectation.TRAINS, observation(result={"losses": [3.0, float("nan")]}), "losses do not fall"),
        (SideExpectation.TRAINS, observation(), "losses do not fall"),
        (SideExpectation.TRAINS, removed(), "it ended with AttributeError: 'Qwen2Attention' object"),
        (SideExpectation.WORKS, observation(), ""),
        (SideExpectation.WORKS, observation(code=3), "it ended with exit 3"),
        (SideExpectation.WARNS, observation(), "the warning did not come"),
        (SideExpectation.WARNS, removed(), "it ended with"),
    ],
)
def test_an_observation_is_compared_with_the_expectation(expect, did, reason):
    result = judge_side("side", expect, did, SIGNATURES)
    assert reason in result.reason
    assert (result.reason == "") == (reason == "")
    assert result.outcome is (ReproductionOutcome.NOT_REPRODUCED if reason else ReproductionOutcome.REPRODUCED)


def test_a_warning_in_the_output_fails_a_side_that_should_work():
    warned = observation(
        output="WARN AttributeError: 'Qwen2Attention' object has no attribute '_flash_attention_forward'\n"
    )
    assert judge_side("side", SideExpectation.WARNS, warned, SIGNATURES).outcome is ReproductionOutcome.REPRODUCED
    assert "its output has the signature" in judge_side("side", SideExpectation.WORKS, warned, SIGNATURES).reason


def side(name, outcome):
    did = None if outcome is ReproductionOutcome.NOT_RUN else observation()
    return SideResult(
        side=name,
        expect=SideExpectation.WORKS,
        observation=did,
        reason="x" if outcome is ReproductionOutcome.NOT_REPRODUCED else "",
    )


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (
            {"failing": ReproductionOutcome.REPRODUCED, "fixed": ReproductionOutcome.REPRODUCED},
            ReproductionOutcome.REPRODUCED,
        ),
        (
            {
                "failing": ReproductionOutcome.REPRODUCED,
                "a": ReproductionOutcome.REPRODUCED,
                "b": ReproductionOutcome.NOT_RUN,
            },
            ReproductionOutcome.REPRODUCED,
        ),
        (
            {
                "failing": ReproductionOutcome.REPRODUCED,
                "a": ReproductionOutcome.REPRODUCED,
                "b": ReproductionOutcome.NOT_REPRODUCED,
            },
            ReproductionOutcome.NOT_REPRODUCED,
        ),
        (
            {"failing": ReproductionOutcome.REPRODUCED, "fixed": ReproductionOutcome.NOT_RUN},
            ReproductionOutcome.NOT_RUN,
        ),
        (
            {"failing": ReproductionOutcome.NOT_RUN, "fixed": ReproductionOutcome.REPRODUCED},
            ReproductionOutcome.NOT_RUN,
        ),
        ({"failing": ReproductionOutcome.REPRODUCED}, ReproductionOutcome.NOT_RUN),
    ],
)
def test_reproduced_needs_a_failing_side_and_a_working_side(outcomes, expected):
    assert overall_outcome([side(name, outcome) for name, outcome in outcomes.items()]) is expected
