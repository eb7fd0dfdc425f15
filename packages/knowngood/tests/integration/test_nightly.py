"""Nights of a project with one small cell: rebuilt, proven, killed and gone on with; a pin that turns it red."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
import small

from knowngood.core.local_files import write_atomically
from knowngood.images import dockerfile
from knowngood.lock import cell_locking, resolver
from knowngood.lock.cell_lock import Distribution, split_into_layers
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project

pytestmark = pytest.mark.integration

PINS = ("iniconfig==2.0.0", "pluggy==1.5.0", "pytest==8.3.4")
SUITE = {
    "conftest.py": """
import importlib.metadata, json, pathlib, platform
from pathlib import Path

SEEN = []

def pytest_addoption(parser):
    parser.addoption("--report")
    parser.addoption("--predictions")
    parser.addoption("--quick", action="store_true")

def pytest_runtest_logreport(report):
    if report.when == "call":
        SEEN.append((report.nodeid.rpartition("::")[2], report.outcome))

def pytest_sessionfinish(session):
    failed = [name for name, outcome in SEEN if outcome == "failed"]
    verdict = {"domain": "image" if failed else "none", "ok": not failed, "text": ", ".join(failed) or "all pass"}
    checks = [
        {"id": name, "setting": "eager", "outcome": {"passed": "pass", "failed": "fail"}[outcome]}
        for name, outcome in SEEN
    ]
    installed = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
    document = {
        "suite_hash": "5" * 64,
        "verdict": verdict,
        "checks": checks,
        "environment": {"python": platform.python_version(), "distributions": installed},
    }
    if session.config.getoption("--report"):
        Path(session.config.getoption("--report")).write_text(json.dumps(document))
""",
    "environment.py": """
def suite_hash(folder):
    return "5" * 64
""",
    "test_it.py": """
def test_licences():
    import packaging.licenses  # since packaging 24.2
""",
}


def locked(here: Project, *pins: str) -> None:
    """Lock the cell to the newest small packages of a day, but for these."""
    (cell,) = here.matrix.cells
    pinned = resolver.resolve_distributions(
        resolver.ResolverRequest(
            requirements=(*PINS, *pins), excludes=(), python="3.11", glibc="2.36", locked_at="2025-02-01"
        )
    )
    wheels = [
        Distribution(name=item.name, version=item.version, file=item.file, sha256=item.sha256, size=1)
        for item in pinned
    ]
    made = CellLock(
        cell=cell,
        base="debian12",
        inputs=cell_locking.lock_inputs_digest(here.matrix.entry(cell), here.matrix),
        layers=split_into_layers(wheels, {"tools": ["iniconfig", "pluggy"], "python": ["*"]}),
    )
    here.tree.save(made)
    write_atomically(here.tree.cell_folder(cell) / "Dockerfile", dockerfile.render_dockerfile(made, here.templates))


@pytest.fixture
def here(project, engine):
    found = small.project(project.root, "4.51.3")  # of no other test: their images stay theirs
    for path in found.suite.iterdir():
        if path.is_file():
            path.unlink()
    for name, text in SUITE.items():
        (found.suite / name).write_text(text)
    locked(found, "packaging==24.2")
    for path in (found.root / "packages/knowngood-facts/facts/metadata").glob("*.txt"):
        if path.stem not in ("safetensors", "triton"):  # the index is asked about each package that is there
            path.unlink()
    yield found
    with contextlib.closing(engine.client()) as client, contextlib.suppress(Exception):
        client.images.remove(f"knowngood:{found.matrix.cells[0]}", force=True)


def done(here, *words, env=None):
    run = subprocess.run(
        [sys.executable, "-m", "knowngood", *words],
        cwd=here.root,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout, run.stderr


def night(here, *words, env=None):
    code, out, said = done(here, "nightly", "--json", *words, env=env)
    report = json.loads(out)
    return code, {item["check"]: item for item in report["results"]}, said


def test_a_killed_night_is_gone_on_with_and_a_bad_pin_is_found(here):
    cell = str(here.matrix.cells[0])
    code, _, said = done(here, "build", cell, "--record")
    assert code == 0, said
    with small.command(here, "nightly", "--only", "rebuild", "--only", "suite") as process:
        for line in process.stderr:
            if f"suite:{cell}: " in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert not list((here.root / "evidence/nights").glob("2*.json"))
    code, results, said = night(here, "--only", "rebuild", "--only", "suite")
    assert code == 0, said
    assert "rebuild:" not in said
    assert (results["rebuild"]["outcome"], results["suite"]["outcome"]) == ("same", "good")
    assert results["rebuild"]["seconds"] > 0
    (report,) = (here.root / "evidence/nights").glob("2*.md")
    assert report.read_text().startswith("# Nightly report of ")
    assert len(report.read_text().splitlines()) <= 30

    # What is proven is not run again, in a folder of reports that knows nothing of it.
    code, results, said = night(here, "--only", "suite", "--folder", "other")
    assert (code, results["suite"]["state"]) == (0, "proven"), said

    # One of the pins goes back by three releases: the image is red, twice, and the change is named.
    locked(here, "packaging==24.1")
    both = ("--only", "rebuild", "--only", "suite")
    code, results, said = night(here, *both, "--folder", "other")
    assert code == 1
    assert results["suite"]["outcome"] == "image"
    assert "once more" in said
    found = {item["kind"]: item["text"] for item in results["suite"]["findings"]}
    assert "twice" in found["image"]
    assert "packaging 24.2 -> 24.1" in found["changed-packages"]
    # What it was recorded from is another lock.
    assert results["rebuild"]["outcome"] == "stale", results["rebuild"]["findings"][0]["text"]


def test_an_index_that_does_not_answer_leaves_yesterdays_facts_and_says_so(here):
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple/"}
    code, results, _ = night(here, "--only", "files", "--only", "upstream", env=nowhere)
    assert code == 3
    assert "the committed facts are used" in results["upstream"]["findings"][0]["text"]
    assert "does not answer" in results["files"]["findings"][0]["text"]
    # It is asked again when it answers, on the same day.
    code, results, said = night(here, "--only", "files")
    assert (code, results["files"]["outcome"]) == (0, "all there"), said


def test_a_release_that_the_facts_do_not_know_is_told_with_what_it_meets(here):
    path = here.root / "packages/knowngood-facts/facts/transformers.json"
    facts = json.loads(path.read_text())
    newest = list(facts["releases"])[-1]
    del facts["releases"][newest]
    path.write_text(json.dumps(facts))
    code, results, said = night(here, "--only", "upstream")
    assert code == 0, said
    (finding,) = [item for item in results["upstream"]["findings"] if newest in item["subject"]]
    assert finding["subject"] == f"transformers {newest}"
    assert "of 1 cells" in finding["text"]
    assert f"-tf{newest}-" in finding["text"]
    assert newest not in path.read_text()
