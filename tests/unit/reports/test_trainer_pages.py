"""The pages of trainers: what they say of how far one is proven, and the configuration that they show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.evidence.run_evidence import RunPlace, Tier
from knowngood.reports.site_incidents import find_page_title, render_page_body
from knowngood.reports.trainer_configuration import ConfigurationPart, find_configuration
from knowngood.reports.trainer_pages import TrainerCell, render_trainer_pages

CELL = parse_cell("sm89-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311-trl1.16.0")
SOURCES = {
    "trl_sft.py": "from smoke_tests.trainers import shared, tiny\n\n\ndef _options(folder):\n    return {'a': 1}\n\n\n"
    "def run():\n    pass\n",
    "shared.py": "LIMIT = 1\n\n\ndef adapters():\n    # as people do\n    return 2\n",
    "tiny.py": "def write_rows():\n    pass\n",
    "trl_faults.py": "def put():\n    pass\n",
    "other_sft.py": "def options():\n    return 3\n",
}


def run(*, where=RunPlace.CONTAINER_CPU, outcome="pass", suite="5" * 64, ok=True, when="2026-11-23T10:00:00+00:00"):
    errors = {"loss": 1.2e-8, "gradient": 3e-6}
    checks = [
        {"id": "trainer/trl-sft/qwen3/sdpa/fp32/padded/full", "outcome": outcome, "errors": errors},
        {"id": "trainer/trl-sft/labels-shifted/sdpa", "outcome": outcome, "figures": {"noticed": "loss differs"}},
        {"id": "framework/xtuner/padded", "outcome": "not-run"},
        {"id": "sdpa/fp32/dense/full", "outcome": "pass"},
    ]
    report = {"checks": checks, "environment": {"gpu": "NVIDIA L4" if where is RunPlace.CONTAINER_GPU else None}}
    return SimpleNamespace(where=where, ok=ok, when=when, suite=suite, image="sha256:" + "a" * 64, report=report)


def page(*runs, tier=Tier.TRAINS_ON_CPU, size="2.82 GB", configuration=(), **changes):
    cards = ("L4", "L40S", "RTX 4090", "RTX 4080")
    given = {"image": "sha256:" + "a" * 64, "suite": "5" * 64} | changes
    item = TrainerCell(cell=CELL, cards=cards, tier=tier, size=size, runs=runs, **given)
    pages = render_trainer_pages([item], {"trl": configuration})
    assert pages.keys() == {"README.md", "trl.md"}
    return pages["README.md"], pages["trl.md"]


def test_a_page_names_the_cards_and_the_command():
    index, text = page(run())
    assert find_page_title(text) == "Train with trl on L4 or RTX 4090"
    assert f"knowngood run {CELL} -- python train.py" in text
    assert "| [trl](trl.md) | 1.16.0 | L4, RTX 4090 | seen training on a CPU only |" in index
    assert '<a href="trl.html">' in render_page_body(index)


def test_what_the_trainers_checks_saw_is_a_table_without_those_of_others():
    _, text = page(run())
    assert "| `trl-sft/qwen3/sdpa/fp32/padded/full` | pass | 1e-08 | 3e-06 |" in text
    assert "labels-shifted" not in text
    assert "1 faults that were put into the trainer's path on purpose were noticed" in text
    assert "xtuner" not in text
    assert "sdpa/fp32/dense" not in text


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((), "**No run has seen trl itself train in it.**\n"),
        ((run(outcome="not-run"),), "train in it.** What ran in it is the suite of every cell"),
        ((run(ok=False),), "**No run has seen trl itself"),
        ((run(where=RunPlace.BARE),), "**No run has seen trl itself"),
        (
            (run(),),
            "trl itself: seen training on a CPU only on 2026-11-23, in the image sha256:aaaaaaaaaaaa, suite 5555",
        ),
        ((run(suite="6" * 64),), "The checks have changed since."),
        (
            (run(where=RunPlace.CONTAINER_GPU), run(when="2026-11-24")),
            "seen training on a GPU (NVIDIA L4) on 2026-11-23",
        ),
    ],
)
def test_a_page_says_how_far_the_trainer_itself_is_proven(runs, words):
    assert words in page(*runs)[1]


def test_a_run_of_an_earlier_image_is_said_to_be_one():
    assert "made anew since" not in page(run())[1]
    assert "The image has been made anew since." in page(run(), image="sha256:" + "b" * 64)[1]


def test_a_recorded_image_that_never_ran_was_built_all_the_same():
    assert "built and recorded, never run" in page(tier=Tier.RESOLVED)[1]
    assert "locked, never built" in page(tier=Tier.RESOLVED, size="")[1]


def test_the_configuration_is_cut_out_of_the_trainers_modules_and_of_those_they_import():
    assert find_configuration("trl", SOURCES) == [
        ConfigurationPart(file="trl_sft.py", text="def _options(folder):\n    return {'a': 1}"),
        ConfigurationPart(file="shared.py", text="def adapters():\n    # as people do\n    return 2"),
    ]
    assert find_configuration("verl", SOURCES) == []


def test_a_page_says_whether_the_configuration_is_the_one_that_ran():
    parts = find_configuration("trl", SOURCES)
    assert "These functions made the configuration" in page(run(), configuration=parts)[1]
    assert "in a state that no run above had" in page(run(), configuration=parts, suite="6" * 64)[1]
    assert "## The configuration" not in page(run())[1]
    assert "From `trainer_tests/shared.py`:\n```python\ndef adapters():" in page(run(), configuration=parts)[1]
