"""The pages of trainers: what they say of how far one is proven, and the configuration that they show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.gpus import GpuMachine
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.evidence.run_evidence import RunPlace, Tier
from knowngood_pages.site_incidents import find_page_title, render_page_body
from knowngood_pages.trainer_options import find_seen_options
from knowngood_pages.trainer_pages import TrainerCell, render_trainer_pages

CELL = parse_cell("sm89-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311-trl1.16.0")


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


def page(*runs, tier=Tier.TRAINS_ON_CPU, size="2.82 GB", **changes):
    cards = ("L4", "L40S", "RTX 4090", "RTX 4080")
    machine = GpuMachine(name="sm_89", sm="sm_89", host=DEFAULT_HOST, cards=cards, query="sm_89")
    given = {"image": "sha256:" + "a" * 64, "suite": "5" * 64} | changes
    item = TrainerCell(cell=CELL, machine=machine, tier=tier, size=size, runs=runs, **given)
    pages = render_trainer_pages([item])
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


def test_a_page_says_what_was_compared_of_whole_trainings():
    newer = run()
    newer.report["checks"][0] |= {"whole_training": {"steps": 8}, "saved": {"tokens": 108}, "seconds": 4.4}
    _, text = page(newer)
    assert "In 1 of these checks each of the 8 steps was compared" in text
    assert "has the trained weights to the bit" in text
    assert "That took 4 s." in text
    assert "of these checks each of the" not in page(run())[1]


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
    assert "The image: built, not seen training." in page(tier=Tier.BUILT)[1]
    assert "The image: locked, never built." in page(tier=Tier.RESOLVED)[1]


def options(check, *, command="swift sft sft.yaml", outcome="pass", figures=None, **changed):
    parts = {"sft.yaml": {"model": "model", "steps": 8, "targets": ["q", "v"]} | changed}
    seen = {"command": command, "parts": parts}
    return {"id": f"trainer/trl-sft/{check}", "outcome": outcome, "figures": figures, "options": seen}


def test_the_options_are_those_of_the_first_check_and_what_the_others_have_of_their_own():
    whole, lora = options("qwen2/sdpa/fp32/padded/full"), options("qwen2/sdpa/fp32/padded/lora", rank=8, steps=1)
    del lora["options"]["parts"]["sft.yaml"]["targets"]
    same = options("qwen3/sdpa/fp32/padded/full")
    again = lora | {"id": "trainer/trl-sft/qwen3/sdpa/fp32/padded/lora"}
    red, noticed = options("qwen3/eager", outcome="fail", rank=1), options("faulty", figures={"noticed": "x"}, rank=2)
    (seen,) = find_seen_options([red, whole, lora, same, noticed, again])
    assert (seen.kind, seen.check, seen.command) == ("trl-sft", "qwen2/sdpa/fp32/padded/full", "swift sft sft.yaml")
    assert seen.parts == whole["options"]["parts"]
    (variant,) = seen.variants
    assert variant.checks == ("qwen2/sdpa/fp32/padded/lora", "qwen3/sdpa/fp32/padded/lora")
    assert variant.changed == {"sft.yaml": {"steps": 1, "rank": 8}}
    assert variant.absent == ("targets",)


def test_a_page_shows_the_options_as_a_user_writes_them():
    given = run()
    given.report["checks"] = [options("qwen2/sdpa/fp32/padded/full"), options("qwen3/sdpa/fp32/packed/full", pack=True)]
    text = page(given)[1]
    assert f"knowngood run {CELL} -- swift sft sft.yaml" in text
    assert "`sft.yaml`:\n```yaml\nmodel: model\nsteps: 8\ntargets: [q, v]\n```\n" in text
    assert "`qwen3/sdpa/fp32/packed/full`: the same, and\n\n`sft.yaml`:\n```yaml\npack: true\n```\n" in text
    assert "The options that were seen training" not in page(run())[1]
