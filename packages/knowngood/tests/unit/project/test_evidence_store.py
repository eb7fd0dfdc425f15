"""Where runs write their evidence: into a checkout, and never beside the modules of an installed program."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood.core import local_files
from knowngood.project.checkout import Project


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"XDG_DATA_HOME": "/data"}, "/data/knowngood"), ({"HOME": "/home/me"}, "/home/me/.local/share/knowngood")],
)
def test_an_installed_program_writes_into_the_users_data(monkeypatch, tmp_path, variables, expected):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "_data"
    monkeypatch.setattr(local_files, "data_folder", lambda: root)
    assert Project(root).installed
    assert Project(root).evidence_store == Path(expected) / "evidence"


def test_a_checkout_and_any_other_project_keep_it_in_their_own_folder(monkeypatch, tmp_path, home):
    assert home.evidence_store == home.evidence == home.root / "evidence"
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(local_files, "data_folder", lambda: tmp_path)
    assert Project(tmp_path).evidence_store == tmp_path / "evidence"
