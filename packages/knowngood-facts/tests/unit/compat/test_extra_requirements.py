"""What the extras of a query's packages name in another release than the query has."""

from __future__ import annotations

import pytest

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import EXTRA, check_query
from knowngood_facts.compat.query import Query, parse_requirement

KNOWN = knowledge.load_knowledge()


def said(*requirements: str) -> dict[str, str]:
    packages = tuple(item for text in requirements if (item := parse_requirement(text)))
    answer = check_query(KNOWN.universe, Query(packages=packages), KNOWN.published)
    return {item.id.removeprefix(EXTRA): item.because for item in answer.findings if item.id.startswith(EXTRA)}


def test_the_release_that_an_extra_pins_is_named():
    because = "verl 0.9.1 names vllm==0.24.0 for its extra vllm; you have 0.26.0"
    assert said("verl==0.9.1", "vllm==0.26.0") == {"verl:vllm": because}


def test_all_extras_that_name_it_are_told():
    because = said("openrlhf==0.11.2", "vllm==0.24.0")["openrlhf:vllm"]
    assert because.startswith("openrlhf 0.11.2 names vllm==0.29.0 for its extra vllm, vllm>=0.29.0 for its extra vllm-")


@pytest.mark.parametrize(
    "requirements",
    [
        ("verl==0.9.1", "vllm==0.24.0"),  # it is that release
        ("verl==0.9.1", "vllm"),  # any release will do
        ("verl[vllm]==0.9.1", "vllm==0.26.0"),  # the extra is asked for, so that it is an error
        ("openrlhf==0.11.2", "vllm==0.30.0"),  # one of its extras takes it
        ("verl==0.9.1",),
        ("transformers==5.9.0", "urllib3==2.8.0"),  # its extras for tests and tools bound it
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(requirements):
    assert said(*requirements) == {}


def test_an_extra_that_is_asked_for_is_a_requirement():
    packages = tuple(filter(None, map(parse_requirement, ("verl[vllm]==0.9.1", "vllm==0.26.0"))))
    answer = check_query(KNOWN.universe, Query(packages=packages), KNOWN.published)
    assert answer.verdict == "broken"


@pytest.mark.parametrize(
    ("release", "other", "below", "at"),
    [
        # `ACCELERATE_MIN_VERSION` of transformers: below it `Trainer` raises an ImportError, as if there were none.
        ("4.44.2", "accelerate", "0.20.3", "0.21.0"),
        ("4.57.6", "accelerate", "0.25.0", "0.26.0"),
        ("5.2.0", "accelerate", "1.0.1", "1.1.0"),
        ("5.2.0", "kernels", "0.9.0", "0.10.2"),
    ],
)
def test_what_only_an_extra_names_is_a_requirement_where_the_code_refuses_less(release, other, below, at):
    def conflicts(version: str) -> list[str]:
        packages = tuple(filter(None, map(parse_requirement, (f"transformers=={release}", f"{other}{version}"))))
        answer = check_query(KNOWN.universe, Query(packages=packages), KNOWN.published)
        return [item.id for item in answer.findings if item.id.startswith("requires:")]

    assert conflicts(f"=={below}") == [f"requires:transformers:{other}"]
    assert conflicts(f"=={at}") == conflicts("") == []
