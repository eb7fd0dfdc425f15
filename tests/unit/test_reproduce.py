"""`knowngood reproduce` with a place that is none, and the reproductions that there are."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import yaml
from packaging.version import Version

from knowngood import resources
from knowngood.commands import reproduce as command
from knowngood.errors import InputError, KnowngoodError, MissingError, UnknownError
from knowngood.harvest import index
from knowngood.harvest import run as run_of_harvest
from knowngood.incidents import reading
from knowngood.reproducing import reproductions, sources
from knowngood.reproducing.image import matrix
from knowngood.reproducing.observation import Observation
from knowngood.reproducing.reproduce import CannotTryError, exit_code, reproduce
from knowngood.reproducing.run import observed, variables
from knowngood.reproducing.venv import Venv

INCIDENT = """
title: A method is gone
kind: api-removed
component: caller
signatures: ["AttributeError: 'Thing' object has no attribute 'method_of_old'"]
because: It went.
fix: [{note: pin it}]
source: [a thread]
confidence: reported
range_from: thread
"""
DEFINITION = """
python: ["3.9", "3.11"]
requirements: [torch==2.5.1; python_version < '3.10', torch==2.11.0; python_version >= '3.10']
excludes: [deepspeed]
stand-ins: {kernels: the kernels}
sides:
  failing: {requirements: transformers==4.44.2}
  fixed:
    said: an older one
    requirements: transformers==4.42.4
    stand-ins: {more: another}
    sources: {thing==1.0: "thing/*.py"}
  on two: {gpus: 2}
