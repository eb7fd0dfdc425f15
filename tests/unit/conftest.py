from __future__ import annotations

import shutil

import pytest
import samples

from knowngood import project
from knowngood.cell import parse
from knowngood.locks import locking
from knowngood.locks.lock import split
from knowngood.locks.tree import CellLock
from knowngood.project import Project


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes this user's cache."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A project with matrix.yaml and templates, nothing locked; it is the working folder, and the facts are small."""
    root = tmp_path / "project"
    (root / "docker" / "recipe").mkdir(parents=True)
    (root / "docker" / "recipe" / "normalize").write_text("#!/bin/sh\n")
    (root / "smoke_tests").mkdir()
    (root / "smoke_tests" / "test_it.py").write_text("def test(): pass\n")
    (root / "matrix.yaml").write_text(samples.MATRIX)
    shutil.copytree(samples.ROOT / "templates", root / "templates")
    monkeypatch.chdir(root)
    monkeypatch.setattr(project, "knowledge", lambda: samples.KNOWLEDGE)
    monkeypatch.setattr(project, "cxx11abi", lambda _torch: True)
    return Project(root)


@pytest.fixture
def lock_of(home):
    """Saves a lock that is current for a cell of the project, and returns it."""

    def save(identity: str) -> CellLock:
        cell, matrix = parse(identity), home.matrix
        made = CellLock(
            cell=cell,
            base="debian12",
            inputs=locking.inputs(matrix.entry(cell), matrix),
            layers=split(samples.distributions(identity), matrix.layers),
        )
        home.tree.save(made)
        return made

    return save
