"""The simulation of a fleet: its arithmetic, and that docs/scale.md says what it gives."""

from __future__ import annotations

import importlib.util
import random
import sys

import pytest

from knowngood.core import local_files

ROOT = local_files.data_folder()


@pytest.fixture(scope="module")
def fleet():
    spec = importlib.util.spec_from_file_location("fleet_simulation", ROOT / "benchmarks/fleet_simulation.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def night(fleet, count, gpus, **way):
    cells = fleet.matrix(80)[:count]
    seconds = dict.fromkeys(map(str, cells), 10.0)
    return fleet.night(cells, seconds, {cells[0].gpu: gpus}, fleet.Way(**way), random.Random(1))  # noqa: S311


def test_gpus_share_the_work(fleet):
    assert [night(fleet, 8, gpus).wall for gpus in (1, 2, 3, 8, 100)] == [80, 40, 30, 10, 10]
    assert night(fleet, 8, 3).gpu == 80
    assert night(fleet, 8, 0).done == frozenset()


def test_what_is_red_runs_once_more(fleet):
    found = night(fleet, 8, 2, red=1.0)
    assert (found.runs, found.gpu, len(found.done)) == (16, 160, 8)
    assert night(fleet, 1, 1, red=1.0).runs == 2  # there is no other GPU: once more on the same


def test_nothing_begins_after_the_budget(fleet):
    found = night(fleet, 8, 1, budget=35)
    assert (found.runs, found.wall) == (4, 40)


def test_a_broken_gpu_is_not_believed(fleet):
    assert night(fleet, 8, 2, bad=1.0, elsewhere=False).blamed == 7  # it is quick, and takes nearly all there is
    assert night(fleet, 8, 2, bad=1.0, avoid=False).blamed == 0
    avoided = night(fleet, 8, 2, bad=1.0)
    assert avoided.blamed == 0
    assert len(avoided.done) == 8
    assert avoided.runs <= night(fleet, 8, 2, bad=1.0, avoid=False).runs


def test_what_is_proven_is_left_until_it_expires(fleet):
    cells = fleet.matrix(80)
    seconds = dict.fromkeys(map(str, cells), 10.0)
    found, stale = fleet.nights(cells, seconds, fleet.spread(8), fleet.Way(budget=fleet.BUDGET))
    assert [one.runs for one in found] == [80, *[0] * 6, 80, *[0] * 6]
    assert set(stale) == {0}


def test_the_page_says_what_comes_out(fleet):
    text = fleet.PAGE.read_text(encoding="utf-8")
    _, until, _ = fleet._parts(text)
    seen = fleet.measured(until)
    lines = text.splitlines()
    rows = fleet.table((1_000,), {"quick": seen.quick}, seen.red / seen.runs, seen.settings)
    assert len(rows) == 2 + len(fleet.GPUS)
    assert [line for line in rows if line not in lines] == []
    assert [line for line in fleet.broken(10_000, seen.quick, 100) if line not in lines] == []
