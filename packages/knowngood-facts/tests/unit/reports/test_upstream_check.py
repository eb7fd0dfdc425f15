"""The nightly check of new releases: what it could not look at is not good."""

from __future__ import annotations

import pytest

from atlas_samples import write_atlas
from knowngood.core.cell import parse_cell
from knowngood.reports.nightly_report import findings_exit_code
from knowngood_facts.facts.atlas_lookup import open_atlas
from knowngood_facts.facts.broken_use_table import list_table_packages
from knowngood_facts.facts.broken_uses import renew_broken_uses
from knowngood_facts.facts.harvest_run import HarvestReport
from knowngood_facts.reports import upstream_check
from knowngood_facts.reports.index_changes import UpstreamRelease
from knowngood_facts.reports.newly_broken_uses import find_newly_broken_uses
from knowngood_facts.reports.upstream_check import UpstreamCheck
from samples import FA4


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
        return HarvestReport(new=["trl 9.0", "trl 9.1"], failed={"peft": "no answer"}, unanswered=unanswered)

    monkeypatch.setattr(upstream_check, "harvest_metadata", harvest)
    result = check(print)
    assert names == ["trl"]
    assert [item.text for item in result.findings] == [
        "metadata of peft: no answer",
        "the metadata of 2 releases is new (trl): knowngood harvest --metadata",
    ]
    assert findings_exit_code(result.findings) == code


def test_a_new_release_that_was_not_judged_is_named(check):
    folder = check.here.root / "packages/knowngood-facts/facts/atlas"
    write_atlas(folder, "lib", {"lib": "def run(): ..."})
    release = UpstreamRelease(package="lib", version="1.1")
    broken, findings = check._newly_broken(check.here.root, [release], print)
    assert broken == {}
    text = "lib 1.1 was not judged: its names are due to be read again, which `knowngood harvest --atlas` does"
    assert [item.text for item in findings] == [text]
    assert findings_exit_code(findings) == 3


def test_a_release_that_the_atlas_has_is_judged_by_it(check):
    write_atlas(check.here.root / "packages/knowngood-facts/facts/atlas", "lib", {"lib": "def run(): ..."})
    assert check._newly_broken(check.here.root, [UpstreamRelease(package="lib", version="1.0")], print) == ({}, [])


def test_what_a_new_release_breaks_is_named_with_the_caller(tmp_path):
    write_atlas(tmp_path, "lib", {"lib": "def run(): ...\ndef old(): ..."})
    write_atlas(tmp_path, "app", {"app": "from lib import old, gone"})
    renew_broken_uses(tmp_path)
    assert list_table_packages(tmp_path) == []
    (tmp_path / "app.uses.json.gz").touch()
    release = UpstreamRelease(package="lib", version="1.1")

    def read_release(package, version):
        open_atlas.cache_clear()
        write_atlas(tmp_path, package, {"lib": "def run(): ...\ndef old(): ..."}, {"lib": "def run(): ..."})
        return "" if version == "1.1" else "no answer"

    broken, unread = find_newly_broken_uses(tmp_path, [release], read_release)
    assert (broken, unread) == ({release: {"app 1.0": "app uses lib:old"}}, {})
    later = UpstreamRelease(package="lib", version="1.2")
    assert find_newly_broken_uses(tmp_path, [later], read_release) == ({}, {later: "no answer"})
