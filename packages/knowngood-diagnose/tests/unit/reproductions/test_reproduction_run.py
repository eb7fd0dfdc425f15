"""`knowngood reproduce` in a fake place, and the reproductions and evidence in the repository."""

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

from knowngood.core import local_files
from knowngood.core.errors import InputError, KnowngoodError, MissingError, UnknownError
from knowngood_diagnose.cli import reproduce as command
from knowngood_diagnose.reproductions import local_places, reproduction, reproduction_run
from knowngood_diagnose.reproductions.local_places import VirtualEnvironments
from knowngood_diagnose.reproductions.reproduce_image import render_scratch_matrix
from knowngood_diagnose.reproductions.reproduction import (
    CannotTryError,
    Observation,
    observation_from_report,
    program_variables,
)
from knowngood_diagnose.reproductions.reproduction_run import reproduce_failure, reproduction_exit_code
from knowngood_facts.compat import incident_file

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


class FakePlace:
    """A place that answers at once, with an observation or an error for each side."""

    where = "venv"

    def __init__(self, **answers):
        self.answers, self.jobs = answers, []

    def node(self):
        return {"name": "x"}

    def gpus(self):
        return 0

    def observe(self, job, notify):
        notify("running")
        self.jobs.append(job)
        answer = self.answers[job.name]
        if isinstance(answer, Exception):
            raise answer
        return answer


def observation(**more):
    fields = {"exit": 0, "seconds": 1.0, "python": "3.11.7", "packages": {"torch": "2.11.0"}, "exception": None}
    return Observation(**{**fields, "output": "", **more})


def run(place, where, sides=("failing", "fixed", "on two")):
    incidents = {"gone": incident_file.parse_incident(INCIDENT, "incidents/gone.yaml")}

    def unpack(pin, globs, python):
        assert (pin, globs, python) == ("thing==1.0", ("thing/*.py",), "3.9")
        return {"thing/__init__.py": b"x = 1"}

    return reproduce_failure(
        reproduction.load_reproduction("gone", place),
        incidents,
        where,
        unpack,
        sides=sides,
        notify=lambda _: None,
    )


def broken():
    return observation(
        exit=1, exception=FAILS, output="Traceback\nAttributeError: 'Thing' object has no attribute 'method_of_old'\n"
    )


def test_a_failure_and_its_cure_are_stored_as_evidence(place, tmp_path):
    where = FakePlace(failing=broken(), fixed=observation(result={"losses": [4.0, 3.5]}))
    document = run(place, where)
    assert document["outcome"] == "reproduced"
    assert reproduction_exit_code(document) == 0
    failing, fixed, two = document["sides"]
    assert failing["exception"] == FAILS
    assert failing["signature"] == "AttributeError: 'Thing' object has no attribute 'method_of_old'"
    assert failing["diagnosed"] == ["gone"]
    assert (fixed["outcome"], fixed["said"]) == ("reproduced", {"losses": [4.0, 3.5]})
    assert (two["outcome"], two["reason"]) == ("not-run", "it needs 2 GPUs, and there are 0 here")
    # A side has its own stand-ins and sources beside the program, and not another's.
    assert set(where.jobs[0].files) == {"program.py", "observe.py", "kernels.py"}
    assert set(where.jobs[1].files) == {*where.jobs[0].files, "more.py", "sources/thing/__init__.py"}

    path = reproduction_run.store_reproduction(document, tmp_path)
    assert reproduction_run.store_reproduction(document, tmp_path) == path
    assert path.parent == tmp_path / "incidents/gone"
    summary = reproduction_run.summarize_reproduction("gone", tmp_path)
    assert summary.outcome == "reproduced"
    table = "\n".join(summary.markdown_lines())
    assert "`AttributeError: 'Thing' object has no attribute 'method_of_old'`" in table
    assert "trains, loss 4 to 3.5" in table
    assert "not run: it needs 2 GPUs" in table
    assert "| failing | 3.11.7 | torch==2.11.0, transformers==4.44.2 |" in table  # the pin of its Python
    assert "fixed (said cure: *an older one*: yes)" in table
    assert "`kernels` for the kernels" in table


