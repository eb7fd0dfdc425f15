"""Runs that are killed, meet each other, or cannot write: the next one goes on, and nothing is done twice."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import pytest
import small

from conftest import renew
from knowngood.core import local_files
from knowngood.images import build_survey

pytestmark = pytest.mark.integration


@pytest.fixture
def here(project, engine):
    found = small.project(project.root, *small.TRANSFORMERS)
    renew(next(path for path in (found.tree.folder / "layers").glob("tools-*/requirements.txt")))
    yield found
    with contextlib.closing(engine.client()) as client:
        for cell in found.matrix.cells:
            with contextlib.suppress(Exception):
                client.images.remove(f"knowngood:{cell}", force=True)


def finished(process):
    out, said = process.communicate(timeout=300)
    return process.returncode, json.loads(out), said


def test_a_killed_build_is_gone_on_with_and_what_was_finished_is_not_repeated(here, engine):
    first, second = here.matrix.cells
    code, document, _ = finished(small.command(here, "build", str(first), "--json"))
    assert (code, document["cells"][0]["image"]["built"]) == (0, True)
    with small.command(here, "build", "*", "--json") as process:
        for said in process.stderr:
            if f"{second}: run " in said or f"{second}: copy" in said:
                break
        os.killpg(process.pid, signal.SIGKILL)
    code, document, said = finished(small.command(here, "build", "*", "--json"))
    assert code == 0, said
    built = {item["id"]: item["image"]["built"] for item in document["cells"]}
    assert built == {str(first): False, str(second): True}
    assert not stays(scratch())
    made = build_survey.survey_plan(here, here.matrix.cells, here.root, engine)
    assert {str(cell.action) for cell in made.cells} == {"reuse"}
    assert all(layer.size for layer in made.layers)


def test_a_killed_client_takes_its_build_with_it_and_leaves_no_secret(here, monkeypatch):
    secret = f"token-{secrets.token_hex(16)}"  # nothing else in a folder that all tests share has it
    monkeypatch.setenv("UV_INDEX_PRIVATE_PASSWORD", secret)
    renew(next(path for path in (here.tree.folder / "layers").glob("python-*/requirements.txt")))
    with small.command(here, "build", str(here.matrix.cells[0]), "--json") as process:
        for said in process.stderr:
            if ": run layer-python" in said:
                break
        assert clients(here)
        os.kill(process.pid, signal.SIGKILL)  # this process alone: nobody tells its children
    deadline = time.monotonic() + 20
    while clients(here) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not clients(here)
    for path in scratch():
        with contextlib.suppress(OSError):  # a folder, or another test's that is gone
            assert secret.encode() not in path.read_bytes()
    code, document, said = finished(small.command(here, "build", str(here.matrix.cells[0]), "--json"))
    assert (code, document["cells"][0]["image"]["built"]) == (0, True), said  # nobody went on with it


def scratch():
    """The files and folders that are in use, or were left."""
    return set((local_files.cache_folder() / "scratch").rglob("*"))


def stays(paths):
    """Whether some of them are there after two minutes: those of other tests are gone by then."""
    deadline = time.monotonic() + 120
    while (paths := paths & scratch()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return paths


def clients(here):
    """The command lines of the programs that build this project."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().decode(errors="replace")
            lines += [line] if str(here.root) in line and "buildx" in line else []
    return lines


def test_two_runs_at_once_build_a_cell_once_and_say_who_is_at_it(here):
    first = str(here.matrix.cells[0])
    runs = [small.command(here, "build", first, "--json") for _ in range(2)]
    came_out = [finished(run) for run in runs]
    assert [code for code, _, _ in came_out] == [0, 0], came_out
    assert sorted(document["cells"][0]["image"]["built"] for _, document, _ in came_out) == [False, True]
    assert any(f"(process {run.pid} on " in said for run, (_, _, said) in zip(runs, reversed(came_out), strict=True))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_in_a_checkout_that_cannot_be_written_a_current_lock_is_built_and_a_stale_one_is_said(here):
    first, second = map(str, here.matrix.cells)
    assert finished(small.command(here, "build", first, "--json"))[0] == 0
    subprocess.run(["mount", "--bind", here.root, here.root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", here.root], check=True)
        code, document, said = finished(small.command(here, "build", "*", "--json"))
    finally:
        subprocess.run(["umount", here.root], check=True)
    assert code == 1
    results = {item["id"]: item for item in document["cells"]}
    assert results[first]["image"]["built"] is False, said
    assert "Read-only file system" in results[second]["error"]
