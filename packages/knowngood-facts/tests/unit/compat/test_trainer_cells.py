"""Queries that name a trainer: the cells that have it, and what is said where none has it in the wanted release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.pick_answer import PickAnswer, pick_cells
from knowngood_facts.compat.query import Query, parse_requirement
from knowngood_facts.compat.trainer_findings import TRAINER

KNOWN = knowledge.load_knowledge()
BY_TRAINER = {
    (cell.framework_pin[0], cell.gpu): cell
    for cell in KNOWN.published.cells
    if cell.framework_pin and "fa2" not in str(cell)
}
TRL, TRL_ON_L4 = BY_TRAINER["trl", "sm_90"], BY_TRAINER["trl", "sm_89"]


def query(*requirements: str, gpu: str = "H100", **more: Any) -> Query:
    packages = tuple(item for text in requirements if (item := parse_requirement(text)))
    return Query(packages=packages, gpu=gpu, **more)


def pick(*requirements: str, gpu: str = "H100", published: Any = KNOWN.published, **more: Any) -> PickAnswer:
    return pick_cells(KNOWN.universe, query(*requirements, gpu=gpu, **more), published, count=20)


def check(*requirements: str, gpu: str = "H100") -> CheckAnswer:
    return check_query(KNOWN.universe, query(*requirements, gpu=gpu), KNOWN.published)


def about(findings: tuple[Finding, ...], trainer: str = "trl") -> list[str]:
    return [finding.because for finding in findings if finding.id == TRAINER + trainer]


@pytest.mark.parametrize("word", ["trl", "TRL", "trl==1.16.0", "trl>=1.15,<2", "trl==1.*"])
def test_the_cell_with_the_trainer_comes_first(word):
    answer = pick(word)
    assert answer.choices[0].cell == TRL
    assert about(answer.findings) == []
    assert about(answer.choices[0].findings) == []


@pytest.mark.parametrize("trainer", ["ms-swift", "llamafactory", "axolotl", "xtuner==0.2.0", "openrlhf"])
def test_every_trainer_is_found_by_its_name(trainer):
    assert pick(trainer).choices[0].cell.framework.startswith(trainer.partition("=")[0])


def test_the_card_and_further_requirements_count():
    assert pick("trl", gpu="4090").choices[0].cell == TRL_ON_L4
    assert pick("trl", "torch==2.11.0", "transformers>=5.10", "peft", "datasets").choices[0].cell == TRL
    with_older_torch = pick("trl", "torch==2.10.0")
    assert all(choice.cell.framework_pin is None for choice in with_older_torch.choices)
    assert "none of them fits the rest" in about(with_older_torch.findings)[0]


def test_a_cell_with_a_trainer_is_for_no_other_query():
    assert all(choice.cell.framework_pin is None for choice in pick("peft").choices)
    assert all(choice.cell.framework_pin is None for choice in pick("trl==none").choices)


def test_a_cell_below_is_offered_after_it_with_a_note():
    plain = [choice for choice in pick("trl").choices if choice.published and not choice.cell.framework_pin]
    assert plain
    for choice in plain:
        command = f"`knowngood run {choice.cell} --with trl -- python`"
        assert about(choice.findings) == [f"not in this cell: trl; {command} adds what is missing"]


def test_a_trainer_that_another_one_brings_is_not_missed():
    answer = pick("ms-swift", "trl")
    choices = {choice.cell.framework_pin: choice for choice in answer.choices if choice.published}
    [swift] = [choice for pin, choice in choices.items() if pin and pin[0] == "ms-swift"]
    assert KNOWN.published.read_lock(swift.cell)["trl"]
    assert about(swift.findings) == []
    assert not any(pin and pin[0] == "trl" for pin in choices)  # ms-swift takes no peft that its lock has
    assert "ms-swift" in answer.left_out[str(TRL)]


def test_what_a_trainer_is_used_with_is_not_missed_in_its_cell():
    answer = pick("trl", "deepspeed")
    assert answer.choices[0].cell == TRL
    assert about(answer.findings, "deepspeed") == []
    assert "(on sm_70)" in about(pick("deepspeed", gpu="T4").findings, "deepspeed")[0]


def test_the_lock_of_a_cell_counts():
    peft = KNOWN.published.read_lock(TRL)["peft"]
    assert pick("trl", f"peft=={peft}").choices[0].cell == TRL
    older = pick("trl", "peft==0.18.1")
    assert TRL not in [choice.cell for choice in older.choices]
    assert older.left_out[str(TRL)] == f"its lock has peft {peft}, and not peft==0.18.1"
    without_locks = replace(KNOWN.published, read_lock=lambda _: {})
    assert pick("trl", "peft==0.18.1", published=without_locks).choices[0].cell == TRL


@pytest.mark.parametrize(
    ("word", "words"),
    [
        (
            "trl==1.15.0",
            ["no cell is made for trl==1.15.0", "trl 1.16.0 (on sm_90, sm_89)", "it can be had by what packages"],
        ),
        (
            "llamafactory==0.9.4",
            ["llamafactory 0.9.5 (on sm_90, sm_89)", "cannot be had: llamafactory 0.9.4 needs transf"],
        ),
        ("trl==0.7.11", ["cannot be had: trl 0.7.11 uses `top_k_top_p_filtering` of `transformers`, gone since"]),
        ("trl==99", ["no cell is made for trl==99", "trl 1.16.0"]),
    ],
)
def test_a_release_that_no_cell_has_is_explained_alike_everywhere(word, words):
    name = word.partition("=")[0]
    [because] = about(pick(word).findings, name)
    assert all(text in because for text in words)
    assert about(check(word).findings, name) == [because]


def test_the_cards_of_the_query_come_first_in_an_explanation():
    assert "(on sm_89, sm_90)" in about(pick("trl==1.15.0", gpu="4090").findings)[0]


def test_a_cell_that_is_not_there_yet_has_the_trainer_as_its_framework():
    new = [choice for choice in pick("llamafactory==0.9.4").choices if not choice.published]
    assert new
    assert all(choice.extras["llamafactory"] == "0.9.4" for choice in new)


def test_check_names_the_cell_that_has_the_trainer():
    pins = ("torch==2.11.0", "transformers==5.17.0")
    assert check("trl==1.16.0", *pins).cell == str(TRL)
    assert check(*pins).cell != str(TRL)
    assert check("trl==1.15.0", *pins).cell is None


@pytest.mark.parametrize("words", [("trl==1.16.0",), ("trl",), ("verl==0.9.1", "vllm==0.24.0"), ("peft", "axolotl")])
def test_check_and_pick_agree_where_only_the_trainer_is_named(words):
    answer, choice = check(*words), pick(*words).choices[0].cell
    assert answer.cell == str(choice)
    assert choice.framework_pin
    assert not [finding for finding in answer.findings if finding.id.startswith(TRAINER)]


def test_a_query_of_a_package_alone_is_about_no_cell():
    assert check("peft").cell is None
    assert check("vllm==0.24.0").cell is None


@pytest.mark.parametrize(
    ("card", "trainer"), [("A100", "unsloth"), ("Quadro RTX 8000", "llamafactory"), ("T4", "axolotl")]
)
def test_a_trainer_without_a_release_gets_cells_that_go_with_one_of_this_year(card, trainer):
    answer = pick(trainer, gpu=card)
    assert answer.choices
    for choice in answer.choices:
        found = check(f"{trainer}=={choice.extras[trainer]}", f"transformers=={choice.cell.transformers}", gpu=card)
        assert found.verdict.exit_code != 1, choice


def test_a_release_that_fails_beside_the_cells_transformers_is_not_added():
    """Unsloth 2025.7.2 imports HybridCache of transformers, gone since 5.0.0, and requires no older one."""
    answer = pick("unsloth", gpu="5090", axes={"driver": "570.86.10"})
    assert answer.choices
    assert all(choice.extras["unsloth"] != "2025.7.2" for choice in answer.choices)