def test_a_cure_that_does_not_cure_is_reported(place):
    document = run(place, FakePlace(failing=broken(), fixed=broken()))
    assert document["outcome"] == "not-reproduced"
    assert reproduction_exit_code(document) == 1
    assert document["sides"][1]["reason"].startswith("it ended with AttributeError")


@pytest.mark.parametrize("error", [CannotTryError("no Python 3.9"), MissingError("the index does not answer")])
def test_a_side_that_cannot_be_tried_is_not_run(place, error):
    document = run(place, FakePlace(failing=error, fixed=observation(result={"losses": [4.0, 3.5]})))
    assert document["outcome"] == "not-run"
    assert reproduction_exit_code(document) == 3
    assert document["sides"][0]["reason"] == str(error)


def test_without_an_engine_the_command_ends(place):
    where = FakePlace(failing=MissingError("no engine"), fixed=observation())
    where.where = "image"
    with pytest.raises(MissingError, match="no engine"):
        run(place, where)


@pytest.mark.parametrize(("side", "code"), [("failing", 0), ("fixed", 1)])
def test_a_single_side_is_judged_by_its_own_expectation(place, side, code):
    document = run(place, FakePlace(failing=broken(), fixed=observation(result={"losses": [3.0, 4.0]})), sides=[side])
    assert reproduction_exit_code(document) == code


def test_unknown_reproductions_and_missing_stand_ins_are_errors(place):
    with pytest.raises(UnknownError, match="there is no reproduction of 'other'"):
        reproduction.load_reproduction("other", place)
    (place / "stand-ins/more.py").unlink()
    with pytest.raises(InputError, match=r"there is no more.py in reproductions/stand-ins/"):
        reproduction.load_reproduction("gone", place)


def test_a_changed_program_changes_the_digest(place):
    before = reproduction.load_reproduction("gone", place).digest
    (place / "gone/program.py").write_text("print(2)")
    assert reproduction.load_reproduction("gone", place).digest != before


def test_evidence_that_is_damaged_or_of_another_schema_is_left_out(tmp_path):
    folder = tmp_path / "incidents/gone"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    (folder / "b.json").write_text(json.dumps({"schema": "knowngood/reproduction/9", "reproduction": "gone"}))
    assert reproduction_run.list_reproduction_runs("gone", tmp_path) == []
    assert reproduction_run.summarize_reproduction("gone", tmp_path).outcome == "not-run"


def test_folders_of_the_machine_are_replaced_in_the_observation():
    run_observation = observation_from_report(
        1,
        '{"losses": [1]}\n/home/me/venv/lib/x.py\n{broken\n',
        {"exception": {"type": "OSError", "text": "no /home/me/run/file", "where": []}, "python": "3.11.7"},
        places={"/home/me/venv": "venv", "/home/me": "~", "/home/me/run": "."},
    )
    assert run_observation.output.splitlines()[1] == "venv/lib/x.py"
    assert run_observation.exception["text"] == "no ./file"
    assert run_observation.result == {"losses": [1]}


def test_the_scratch_matrix_has_one_cell_with_the_pins_of_the_side(place):
    where = FakePlace(failing=broken())
    run(place, where, sides=["failing"])
    (job,) = where.jobs
    bases = {"debian11": {"python": "3.9"}, "debian12": {"python": "3.11"}}
    made = render_scratch_matrix({"bases": bases, "cells": [], "amendments": [], "aliases": {"default": "x"}}, job)
    assert "torch: 2.5.1" in made  # the pin of the base's Python
    assert "base: debian11" in made
    assert "- deepspeed" in made
    with pytest.raises(CannotTryError, match=r"no base of matrix\.yaml has Python 3.9 or 3.11"):
        render_scratch_matrix({"bases": {"debian13": {"python": "3.13"}}, "cells": []}, job)
    assert program_variables(job, "/run")["PYTHONPATH"] == "/run:/run/sources"


WITHOUT = DEFINITION.replace(
    "failing: {requirements: transformers==4.44.2}",
    "failing: {requirements: transformers==4.44.2, base-without: [gcc, g++], base-with: libstdc++6}",
)


