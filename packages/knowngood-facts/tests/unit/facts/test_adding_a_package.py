"""A package's facts need one reader module and one line of data, its floor in matrix.yaml: no other file is touched."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

import harvest_registry
from knowngood.cli.main import main
from knowngood_facts import facts
from knowngood_facts.compat.factbook import FactFolder
from knowngood_facts.facts.fact_reader import find_readers
from knowngood_facts.facts.fact_store import load_facts

READER = '''
"""The wheels of tinylib: what they require, and how many threads they start."""

from dataclasses import dataclass

from knowngood_facts.facts.fact_reader import FactReader, Requirements, choose_wheel_or_sdist
from knowngood.index import wheel_metadata
from knowngood.index.artefact import read_text_member


@dataclass(frozen=True, kw_only=True, slots=True)
class TinylibFacts:
    requires: Requirements | None
    threads: int | None


def read_tinylib(artefact, release, reading):
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on("3.11")))
    reading.take("threads", lambda: int(read_text_member(artefact, "tinylib/threads.txt")))


READERS = (
    FactReader(
        package="tinylib", revision=1, model=TinylibFacts, choose=choose_wheel_or_sdist, read=read_tinylib
    ),
)
'''
FLOOR = "tinylib: 1.1"


def tiny_wheel(version: str, threads: str) -> bytes:
    return harvest_registry.wheel(
        {
            "tinylib/threads.txt": threads,
            f"tinylib-{version}.dist-info/METADATA": harvest_registry.metadata("tinylib", version, "torch>=2.6"),
        }
    )


@pytest.fixture
def tinylib(home, tmp_path, monkeypatch):
    """The reader among the modules of the room, and the floor in matrix.yaml."""
    folder = tmp_path / "readers"
    folder.mkdir()
    (folder / "tinylib_reader.py").write_text(READER)
    monkeypatch.setattr(facts, "__path__", [*facts.__path__, str(folder)])
    matrix = home.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("floors: {torch: 2.0}", f"floors: {{torch: 2.0, {FLOOR}}}"))
    yield importlib.import_module("knowngood_facts.facts.tinylib_reader")
    del sys.modules["knowngood_facts.facts.tinylib_reader"]
    del facts.tinylib_reader


@pytest.fixture
def registry(monkeypatch):
    with harvest_registry.serve() as served:
        for version, threads in (("1.0", "1"), ("1.1", "2"), ("1.2", "many")):
            served.files[f"tinylib-{version}-py3-none-any.whl"] = tiny_wheel(version, threads)
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served


@pytest.mark.usefixtures("registry")
def test_a_reader_and_a_floor_are_enough(tinylib, home, capsys):
    assert "tinylib" in find_readers()
    assert main(["harvest", "tinylib", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new"] == ["tinylib 1.1", "tinylib 1.2"]

    folder = home.root / "packages/knowngood-facts/facts"
    releases = load_facts("tinylib", tinylib.TinylibFacts, folder)
    assert list(releases) == ["1.1", "1.2"]
    assert releases["1.1"].facts == tinylib.TinylibFacts(requires={"torch": ">=2.6"}, threads=2)
    assert "ValueError" in releases["1.2"].unknown["threads"]

    book = FactFolder(path=folder).read_book()  # what `check` and `pick` answer from
    assert book.versions("tinylib") == ["1.1", "1.2"]
    assert book.fact("tinylib", "1.1", "requires:torch") == ">=2.6"


@pytest.mark.usefixtures("home")
def test_without_its_module_a_package_has_no_reader(capsys):
    assert main(["harvest", "tinylib"]) == 2
    assert "tinylib: no reader for that" in capsys.readouterr().err
