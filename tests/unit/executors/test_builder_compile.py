"""Compiling wheels on several builders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from builder_samples import GB, FakeBuilders, make_builder, make_task
from samples import FA2

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors import builder_compile, builder_discovery, builder_scheduler
from knowngood.images.cell_tasks import CellStatus
from knowngood.images.task_crew import TaskProcess
from knowngood.wheels.compile_request import CompileCapacity, WheelRequest


@pytest.fixture
def builders(monkeypatch):
    monkeypatch.setattr(builder_scheduler, "_POLL_SECONDS", 0)
    monkeypatch.setattr(builder_scheduler, "_ANSWER_CHECK_SECONDS", 0.01)
    return FakeBuilders()


class FakeRun:
    """The parts of a run on builders that `compile_on_builders` uses."""

    project = SimpleNamespace(root=Path(), matrix=SimpleNamespace(entry=lambda _: SimpleNamespace(base="debian12")))

    def __init__(self, gigabytes):
        self.builders = tuple(make_builder(name) for name in gigabytes)

    def pipeline(self, builder):
        return builder


@pytest.fixture
def compiles(builders, monkeypatch):
    """A function that compiles wheels on builders with so many gigabytes; each compile ends as `builders` says."""

    class FakeProcess:
        def __init__(self, name, argv, _root, documents):
            self.name, self.documents = name, documents
            self.work = builders.start(make_task(name), make_builder(argv[0]))

        def done(self):
            return self.work.done()

        def result(self):
            result = self.work.result()
            if not result.error:
                document = {"cell": FA2, "status": "compiled", "seconds": 5.0, "note": "", "wheel": "w"}
                self.documents[self.name] = document
            return result

        def interrupt(self):
            self.work.interrupt()

        def stop(self):
            self.work.stop()

    def compile_wheels(wheels, **gigabytes):
        def measure(place, _cell, _notify):
            if not (free := gigabytes[place.pipeline.name]):
                raise MissingError("it does not answer")
            return CompileCapacity(processors=4, memory=free * GB)

        monkeypatch.setattr(builder_compile.BuilderCompilePlace, "power", measure)
        return builder_compile.compile_on_builders(
            FakeRun(gigabytes), wheels, lambda builder, _: [builder.name], 7 * GB, builders.messages.append
        )

    monkeypatch.setattr(builder_compile, "_CompileProcess", FakeProcess)
    monkeypatch.setattr(builder_discovery, "builder_answers", lambda builder: builder.name not in builders.dead)
    return compile_wheels


def requests(*packages):
    return [WheelRequest(cell=parse_cell(FA2), package=name, version="1") for name in packages]


def test_wheels_go_to_builders_with_enough_memory_the_strongest_first(builders, compiles):
    documents = compiles(requests("a", "b", "c"), small=6, middling=15, silent=0, big=64)
    assert [document["status"] for document in documents] == ["compiled"] * 3
    assert [builder for _, builder in builders.started[:2]] == ["big", "middling"]
    assert {builder for _, builder in builders.started} == {"big", "middling"}
    assert builders.most_running == {"big": 1, "middling": 1}
    assert "builder silent is left out: it does not answer" in builders.messages
    assert "builder big has 64.0 GB free, 4 processors" in builders.messages


def test_cells_that_share_a_wheel_have_it_compiled_once(builders, compiles):
    (wheel,) = requests("a")
    documents = compiles([wheel, replace(wheel, cell=replace(wheel.cell, transformers="4.40.0"))], big=64, other=64)
    assert [document["status"] for document in documents] == ["compiled", "present"]
    assert len(builders.started) == 1


def test_a_compile_without_enough_memory_moves_but_a_failed_compile_does_not(builders, compiles):
    name = f"{{}} 1 for {FA2}"
    builders.fails = {
        (name.format("a"), "big"): MissingError("the compile was killed for want of memory"),
        (name.format("b"), "other"): KnowngoodError("the compile failed"),
    }
    documents = compiles(requests("a", "b"), big=64, other=32)
    assert (documents[0]["status"], "error" in documents[0]) == ("compiled", False)
    assert (documents[1]["status"], documents[1]["error"], documents[1]["exit"]) == ("failed", "the compile failed", 1)
    assert [builder for task_name, builder in builders.started if task_name == name.format("a")] == ["big", "other"]


def test_no_builder_that_reports_its_memory_is_an_error(compiles):
    with pytest.raises(MissingError, match="no builder reports its free memory: it does not answer"):
        compiles(requests("a"), silent=0)


def test_the_result_of_a_compile_process_is_its_document(monkeypatch):
    wheel = {"cell": FA2, "status": "compiled", "seconds": 5.0, "note": "", "wheel": "w"}
    failure = {"cell": FA2, "status": "failed", "error": "the compile failed", "exit": 4}
    documents = {}
    monkeypatch.setattr(TaskProcess, "__init__", lambda *_: None)
    process = builder_compile._CompileProcess("a", [], Path(), documents)
    parse_result = process._parse_result
    assert hasattr(TaskProcess, parse_result.__name__), "it replaces the method of the base class"
    assert (parse_result({"wheels": [wheel]}).status, documents) == (CellStatus.BUILT, {"a": wheel})
    result = parse_result({"wheels": [failure]})
    assert (result.status, str(result.error), result.error.exit_code) == (CellStatus.FAILED, "the compile failed", 4)