def test_a_side_may_ask_for_a_base_without_packages(place, tmp_path):
    (place / "gone/reproduction.yaml").write_text(WITHOUT)
    where = FakePlace(failing=broken(), fixed=observation(result={"losses": [4.0, 3.5]}))
    document = run(place, where)
    base = {"python": "3.9", "bootstrap": {"suite": "bullseye", "packages": ["python3", "gcc", "g++"]}}
    data = {"bases": {"debian11": base, "debian12": {"python": "3.11"}}, "cells": []}
    job, other = where.jobs
    assert yaml.safe_load(render_scratch_matrix(data, job))["bases"] == {
        "debian11": {"python": "3.9", "bootstrap": {"suite": "bullseye", "packages": ["python3", "libstdc++6"]}}
    }
    assert set(yaml.safe_load(render_scratch_matrix(data, other))["bases"]) == {"debian11", "debian12"}
    reproduction_run.store_reproduction(document, tmp_path)
    assert "; a base without gcc, g++, with libstdc++6 |" in "\n".join(
        reproduction_run.summarize_reproduction("gone", tmp_path).markdown_lines()
    )
    base["bootstrap"]["packages"].remove("gcc")
    with pytest.raises(KnowngoodError, match="the base does not ask for gcc, but for python3, g"):
        render_scratch_matrix(data, job)
    with pytest.raises(CannotTryError, match=r"a system without gcc, g\+\+; --in image"):
        VirtualEnvironments(locked_at="2026-11-20").observe(job, print)


def test_the_observer_reports_what_a_program_did(tmp_path):
    observer = local_files.data_folder() / "packages/knowngood-diagnose/reproductions" / reproduction.OBSERVER
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


@pytest.mark.parametrize("name", reproduction.list_reproductions())
def test_every_reproduction_is_valid_and_names_known_incidents(name):
    known = {path.stem for path in (local_files.data_folder() / "packages/knowngood-diagnose/incidents").glob("*.yaml")}
    case = reproduction.load_reproduction(name)
    assert {name, *(side.incident for side in case.definition.sides.values() if side.incident)} <= known
    compile(case.files["program.py"], "program.py", "exec")


@pytest.mark.parametrize("name", reproduction.list_reproductions())
def test_committed_evidence_belongs_to_the_committed_program(name):
    runs = reproduction_run.summarize_reproduction(name, local_files.data_folder() / "evidence").runs
    assert runs, f"run `knowngood reproduce {name}` and commit its evidence"
    digest = reproduction.load_reproduction(name).digest
    assert [run["file"] for run in runs if run["digest"] != digest] == []
    assert {run["outcome"] for run in runs} == {"reproduced"}


def test_the_list_names_the_last_evidence():
    answer = command.run(argparse.Namespace(incident=None))
    assert answer.code == 0
    assert {item["incident"] for item in answer.document} == set(reproduction.list_reproductions())
    assert "evidence/incidents/" in answer.text


def test_unpacked_files_are_where_an_installer_would_put_them(monkeypatch):
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
    monkeypatch.setattr(local_places, "SimpleIndex", lambda: SimpleNamespace(files=lambda _: files))
    monkeypatch.setattr(local_places, "open_artefact", lambda *_: Wheel())
    files_of_release = local_places.unpack_release("x==1.0", ["x/*.py"], "3.11")
    assert files_of_release == {
        "x/a.py": b"x-1.0.data/purelib/x/a.py",
        "x-1.0.dist-info/METADATA": b"x-1.0.dist-info/METADATA",
    }
    with pytest.raises(CannotTryError, match=r"has no file y/\*\.py"):
        local_places.unpack_release("x==1.0", ["y/*.py"], "3.11")


def test_a_reproduction_without_its_incident_is_an_error(place):
    with pytest.raises(KnowngoodError, match="there is no incident 'gone'"):
        reproduce_failure(
            reproduction.load_reproduction("gone", place),
            {},
            FakePlace(),
            local_places.unpack_release,
            sides=["failing"],
            notify=lambda _: None,
        )
