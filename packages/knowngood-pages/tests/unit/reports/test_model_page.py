"""docs/models.md from the runs of the model suite."""

from __future__ import annotations

import json

from knowngood.evidence.model_runs import load_model_runs
from knowngood.evidence.sealed_files import write_sealed_json
from knowngood_facts.compat.rule_files import load_run_incidents
from knowngood_pages.model_page import render_model_page
from samples import ROOT

DROPPED = "silently-wrong: the soft-cap of the scores is dropped; the loss is off by 1.9e-03"


def check(setting, layout, outcome="pass", reason=None, **more):
    entry = {"topic": "model", "setting": setting, "dtype": "bf16", "layout": layout, "detail": None, "figures": None}
    entry["id"] = f"gemma2/{setting}/bf16/{layout}"
    return {**entry, "outcome": outcome, "silent": str(reason).startswith("silently"), "reason": reason, **more}


def store(folder, release, checks, **changed):
    document = {
        "schema": "knowngood/model-evidence/1",
        "config": {"model_type": "gemma2"},
        "when": "2026-11-24T01:00:00+00:00",
        "report": {
            "environment": {"transformers": release, "torch": "2.11.0", "gpu": None},
            "checks": checks,
            "suite_hash": "a" * 64,
            "selection": "quick",
        },
        **changed,
    }
    return write_sealed_json(folder / "models/gemma2", f"x-{release}", json.dumps(document))


def test_the_page_shows_each_state_its_reason_and_how_many_predictions_held(tmp_path):
    store(
        tmp_path,
        "5.17.0",
        [
            check("eager", "left-padded", agreement="agree"),
            check("eager", "packed", agreement="disagree"),
            check("sdpa", "left-padded", "fail", DROPPED),
            check("sdpa", "packed", "fail", DROPPED),
        ],
    )
    store(tmp_path, "5.23.0", [check("sdpa", "packed", "refused", "transformers has no SDPA for this model")])
    runs, left_out = load_model_runs(tmp_path)
    page = render_model_page(runs, load_run_incidents())
    assert not left_out
    assert "| gemma2 | eager | `✓✓` | `--` |" in page
    assert "| gemma2 | sdpa | `✗✗` | `-⊘` |" in page
    assert (
        "- **the soft-cap of the scores is dropped "
        "([incident](../packages/knowngood-diagnose/incidents/sdpa-drops-softcap.yaml))**" in page
    )
    assert "  - gemma2 with transformers 5.17.0: sdpa (padded, packed)" in page
    assert "  - gemma2 with transformers 5.23.0: sdpa (packed)" in page
    assert "`aaaaaaaaaaaa` | 1 of 2 |" in page


def test_a_changed_file_and_one_of_another_form_are_left_out(tmp_path):
    path = store(tmp_path, "5.17.0", [])
    path.write_text(path.read_text().replace("quick", "whole"))
    store(tmp_path, "5.18.0", [], schema="knowngood/model-evidence/9")
    runs, left_out = load_model_runs(tmp_path)
    assert not runs
    assert "forged or damaged" in left_out[0]
    assert "its schema is 'knowngood/model-evidence/9'" in left_out[1]


def test_all_committed_runs_can_be_read():
    runs, left_out = load_model_runs(ROOT / "evidence")
    assert not left_out
    assert len({run.model_type for run in runs}) >= 12
