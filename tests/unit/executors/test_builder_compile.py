"""Compiling wheels on several builders."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from builder_samples import GB, make_builder
from samples import FA2

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors import builder_compile
from knowngood.executors.builder_crew import BuilderLostError
from knowngood.wheels.compile_request import CompileCapacity, WheelRequest


class FakeRun:
    """The parts of a run on builders that `compile_on_builders` uses."""

    project = SimpleNamespace(root=Path(), matrix=SimpleNamespace(entry=lambda _: SimpleNamespace(base="debian12")))

    def __init__(self, gigabytes, machine):
        self.builders = tuple(make_builder(name, machine=machine or name) for name in gigabytes)
        self.stop = threading.Event()

    def pipeline(self, builder):
        return builder


class FakeCompiles:
    """Compiles on builders with so many gigabytes; they fail as `fails` says."""

    def __init__(self):
        self.fails: dict[tuple[str, str], KnowngoodError] = {}
        """The error of a package on a builder."""
        self.started: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.running: Counter[str] = Counter()
        self.most_running: Counter[str] = Counter()
        self.machine = ""

    def compile_wheel(self, builder, request, notify):
        self.started.append((request.package, builder.name))
        self.running[builder.machine] += 1
        self.most_running[builder.machine] = max(self.most_running[builder.machine], self.running[builder.machine])
        notify("compiling")
        time.sleep(0.02)
        self.running[builder.machine] -= 1
        if error := self.fails.get((request.package, builder.name)):
            raise error
        return {"cell": FA2, "status": "compiled", "seconds": 5.0, "note": "", "wheel": "w"}

    def __call__(self, wheels, **gigabytes):
        def measure(place, _cell, _notify):
            if not (free := gigabytes[place.pipeline.name]):
                raise MissingError("it does not answer")
            return CompileCapacity(processors=4, memory=free * GB)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builder_compile.BuilderCompilePlace, "power", measure)
            run = FakeRun(gigabytes, self.machine)
            return builder_compile.compile_on_builders(run, wheels, self.compile_wheel, 7 * GB, self.messages.append)


@pytest.fixture
def compiles():
    return FakeCompiles()


def requests(*packages):
    return [WheelRequest(cell=parse_cell(FA2), package=name, version="1") for name in packages]


def test_wheels_go_to_builders_with_enough_memory_the_strongest_first(compiles):
    documents = compiles(requests("a", "b", "c"), small=6, middling=15, silent=0, big=64)
    assert [document["status"] for document in documents] == ["compiled"] * 3
    assert sorted(compiles.started[:2]) == [("a", "big"), ("b", "middling")]
    assert {builder for _, builder in compiles.started} == {"big", "middling"}
    assert compiles.most_running == {"big": 1, "middling": 1}
    assert "builder silent is left out: it does not answer" in compiles.messages
    assert "builder big has 64.0 GB free, 4 processors" in compiles.messages
    assert f"a 1 for {FA2} goes to big" in compiles.messages
    assert "on big: compiling" in compiles.messages


def test_a_machine_compiles_one_wheel_at_a_time(compiles):
    compiles.machine = "one"
    compiles(requests("a", "b", "c"), first=64, second=64)
    assert compiles.most_running == {"one": 1}


def test_cells_that_share_a_wheel_have_it_compiled_once(compiles):
    (wheel,) = requests("a")
    documents = compiles([wheel, replace(wheel, cell=replace(wheel.cell, transformers="4.40.0"))], big=64, other=64)
    assert [document["status"] for document in documents] == ["compiled", "present"]
    assert len(compiles.started) == 1


def test_a_compile_without_enough_memory_moves_but_a_failed_compile_does_not(compiles):
    compiles.fails = {
        ("a", "big"): MissingError("the compile was killed for want of memory"),
        ("b", "other"): KnowngoodError("the compile failed"),
    }
    documents = compiles(requests("a", "b"), big=64, other=32)
    assert (documents[0]["status"], "error" in documents[0]) == ("compiled", False)
    assert (documents[1]["status"], documents[1]["error"], documents[1]["exit"]) == ("failed", "the compile failed", 1)
    assert [builder for package, builder in compiles.started if package == "a"] == ["big", "other"]


@pytest.mark.parametrize("other", [32, 5])
def test_the_wheel_of_a_lost_builder_goes_to_another_even_if_that_has_little_memory(compiles, other):
    compiles.fails = {("a", "big"): BuilderLostError("builder big was lost during the build")}
    (document,) = compiles(requests("a"), big=64, other=other)
    assert (document["status"], document["note"]) == ("compiled", "begun by big, which stopped answering")
    assert compiles.started == [("a", "big"), ("a", "other")]
    assert any("its unfinished tasks move to other" in line for line in compiles.messages)


def test_a_wheel_that_no_builder_can_compile_is_a_failure(compiles):
    compiles.fails = {("a", name): MissingError(f"{name} is full") for name in ("big", "other")}
    compiles.fails |= {("b", "big"): BuilderLostError("gone"), ("b", "other"): BuilderLostError("gone")}
    full, lost = compiles(requests("a", "b"), big=64, other=32)
    assert (full["status"], full["exit"]) == ("failed", 4)
    assert "full" in full["error"]
    assert (lost["status"], lost["exit"]) == ("failed", 4)
    assert "no builder is left" in lost["error"]


def test_no_builder_that_reports_its_memory_is_an_error(compiles):
    with pytest.raises(MissingError, match="no builder reports its free memory: it does not answer"):
        compiles(requests("a"), silent=0)
