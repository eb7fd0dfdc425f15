"""What is kept of a run names no folder of the machine on which it was made, however that was spelt."""

from __future__ import annotations

import json
import os

import pytest

from knowngood.smoke import certify_run, suite_run


@pytest.mark.parametrize("spelling", ["as given", "shortest", "resolved"])
def test_no_spelling_of_a_folder_stays_in_a_report(tmp_path, spelling):
    real = tmp_path / "real"
    (real / "venv").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    given = tmp_path / "link" / ".." / "link" / "venv"
    written = {"as given": str(given), "shortest": os.path.abspath(given), "resolved": os.path.realpath(given)}  # noqa: PTH100
    report = json.dumps({"message": f'File "{written[spelling]}/lib/torch/x.py", line 1'}).encode()
    cut = certify_run._cut_folders(report, [given])
    assert json.loads(cut) == {"message": 'File "lib/torch/x.py", line 1'}


def test_the_python_of_an_environment_has_an_absolute_path(tmp_path, monkeypatch):
    """The suite runs in another folder, where a relative one would lead elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", "../venv")
    assert suite_run.find_environment_python() == f"{tmp_path}/../venv/bin/python"
