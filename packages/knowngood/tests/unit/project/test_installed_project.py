"""Installed from a wheel, commands that write say that they need a checkout, and change nothing."""

from __future__ import annotations

import pytest

from knowngood.cli import main
from knowngood.core import local_files
from knowngood.project.checkout import Project


@pytest.mark.parametrize(
    "words",
    [
        ["render"],
        ["render", "--check"],
        ["lock", "default"],
        pytest.param(["add", "--gpu", "H100"], marks=pytest.mark.whole),
        pytest.param(["harvest", "torch"], marks=pytest.mark.whole),
        ["keys", "seal"],
    ],
    ids=" ".join,
)
def test_a_command_that_writes_needs_a_checkout(words, home, tmp_path_factory, monkeypatch, capsys):
    home = Project(home.root.rename(home.root.with_name("_data")))
    monkeypatch.setattr(local_files, "data_folder", lambda: home.root)
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    before = {path: path.stat().st_mtime_ns for path in home.root.rglob("*")}
    assert main.main(words) == 2
    error = capsys.readouterr().err
    assert "this command writes " in error
    assert "run it in a checkout" in error
    assert {path: path.stat().st_mtime_ns for path in home.root.rglob("*")} == before
