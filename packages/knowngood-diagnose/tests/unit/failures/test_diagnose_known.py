"""The cache of `diagnose` equals the files, and is written again when they changed or it was damaged."""

from __future__ import annotations

import shutil

import pytest

from knowngood.core import local_files
from knowngood.core.local_files import cache_folder
from knowngood_diagnose.failures import known_failures
from knowngood_facts.compat import rule_files
from knowngood_facts.compat.rule import rule_from_incident


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))


def _kept():
    return sorted((cache_folder() / "diagnose").glob("*"))


def test_the_cache_gives_what_the_files_give():
    first, second = known_failures.load_known_failures(), known_failures.load_known_failures()
    assert len(_kept()) == 1
    incidents = rule_files.load_incidents()
    assert list(second.incidents) == incidents
    rules = rule_files.load_rules(local_files.data_folder() / "packages/knowngood-facts/rules")
    assert list(second.rules) == [*rules, *filter(None, map(rule_from_incident, incidents))]
    assert second.catalog == first.catalog
    assert first.catalog.names


def test_a_changed_file_replaces_the_cache(tmp_path):
    folder = tmp_path / "incidents"
    shutil.copytree(local_files.data_folder() / "packages/knowngood-diagnose/incidents", folder)
    before = known_failures.load_known_failures(folder)
    path = next(folder.glob("*.yaml"))
    path.unlink()
    after = known_failures.load_known_failures(folder)
    assert len(before.incidents) - len(after.incidents) == 1
    assert len(_kept()) == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"incidents": [{}], "rules": [], "gpus": null}', "\0\xff"])
def test_a_damaged_cache_is_written_again(damage):
    whole = known_failures.load_known_failures()
    (place,) = _kept()
    place.write_text(damage)
    assert known_failures.load_known_failures() == whole
    assert place.read_text() != damage


def test_diagnose_works_without_a_cache_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "file" / "cache"))
    assert known_failures.load_known_failures().incidents
