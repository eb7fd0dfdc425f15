"""What diagnose knows is the same kept as read, and is read again when it changed or was damaged."""

from __future__ import annotations

import shutil

import pytest

from knowngood import resources
from knowngood.diagnosing import known
from knowngood.incidents import files
from knowngood.paths import cache_dir
from knowngood.solving import knowledge


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))


def _kept():
    return sorted((cache_dir() / "diagnose").glob("*"))


def test_kept_is_as_read():
    first, second = known.read(), known.read()
    assert len(_kept()) == 1
    assert list(second.incidents) == files.read()
    assert list(second.rules) == knowledge.read_rules(resources.root() / "rules")
    assert second.cards == first.cards
    assert first.cards.names


def test_a_changed_file_is_read_again_and_the_old_form_goes(tmp_path):
    folder = tmp_path / "incidents"
    shutil.copytree(resources.root() / "incidents", folder)
    before = known.read(folder)
    path = next(folder.glob("*.yaml"))
    path.unlink()
    after = known.read(folder)
    assert len(before.incidents) - len(after.incidents) == 1
    assert len(_kept()) == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"incidents": [{}], "rules": [], "gpus": null}', "\0\xff"])
def test_a_damaged_form_is_made_again(damage):
    whole = known.read()
    (place,) = _kept()
    place.write_text(damage)
    assert known.read() == whole
    assert place.read_text() != damage


def test_without_a_cache_folder_it_works_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "file" / "cache"))
    assert known.read().incidents
