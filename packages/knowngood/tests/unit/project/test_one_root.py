"""What answers is of one place: in a checkout of this program its own facts and rules, wherever the program is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from samples import MATRIX, ROOT

KNOWLEDGE = "facts, rules and incidents"


def call(folder, *words):
    argv = [sys.executable, "-m", "knowngood", *words]
    return subprocess.run(argv, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def checkout(tmp_path):
    """Another checkout of this program, with its own facts and rules; without the runs, which it does not need."""
    for part in ("packages/knowngood-facts/facts", "packages/knowngood-facts/rules", "docker", "templates"):
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "packages/knowngood/src/knowngood").mkdir(parents=True)
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    return tmp_path


@pytest.mark.whole
def test_in_another_checkout_its_rules_count_and_are_named(checkout):
    below = checkout / "packages"
    lines = call(below, "--version").stdout.splitlines()
    assert lines[2:] == [f"project: {checkout}", f"{KNOWLEDGE}: {checkout}"]
    for words in (["check", "torch==2.11.0"], ["cells", "default"], ["export", "default", "--format", "requirements"]):
        document = json.loads(call(below, *words, "--json").stdout)
        assert document["sources"] == {"project": str(checkout), KNOWLEDGE: str(checkout)}
    rules = checkout / "packages/knowngood-facts/rules/gpu.yaml"
    rules.write_text(rules.read_text().replace("  - id:", "  - unheard: of\n    id:", 1))
    for words in (["check", "torch==2.11.0"], ["render", "--check"]):
        result = call(below, *words)
        assert result.returncode == 2, result.stdout
        assert "rules/gpu.yaml" in result.stderr
        assert "unknown key 'unheard'" in result.stderr


def test_a_project_of_another_kind_says_where_the_facts_are(tmp_path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    lines = call(tmp_path, "--version").stdout.splitlines()
    assert lines[2:] == [f"project: {tmp_path}", f"{KNOWLEDGE}: {ROOT}"]
    result = call(tmp_path, "cells")
    assert f"{KNOWLEDGE} are those in {ROOT}" in result.stdout
    document = json.loads(call(tmp_path, "cells", "--json").stdout)
    assert document["sources"] == {"project": str(tmp_path), KNOWLEDGE: str(ROOT)}
