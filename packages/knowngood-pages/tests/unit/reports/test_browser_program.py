"""What the page that diagnoses logs fetches. That it answers as the command does is seen in a browser (`test_site`)."""

import io
import json
import zipfile

import pytest

from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood_pages import browser_program

TEMPLATES = local_files.data_folder() / "templates" / "site"
PINNED = json.loads((TEMPLATES / "pyodide.json").read_text())


def test_the_program_has_the_same_bytes_and_all_that_it_reads():
    packed = browser_program._pack_program()
    assert packed == browser_program._pack_program()
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert {
        "knowngood_diagnose/cli/diagnose.py",
        "yaml/__init__.py",
        "knowngood/_data/matrix.yaml",
        browser_program.KNOWN,
    } <= set(names)
    assert any(name.startswith("knowngood/_data/packages/knowngood-facts/facts/atlas/") for name in names)
    assert not [name for name in names if "/tests/" in name or "evidence/2" in name]


def test_another_file_than_the_recorded_one_is_refused_and_not_kept():
    place = local_files.cache_folder() / "pyodide" / f"pyodide-{PINNED['version']}.tgz"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"another file")
    with pytest.raises(KnowngoodError, match="wants sha512-"):
        browser_program.browser_files(TEMPLATES)
    assert not place.exists()


def test_without_npm_it_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match="there is no npm"):
        browser_program.browser_files(TEMPLATES)