"""
FAILS = {"type": "AttributeError", "text": "'Thing' object has no attribute 'method_of_old'", "where": ["thing.py:1 f"]}


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "reproductions"
    for name, text in {
        "gone/reproduction.yaml": DEFINITION,
        "gone/program.py": "print(1)",
        "stand-ins/kernels.py": "",
        "stand-ins/more.py": "",
        "observe.py": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class Fake:
    """A place where everything is seen at once."""

    where = "venv"

    def __init__(self, **seen):
        self.seen, self.jobs = seen, []

    def node(self):
        return {"name": "x"}

    def gpus(self):
        return 0

    def observe(self, job, say):
        say("running")
        self.jobs.append(job)
        found = self.seen[job.side]
        if isinstance(found, Exception):
            raise found
        return found


def did(**more):
    told = {"exit": 0, "seconds": 1.0, "python": "3.11.7", "packages": {"torch": "2.11.0"}, "exception": None}
    return Observation(**{**told, "output": "", **more})


def run(place, where, sides=("failing", "fixed", "on two")):
    known = {"gone": reading.parse(INCIDENT, "incidents/gone.yaml")}

    def unpack(pin, globs, python):
        assert (pin, globs, python) == ("thing==1.0", ("thing/*.py",), "3.9")
        return {"thing/__init__.py": b"x = 1"}

    return reproduce(reproductions.load("gone", place), known, where, unpack, sides=sides, say=lambda _: None)


def broken():
    return did(
        exit=1, exception=FAILS, output="Traceback\nAttributeError: 'Thing' object has no attribute 'method_of_old'\n"
    )


def test_a_failure_and_its_cure_are_evidence(place, tmp_path):
    where = Fake(failing=broken(), fixed=did(said={"losses": [4.0, 3.5]}))
    found = run(place, where)
    assert found["outcome"] == "reproduced"
    assert exit_code(found) == 0
    failing, fixed, two = found["sides"]
    assert failing["exception"] == FAILS
    assert failing["signature"] == "AttributeError: 'Thing' object has no attribute 'method_of_old'"
    assert failing["diagnosed"] == ["gone"]
    assert (fixed["outcome"], fixed["said"]) == ("reproduced", {"losses": [4.0, 3.5]})
    assert (two["outcome"], two["reason"]) == ("not-run", "it needs 2 GPUs, and there are 0 here")
    # A side has its own stand-ins and sources beside the program, and not another's.
    assert set(where.jobs[0].files) == {"program.py", "observe.py", "kernels.py"}
    assert set(where.jobs[1].files) == {*where.jobs[0].files, "more.py", "sources/thing/__init__.py"}

    path = reproductions.store(found, tmp_path)
    assert reproductions.store(found, tmp_path) == path
    assert path.parent == tmp_path / "incidents/gone"
    summary = reproductions.summary("gone", tmp_path)
    assert summary.outcome == "reproduced"
    table = "\n".join(summary.lines())
    assert "`AttributeError: 'Thing' object has no attribute 'method_of_old'`" in table
    assert "trains, loss 4 to 3.5" in table
    assert "not run: it needs 2 GPUs" in table
    assert "| failing | 3.11.7 | torch==2.11.0, transformers==4.44.2 |" in table  # the pin of its Python
    assert "fixed (said cure: *an older one*: yes)" in table
    assert "`kernels` for the kernels" in table


def test_a_cure_that_is_none_is_told(place):
    found = run(place, Fake(failing=broken(), fixed=broken()))
    assert found["outcome"] == "not-reproduced"
    assert exit_code(found) == 1
    assert found["sides"][1]["reason"].startswith("it ended with AttributeError")


@pytest.mark.parametrize("error", [CannotTryError("no Python 3.9"), MissingError("the index does not answer")])
def test_what_cannot_be_tried_is_not_run(place, error):
    found = run(place, Fake(failing=error, fixed=did(said={"losses": [4.0, 3.5]})))
    assert found["outcome"] == "not-run"
    assert exit_code(found) == 3
    assert found["sides"][0]["reason"] == str(error)


def test_without_an_engine_nothing_is_tried(place):
    where = Fake(failing=MissingError("no engine"), fixed=did())
    where.where = "image"
    with pytest.raises(MissingError, match="no engine"):
        run(place, where)


@pytest.mark.parametrize(("side", "code"), [("failing", 0), ("fixed", 1)])
def test_a_part_is_judged_by_itself(place, side, code):
    found = run(place, Fake(failing=broken(), fixed=did(said={"losses": [3.0, 4.0]})), sides=[side])
    assert exit_code(found) == code


def test_names_and_defects(place):
    with pytest.raises(UnknownError, match="there is no reproduction of 'other'"):
        reproductions.load("other", place)
    (place / "stand-ins/more.py").unlink()
    with pytest.raises(InputError, match=r"there is no more.py in reproductions/stand-ins/"):
        reproductions.load("gone", place)


def test_a_program_that_differs_is_another_digest(place):
    before = reproductions.load("gone", place).digest
    (place / "gone/program.py").write_text("print(2)")
    assert reproductions.load("gone", place).digest != before


def test_evidence_of_something_else_is_left_out(tmp_path):
    folder = tmp_path / "incidents/gone"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    (folder / "b.json").write_text(json.dumps({"schema": "knowngood/reproduction/9", "reproduction": "gone"}))
    assert reproductions.runs("gone", tmp_path) == []
    assert reproductions.summary("gone", tmp_path).outcome == "not-run"


def test_nothing_of_the_machine_is_kept():
    found = observed(
        1,
        '{"losses": [1]}\n/home/me/venv/lib/x.py\n{broken\n',
        {"exception": {"type": "OSError", "text": "no /home/me/run/file", "where": []}, "python": "3.11.7"},
        places={"/home/me/venv": "venv", "/home/me": "~", "/home/me/run": "."},
    )
    assert found.output.splitlines()[1] == "venv/lib/x.py"
    assert found.exception["text"] == "no ./file"
    assert found.said == {"losses": [1]}


def test_the_image_is_that_of_a_cell(place):
    where = Fake(failing=broken())
    run(place, where, sides=["failing"])
    (job,) = where.jobs
    bases = {"debian11": {"python": "3.9"}, "debian12": {"python": "3.11"}}
    made = matrix({"bases": bases, "cells": [], "amendments": [], "aliases": {"default": "x"}}, job)
    assert "torch: 2.5.1" in made  # the pin of the base's Python
    assert "base: debian11" in made
    assert "- deepspeed" in made
    with pytest.raises(CannotTryError, match=r"no base of matrix\.yaml has Python 3.9 or 3.11"):
        matrix({"bases": {"debian13": {"python": "3.13"}}, "cells": []}, job)
    assert variables(job, "/run")["PYTHONPATH"] == "/run:/run/sources"


WITHOUT = DEFINITION.replace(
    "failing: {requirements: transformers==4.44.2}",
    "failing: {requirements: transformers==4.44.2, base-without: [gcc, g++], base-with: libstdc++6}",
)


def test_a_side_may_want_a_base_without_packages(place, tmp_path):
    (place / "gone/reproduction.yaml").write_text(WITHOUT)
    where = Fake(failing=broken(), fixed=did(said={"losses": [4.0, 3.5]}))
    found = run(place, where)
    asked = {"python": "3.9", "bootstrap": {"suite": "bullseye", "packages": ["python3", "gcc", "g++"]}}
    data = {"bases": {"debian11": asked, "debian12": {"python": "3.11"}}, "cells": []}
    job, other = where.jobs
    assert yaml.safe_load(matrix(data, job))["bases"] == {
        "debian11": {"python": "3.9", "bootstrap": {"suite": "bullseye", "packages": ["python3", "libstdc++6"]}}
    }
    assert set(yaml.safe_load(matrix(data, other))["bases"]) == {"debian11", "debian12"}
    reproductions.store(found, tmp_path)
    assert "; a base without gcc, g++, with libstdc++6 |" in "\n".join(reproductions.summary("gone", tmp_path).lines())
    asked["bootstrap"]["packages"].remove("gcc")
    with pytest.raises(KnowngoodError, match="the base does not ask for gcc, but for python3, g"):
        matrix(data, job)
    with pytest.raises(CannotTryError, match=r"a system without gcc, g\+\+; --in image"):
        Venv(locked_at="2026-11-20", keep=False).observe(job, print)


def test_the_observer_writes_what_a_program_did(tmp_path):
    observer = resources.root() / "reproductions" / reproductions.OBSERVER
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1])\ndef f():\n    raise KeyError('gone')\nf()\n")
    argv = [sys.executable, str(observer), "report.json", "program.py", "word"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (done.returncode, done.stdout) == (1, "word\n")
    assert "KeyError: 'gone'" in done.stderr
    assert report["exception"]["type"] == "KeyError"
    assert report["exception"]["where"][-1] == "program.py:4 f"
    assert report["packages"]["pytest"] == pytest.__version__

    (tmp_path / "program.py").write_text("raise SystemExit(0)\n")
    assert subprocess.run(argv, cwd=tmp_path, check=False).returncode == 0
    assert json.loads((tmp_path / "report.json").read_text())["exception"] is None


@pytest.mark.parametrize("name", reproductions.names())
def test_every_reproduction_reads_and_names_incidents(name):
    known = {path.stem for path in (resources.root() / "incidents").glob("*.yaml")}
    case = reproductions.load(name)
    assert {name, *(side.incident for side in case.definition.sides.values() if side.incident)} <= known
    compile(case.files["program.py"], "program.py", "exec")


@pytest.mark.parametrize("name", reproductions.names())
def test_committed_evidence_is_of_the_committed_program_and_was_seen(name):
    runs = reproductions.summary(name, resources.root() / "evidence").runs
    assert runs, f"run `knowngood reproduce {name}` and commit its evidence"
    digest = reproductions.load(name).digest
    assert [run["file"] for run in runs if run["digest"] != digest] == []
    assert {run["outcome"] for run in runs} == {"reproduced"}


def test_the_list_tells_the_last_evidence():
    answer = command.run(argparse.Namespace(incident=None))
    assert answer.code == 0
    assert {item["incident"] for item in answer.document} == set(reproductions.names())
    assert "evidence/incidents/" in answer.text


def test_sources_lie_where_an_installer_would_put_them(monkeypatch):
    class Wheel:
        file = SimpleNamespace(name="x-1.0-py3-none-any.whl")
        members = ("x-1.0.data/purelib/x/a.py", "x-1.0.data/purelib/x/b.txt", "x-1.0.dist-info/METADATA")

        def read(self, member):
            return member.encode()

        def close(self):
            pass

    class File(NamedTuple):
        name: str
        version: Version
        is_wheel: bool

    files = [File("x-1.0-py3-none-any.whl", Version("1.0"), is_wheel=True)]
    monkeypatch.setattr(index, "SimpleIndex", lambda: SimpleNamespace(files=lambda _: files))
    monkeypatch.setattr(run_of_harvest, "open_artefact", lambda *_: Wheel())
    found = sources.unpack("x==1.0", ["x/*.py"], "3.11")
    assert found == {
        "x/a.py": b"x-1.0.data/purelib/x/a.py",
        "x-1.0.dist-info/METADATA": b"x-1.0.dist-info/METADATA",
    }
    with pytest.raises(CannotTryError, match=r"has no file y/\*\.py"):
        sources.unpack("x==1.0", ["y/*.py"], "3.11")


def test_a_program_without_an_incident_is_an_error(place):
    with pytest.raises(KnowngoodError, match="there is no incident 'gone'"):
        reproduce(
            reproductions.load("gone", place),
            {},
            Fake(),
            sources.unpack,
            sides=["failing"],
            say=lambda _: None,
        )
