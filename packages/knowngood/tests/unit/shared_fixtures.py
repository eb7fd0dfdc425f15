"""Fixtures for all unit tests: a cache folder per test, a small project, its locks."""

from __future__ import annotations

import os
import shutil

import hypothesis
import pytest
import stamina

import samples
from knowngood.core.cell import parse_cell
from knowngood.evidence.cell_answer import CellJudgement
from knowngood.lock import cell_locking
from knowngood.lock.cell_lock import split_into_layers
from knowngood.lock.lock_tree import CellLock
from knowngood.project import core_facts
from knowngood.project.cell_answers import JUDGEMENTS_FILE, CellJudgements, digest_matrix
from knowngood.project.checkout import Project

hypothesis.settings.register_profile("any-machine", deadline=None)  # a busy machine must not fail a test
hypothesis.settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Give each test its own cache folder, not the one of this user."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def without_waits(monkeypatch):
    """Let what is tried again be tried as often as ever, and at once; no file of a test has to be on the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project with matrix.yaml, templates, few facts and no locks; it is the working folder.

    Nothing speaks against its cells, by a file that stands where rules and facts write theirs.
    """
    root = tmp_path / "project"
    (root / "docker" / "recipe").mkdir(parents=True)
    (root / "docker" / "recipe" / "normalize").write_text("#!/bin/sh\n")
    (root / "smoke_tests/smoke_tests").mkdir(parents=True)
    (root / "smoke_tests/smoke_tests/test_it.py").write_text("def test(): pass\n")
    shutil.copy(samples.ROOT / "smoke_tests/smoke_tests/environment.py", root / "smoke_tests/smoke_tests")
    (root / "matrix.yaml").write_text(samples.MATRIX)
    shutil.copytree(samples.ROOT / "templates", root / "templates")
    monkeypatch.chdir(root)
    cells = {identity: CellJudgement() for identity in (samples.FA0, samples.FA2, samples.FA4)}
    nothing = CellJudgements(cells=cells, matrix=digest_matrix(root))
    (root / JUDGEMENTS_FILE).write_text(nothing.render())
    monkeypatch.setattr(core_facts, "load_matrix_facts", lambda: samples.KNOWLEDGE)
    monkeypatch.setattr(core_facts, "load_torch_cxx11abi", lambda _torch: True)
    return Project(root)


@pytest.fixture
def lock_of(home):
    """A function that saves an up-to-date lock for a cell of the project, and returns it."""

    def save(identity: str) -> CellLock:
        cell, matrix = parse_cell(identity), home.matrix
        made = CellLock(
            cell=cell,
            base="debian12",
            inputs=cell_locking.lock_inputs_digest(matrix.entry(cell), matrix),
            layers=split_into_layers(samples.distributions(identity), matrix.layers),
        )
        home.tree.save(made)
        return made

    return save
