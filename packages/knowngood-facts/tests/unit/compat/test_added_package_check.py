"""What is known of packages that are added to a cell is said, and what breaks is refused."""

from __future__ import annotations

import json

import pytest

from knowngood.cli import main
from knowngood.launch import added_packages
from knowngood.launch.added_packages import AddedPackage
from knowngood.project.checkout import find_project
from knowngood_facts.compat import added_package_check, knowledge

CELL = "default"


@pytest.fixture(scope="module")
def known():
    return knowledge.load_knowledge()


def examine(known, name, version):
    project = find_project()
    [cell] = project.matrix.select_cells([CELL])
    added = [AddedPackage(name=name, version=version, sha256="a" * 64)]
    return added_package_check.examine_added_packages(known, project.tree.load(cell), added)


def test_a_use_that_the_cells_release_breaks_is_found_and_what_concerns_the_cell_alone_is_not(known):
    findings, unread = examine(known, "trl", "0.12.0")
    assert [item.id for item in findings] == ["uses:trl:transformers"]
    assert "trl.trainer.dpo_trainer" in findings[0].because
    assert unread == []
    assert examine(known, "trl", "1.16.0") == ([], [])


def test_a_contradiction_is_an_error_and_comes_first(known):
    findings, _ = examine(known, "trl", "0.9.6")
    assert [item.severity for item in findings][:1] == ["error"]
    assert "numpy" in findings[0].because


def test_a_release_that_nobody_has_read_is_said(known):
    findings, unread = examine(known, "trl", "0.7.0")
    assert findings == []
    [text] = unread
    assert "trl 0.7.0" in text
    assert "0.7.8 to " in text


def test_run_refuses_what_breaks_unless_it_is_told_not_to_ask(monkeypatch, capsys):
    broken = (AddedPackage(name="trl", version="0.9.6", sha256="a" * 64),)
    monkeypatch.setattr(added_packages, "resolve_added_packages", lambda *_: broken)
    words = ["run", "--print", "--json", "--gpu", "H100", "--with", "trl==0.9.6"]
    assert main.main([*words, "--", "true"]) == 1
    output = capsys.readouterr()
    assert "needs numpy" in json.loads(output.out)["error"]
    assert "--unchecked" in output.err
    assert main.main([*words, "--unchecked", "--", "true"]) == 0
    assert "error: trl 0.9.6 needs numpy" in capsys.readouterr().err
