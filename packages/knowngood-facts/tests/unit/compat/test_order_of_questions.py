"""An answer does not depend on the questions that the same process answered before."""

from __future__ import annotations

from typing import Any

import pytest

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.dependency_markers import ResolutionTarget
from knowngood_facts.compat.knowledge import CompatKnowledge
from knowngood_facts.compat.pick_answer import pick_cells
from knowngood_facts.compat.query import parse_requirement, query_from_document
from knowngood_facts.compat.requirement_graph import RequirementResolution, RequirementSearches, resolve_packages
from metadata_samples import Release, store_of

CELL = {"torch": "2.11.0", "transformers": "5.15.0", "triton": "3.6.0", "flash-attn": "2.8.3.post2"}
QUESTIONS: list[dict[str, Any]] = [
    # Both releases of openrlhf require flash-attn==2.8.3; for a cell with the second of them that is waived.
    {"gpu": "sm_90", "python": "3.11", "packages": {**CELL, "openrlhf": "0.11.1"}},
    {"gpu": "sm_90", "python": "3.11", "packages": {**CELL, "openrlhf": "0.11.2"}},
    {"packages": {"openrlhf": "", "flash-attn": "2.8.3.post2"}},
    {"gpu": "V100", "packages": {"torch": "2.6.0", "triton": "3.3.0"}},
    {"gpu": "H100", "packages": {"torch": "2.6.0", "triton": "3.3.0"}},
    {"packages": {"trl": "0.12.1", "transformers": "4.47.0"}},
    {"packages": {"trl": "", "transformers": "4.47.0", "peft": ""}},
    {"packages": {"vllm": "", "torch": "2.6.0"}},
    {"packages": {"vllm": "0.8.5", "transformers": "5.2.0"}},
    {"packages": {"accelerate": "1.2.1", "transformers": "", "numpy": "<2"}},
    {"gpu": "B200", "attn": "fa4", "packages": {"transformers": "<5.4"}},
]


@pytest.fixture(scope="module")
def fresh() -> list[list[dict[str, Any]]]:
    """The answers of processes that answered nothing before."""
    return [answer(knowledge.load_knowledge(), question) for question in QUESTIONS]


def answer(known: CompatKnowledge, question: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what `check` and `pick` say."""
    query = query_from_document(question)
    universe = known.for_query(query, cells=True, whole=True)
    answers = check_query(universe, query, known.published), pick_cells(universe, query, known.published)
    return [item.document() for item in answers]


@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
def test_each_question_is_answered_as_in_a_process_of_its_own(fresh: list[list[dict[str, Any]]], step: int):
    known = knowledge.load_knowledge()
    for question, alone in list(zip(QUESTIONS, fresh, strict=True))[::step]:
        assert answer(known, question) == alone


def test_a_requirement_that_is_waived_for_one_release_holds_for_another_with_the_same_words():
    release = Release(requirements=("lib==1",))
    index = {"app": {"1": release, "2": release}, "lib": {"1": Release(), "2": Release()}}
    searches = RequirementSearches(store=store_of(index), waived={("app", "2", "lib"): frozenset({"2"})})

    def resolve(*texts: str) -> RequirementResolution:
        packages = [item for text in texts if (item := parse_requirement(text))]
        return resolve_packages(packages, ResolutionTarget(python="3.11"), searches)

    assert resolve("app==1", "lib==2").conflict is not None
    assert resolve("app==2", "lib==2").conflict is None
    assert resolve("app==1", "lib==2").conflict is not None
