"""The nightly check of new releases: what it could not look at is not good."""

from __future__ import annotations

import shutil

import pytest
from samples import FA4, ROOT

from knowngood.core.cell import parse_cell
from knowngood.facts import contract_definition
from knowngood.facts.contract_harvest import ContractReport
from knowngood.facts.harvest_run import HarvestReport
from knowngood.reports import upstream_check
from knowngood.reports.index_changes import UpstreamRelease
from knowngood.reports.nightly_report import findings_exit_code
from knowngood.reports.upstream_check import UpstreamCheck


@pytest.fixture
def check(home, monkeypatch):
    (home.root / "facts").mkdir()
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
    (check.here.root / "facts/metadata").mkdir()
    (check.here.root / "facts/metadata/trl.txt").touch()
    names = []

    def harvest(packages, **_):
        names.extend(packages)
        return HarvestReport(new=["trl 9.0", "trl 9.1"], failed={"peft": "no answer"}, unanswered=unanswered)

    monkeypatch.setattr(upstream_check, "harvest_metadata", harvest)
    result = check(print)
    assert names == ["trl"]
    assert [item.text for item in result.findings] == [
        "metadata of peft: no answer",
        "the metadata of 2 releases is new (trl): knowngood harvest --metadata",
    ]
    assert findings_exit_code(result.findings) == code


@pytest.mark.parametrize(("unanswered", "code"), [(True, 3), (False, 0)])
def test_a_contract_that_was_not_judged_is_named(check, monkeypatch, unanswered, code):
    (check.here.root / "contracts").mkdir()
    source = ROOT / "contracts" / "liger-qwen2.yaml"
    shutil.copy(source, check.here.root / "contracts")
    contract = contract_definition.parse_contract(source.read_text(), source.name)
    report = ContractReport(failed={contract.id: "no answer"}, unanswered=unanswered)
    monkeypatch.setattr(upstream_check, "harvest_contracts", lambda *_, **_more: report)
    release = UpstreamRelease(package=contract.caller.package, version="99.0")
    broken, findings = check._broken_contracts(check.here.root, [release], {}, print)
    assert broken == {}
    assert [item.text for item in findings] == [f"contract {contract.id} was not judged: no answer"]
    assert findings_exit_code(findings) == code
