"""The nightly check of new releases: what it could not look at is not good."""

from __future__ import annotations

import pytest

from atlas_samples import write_atlas
from knowngood.core.cell import parse_cell
from knowngood.reports.nightly_report import findings_exit_code
from knowngood_facts.compat import knowledge
from knowngood_facts.facts.broken_use_renewal import renew_broken_uses
from knowngood_facts.facts.broken_use_table import list_table_packages
from knowngood_facts.facts.harvest_run import HarvestReport
from knowngood_facts.reports import upstream_check
from knowngood_facts.reports.upstream_check import UpstreamCheck
from samples import FA4

APP = "knowngood/metadata/1 app\nregenerate: knowngood harvest --metadata app\n= 1.0 2026-01-01 wheel\n"


@pytest.fixture
def check(home, monkeypatch):
    (home.root / "packages/knowngood-facts/facts").mkdir(parents=True)
    monkeypatch.setattr(upstream_check, "harvest_facts", lambda *_, **_more: HarvestReport())
    monkeypatch.setattr(upstream_check, "harvest_metadata", lambda *_, **_more: HarvestReport())
    return UpstreamCheck(here=home, cells=[parse_cell(FA4)])


def test_a_package_that_no_reader_covers_is_unknown(check, monkeypatch):
    assert check(print).findings == ()
    monkeypatch.setattr(upstream_check, "find_readers", lambda: {"torch": None, "transformers": None, "triton": None})
    result = check(print)
    assert [(item.kind, item.subject) for item in result.findings] == [
        ("uncovered", "flash-attn"),
        ("uncovered", "flash-attn-4"),
    ]
    assert (result.outcome, findings_exit_code(result.findings)) == ("0 new releases, not all known", 3)


@pytest.mark.parametrize(("unanswered", "code"), [(True, 3), (False, 0)])
def test_news_of_the_metadata_are_named_and_what_did_not_answer(check, monkeypatch, unanswered, code):
    (check.here.root / "packages/knowngood-facts/facts/metadata").mkdir()
    (check.here.root / "packages/knowngood-facts/facts/metadata/trl.txt").touch()
    names = []

    def harvest(packages, **_):
        names.extend(packages)
        return HarvestReport(
            new=["trl 9.0", "trl 9.1"],
            failed={"peft": "no answer"},
            unknown={"trl 9.1": "no file", "torchao-nightly": "404"},
            unanswered=unanswered,
        )

    monkeypatch.setattr(upstream_check, "harvest_metadata", harvest)
    result = check(print)
    assert names == ["trl"]
    assert [item.text for item in result.findings] == [
        "metadata of peft: no answer",
        "the metadata of 2 releases is new (trl)",
        "still on no index: torchao-nightly",
    ]
    assert findings_exit_code(result.findings) == code


def test_a_new_release_that_was_not_judged_is_named(check):
    folder = check.here.root / "packages/knowngood-facts/facts/atlas"
    write_atlas(folder, "lib", {"lib": "def run(): ..."})
    (folder / "packages.yaml").write_text("since: 2024-01-01\npackages: {lib: lib}\n")
    findings = list(check._judge(check.here.root, [], ["lib", "other"], print))
    text = "lib was not judged: its names are due to be read again, which `knowngood harvest --atlas` does"
    assert [item.text for item in findings] == [text]
    assert findings_exit_code(findings) == 3


@pytest.mark.parametrize(("declared", "severity"), [(False, "warning"), (True, "info")])
def test_what_a_new_release_breaks_is_named_with_the_caller(check, monkeypatch, declared, severity):
    folder = check.here.root / "packages/knowngood-facts/facts/atlas"
    old = {"lib": "def run(): ...\ndef old(): ..."}
    write_atlas(folder, "lib", old)
    write_atlas(folder, "app", {"app": "from lib import old, gone"})
    renew_broken_uses(folder)
    assert list_table_packages(folder) == []
    (folder.parent / "metadata").mkdir()
    (folder.parent / "metadata/app.txt").write_text(APP + ("r+ lib<1.1\n" if declared else ""))

    def read_atlas(*_):
        write_atlas(folder, "lib", old, {"lib": "def run(): ..."})
        return []

    monkeypatch.setattr(UpstreamCheck, "_read_atlas", read_atlas)
    monkeypatch.setattr(upstream_check.knowledge, "load_knowledge", lambda _, load=knowledge.load_knowledge: load())
    (finding,) = check._judge(check.here.root, [], ["lib"], print)
    note = " (its metadata excludes that)" if declared else ""
    assert f"lib 1.1: no cell has it; breaks: app 1.0 with lib 1.1{note}: app uses lib:old" in finding.text
    assert finding.severity == severity
