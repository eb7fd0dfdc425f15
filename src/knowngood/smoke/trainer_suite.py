"""The suite of a cell whose trainer has checks of its own: the smoke suite with `trainer_tests/` in it.

The checks of trainers are apart from `smoke_tests/`, so that a change of them leaves the suite of all other cells, and
with it their evidence, as it is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from knowngood.core.cell import Cell
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.project.checkout import Project
from knowngood.smoke import suite_files

TRAINERS_FOLDER = "trainers"
"""Where the checks of trainers lie in the suite's folder, and their package in the suite's."""


def has_trainer_checks(project: Project, cell: Cell) -> bool:
    """Return whether `trainer_tests/` has checks of a cell's trainer: files whose names begin with the trainer's."""
    if cell.framework_pin is None:
        return False
    name = cell.framework_pin[0].replace("-", "_")
    return any(project.trainer_suite.glob(f"{name}_*.py"))


def find_cell_suite(project: Project, cell: Cell) -> Path:
    """Return the folder of the suite that runs for a cell.

    It is the project's own, or for a cell with checks of its trainer a folder in the cache, named by its content.
    """
    if not has_trainer_checks(project, cell):
        return project.suite
    files = suite_files.read_suite_files(project.suite)
    for path, data in suite_files.read_suite_files(project.trainer_suite).items():
        place = path.removeprefix(f"{suite_files.SUITE_FOLDER}/")
        files[f"{suite_files.SUITE_FOLDER}/{TRAINERS_FOLDER}/{place}"] = data
    digest = hashlib.sha256()
    for path, data in files.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    folder = cache_folder() / "suites" / digest.hexdigest()[:24]
    for path, data in files.items():
        write_atomically(folder / path, data)
    return folder / suite_files.SUITE_FOLDER
