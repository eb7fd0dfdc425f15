"""Errors about names, diagnosed by the atlas: what is computed, and what is not claimed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from knowngood.cli.main import main

CASES = yaml.safe_load((Path(__file__).parents[1] / "logs" / "names.yaml").read_text(encoding="utf-8"))
ONE = """\
title: nothing
kind: config
component: nothing
signatures: [a failure that no log has]
because: It is here because a folder of incidents must have one.
fix: [{note: none}]
source: none
confidence: reported
range_from: thread
"""


@pytest.fixture
def diagnose(tmp_path, capsys):
    """Diagnose a log by the atlas alone."""
    folder = tmp_path / "incidents"
    folder.mkdir()
    (folder / "nothing.yaml").write_text(ONE)

    def answer(text):
        log = tmp_path / "train.log"
        log.write_text(text)
        main(["diagnose", str(log), "--json", "--incidents", str(folder)])
        return json.loads(capsys.readouterr().out)

    return answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_atlas_gives_the_cause(case, diagnose):
    document = diagnose(case["log"])
    if case["kind"] == "none":
        assert not document["matches"]
        return
    first = document["matches"][0]
    assert first["kind"] == case["kind"], first
    assert len(document["matches"]) == 1
    if "component" in case:
        assert first["component"] == case["component"]
    if "changes" in case:
        assert [fix["change"] for fix in first["fix"] if "change" in fix] == case["changes"]
    if case.get("all_go_with_the_log"):
        assert not [fix["broken_by"] for fix in first["fix"] if fix.get("broken_by")]
    if "note" in case:
        assert case["note"] in json.dumps(first)
