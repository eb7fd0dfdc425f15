"""Which cell a program runs in, by the real matrix, facts and evidence."""

from __future__ import annotations

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.gpus import gpu_catalog_from_sections
from knowngood.engine.probe_gpus import GpuState, NvidiaState
from knowngood.launch.run_choice import ANY_GPU, RunChooser
from knowngood.lock import lock_tree
from knowngood.project.cell_answers import CellAnswers
from knowngood.project.checkout import find_project
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.pick_answer import pick_cells
from knowngood_facts.compat.query import Query, parse_requirement

NO_GPU = NvidiaState(problem="NVML's library is not found")


@pytest.fixture(scope="module")
def known():
    return knowledge.load_knowledge()


def machine(*gpus, driver="580.95.05"):
    cards = [
        GpuState(index=number, name=name, sm=sm, memory=80 << 30, used=0) for number, (name, sm) in enumerate(gpus)
    ]
    return NvidiaState(driver=driver, gpus=tuple(cards), loaded=True)


@pytest.fixture(scope="module")
def chooser():
    project = find_project()
    catalog = gpu_catalog_from_sections({sm: dict(item) for sm, item in project.matrix.gpus.items()})
    return RunChooser(project.matrix, catalog, CellAnswers(project))


def choose(chooser, nvidia=NO_GPU, cells=(), gpu=ANY_GPU, attn=None, *, wanted=()):
    return chooser.list_choices(nvidia, cells, gpu=gpu, attn=attn, wanted=wanted)[0]


def test_without_a_gpu_the_default_runs_and_says_why(known, chooser):
    choice = choose(chooser)
    assert str(choice.cell) == known.published.aliases["default"]
    assert "no GPU" in choice.because


def test_the_gpu_of_the_machine_decides_and_its_driver(chooser):
    choice = choose(chooser, machine(("NVIDIA H100", "sm_90")))
    assert choice.cell.gpu == "sm_90"
    assert "NVIDIA H100 of this machine" in choice.text
    old = choose(chooser, machine(("NVIDIA A100", "sm_80"), driver="535.104.05"))
    assert (old.cell.gpu, old.cell.cuda.split(".")[0]) == ("sm_80", "12")


def test_of_several_cards_the_oldest_decides(chooser):
    choice = choose(chooser, machine(("NVIDIA H100", "sm_90"), ("NVIDIA A100", "sm_80")))
    assert choice.cell.gpu == "sm_80"


def test_a_named_gpu_and_a_setting(chooser):
    choice = choose(chooser, gpu="H100", attn="fa2")
    assert (choice.cell.gpu, choice.cell.flash_attn_package) == ("sm_90", "flash-attn")
    assert "fa2: seen training on a GPU" in choice.text


def test_a_cell_that_is_named_runs_also_on_another_gpu(known, chooser):
    cell = parse_cell(known.published.aliases["t4"])
    choice = choose(chooser, machine(("NVIDIA H100", "sm_90")), [cell])
    assert (choice.cell, choice.because) == (cell, "as selected")


def test_of_selected_cells_the_best_for_the_gpu_runs(known, chooser):
    choice = choose(chooser, cells=[cell for cell in known.published.cells if cell.gpu != "sm_90"], gpu="A100")
    assert choice.cell.gpu == "sm_80"


def test_nothing_that_fits_is_said_with_a_command(chooser):
    with pytest.raises(KnowngoodError, match=r"no cell of matrix.yaml fits.*knowngood pick --gpu T4 --attn fa4"):
        choose(chooser, gpu="T4", attn="fa4")


@pytest.mark.parametrize("word", ["trl", "TRL", "trl==1.16", "trl>=1.15,<2", "trl[vlm]", "trl==1.16.0"])
def test_the_cell_that_has_a_wanted_trainer_runs(chooser, word):
    choice = choose(chooser, gpu="H100", wanted=["rich", word])
    assert choice.cell.framework_pin == ("trl", "1.16.0")
    assert choice.because == "for H100, with trl 1.16.0"
    assert choose(chooser, wanted=[word]).cell == choice.cell
    assert choose(chooser, gpu="4090", wanted=[word]).cell.gpu == "sm_89"


@pytest.mark.parametrize("trainer", ["llamafactory", "ms_swift", "xtuner==0.2.0"])
def test_a_trainer_with_a_cell_of_its_own_is_found_as_pick_finds_it(known, chooser, trainer):
    words = parse_requirement(trainer)
    picked = pick_cells(known.universe, Query(gpu="H100", packages=(words,)), known.published).choices[0]
    assert choose(chooser, gpu="H100", wanted=[trainer]).cell == picked.cell


def test_a_selected_cell_gives_way_to_the_stack_on_it_and_to_no_other(known, chooser):
    default, l4 = (parse_cell(known.published.aliases[name]) for name in ("default", "l4"))
    assert choose(chooser, cells=[default], wanted=["trl"]).cell.without_framework() == default
    assert choose(chooser, cells=[l4], wanted=["torchtitan"]).cell == l4


@pytest.mark.parametrize("words", [(), ("rich",), ("trl==1.14",), ("trl=1",), ("trl>2",), ("trl==0.1",)])
def test_without_a_trainer_that_a_cell_has_a_cell_without_one_runs(chooser, words):
    assert choose(chooser, gpu="H100", wanted=words).cell.framework_pin is None


def test_a_trainer_that_is_not_locked_is_added_to_the_cell_below(chooser, monkeypatch):
    monkeypatch.setattr(lock_tree.LockTree, "locked", lambda _tree: frozenset())
    assert choose(chooser, gpu="H100", wanted=["trl"]).cell.framework_pin is None


def test_a_setting_that_the_cell_of_the_trainer_refuses_counts(chooser):
    choice = choose(chooser, gpu="H100", attn="fa2", wanted=["trl"])
    assert (choice.cell.framework_pin, choice.cell.flash_attn_package) == (None, "flash-attn")
