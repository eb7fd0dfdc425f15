"""The files of the suite that runs for a cell: the smoke suite, and the checks of the cell's trainer beside it.

The checks of trainers are apart from `smoke_tests/`, so that a change of them leaves the suite of all other cells, and
with it their evidence, as it is.
"""

from __future__ import annotations

import hashlib
import re
import runpy
from pathlib import Path

from knowngood.core.cell import Cell
from knowngood.core.errors import MissingError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.project.checkout import Project

SUITE_FOLDER = "smoke_tests"
"""The suite's folder and package; it has this name wherever it runs, because its modules import one another by it."""
_HASHER = "environment.py"
"""The module that says what the suite's hash is."""


def hash_suite(suite: Path) -> str:
    """Return the hash of a suite's folder, which its reports contain; 64 hexadecimal digits.

    Raises `MissingError` when the folder holds no suite.
    """
    if not has_suite(suite):
        raise MissingError(f"{suite} is not the smoke suite: it has no {_HASHER}")
    return str(runpy.run_path(str(suite / _HASHER))["suite_hash"](suite))


def has_suite(suite: Path) -> bool:
    """Return whether a folder holds a smoke suite."""
    return (suite / _HASHER).is_file()


def is_suite_litter(name: str) -> bool:
    """Return whether tools leave a file or folder of this name beside sources, so that it is no part of the suite."""
    return name == "__pycache__" or name.startswith(".")


def read_suite_files(suite: Path, name: str = SUITE_FOLDER) -> dict[str, bytes]:
    """Return the content of each file of a suite by its path `smoke_tests/NAME`, sorted.

    `name` is the package that the suite is where it runs: another one for the suites beside the smoke suite.
    """
    files = {}
    for path in sorted(suite.rglob("*")):
        place = path.relative_to(suite)
        if path.is_file() and not any(map(is_suite_litter, place.parts)):
            files[f"{name}/{place.as_posix()}"] = path.read_bytes()
    return files


TRAINERS_FOLDER = "trainers"
"""Where the checks of trainers lie in the suite's folder, and their package in the suite's."""


_LIST = "_checks.py"
"""How the name of the module that lists a trainer's checks ends; it begins as the names of all its modules do."""


def has_trainer_checks(project: Project, cell: Cell) -> bool:
    """Return whether `trainer_tests/` has checks of a cell's trainer: a module that lists them."""
    prefix = _module_prefix(cell)
    return prefix is not None and (project.trainer_suite / f"{prefix}{_LIST}").is_file()


def find_cell_suite(project: Project, cell: Cell) -> Path:
    """Return the folder of the suite that runs for a cell.

    It is the project's own, or for a cell with checks of its trainer a folder in the cache, named by its content. That
    one has the modules that all trainers share, those of the cell's own and those that its list names as `USES`, so
    that the checks of another trainer neither run nor make this one's evidence that of an older suite.
    """
    if not has_trainer_checks(project, cell):
        return project.suite
    files = read_suite_files(project.suite)
    others = _others_modules(project, cell)
    for path, data in read_suite_files(project.trainer_suite).items():
        place = path.removeprefix(f"{SUITE_FOLDER}/")
        if place.endswith(".py") and not place.startswith(others):
            files[f"{SUITE_FOLDER}/{TRAINERS_FOLDER}/{place}"] = data
    digest = hashlib.sha256()
    for path, data in files.items():
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    folder = cache_folder() / "suites" / digest.hexdigest()[:24]
    for path, data in files.items():
        write_atomically(folder / path, data)
    return folder / SUITE_FOLDER


def _module_prefix(cell: Cell) -> str | None:
    """Return what the modules of a cell's trainer begin with: its name, as Python spells it."""
    return None if cell.framework_pin is None else cell.framework_pin[0].replace("-", "_")


def _others_modules(project: Project, cell: Cell) -> tuple[str, ...]:
    """Return what the names of modules begin with that only trainers other than the cell's use."""
    lists = {path.name.removesuffix(_LIST): path.read_text() for path in project.trainer_suite.glob(f"*{_LIST}")}
    own = lists.pop(_module_prefix(cell) or "", "")
    used = {name for text in lists.values() for name in _used_modules(text)} - _used_modules(own)
    return tuple(sorted({f"{name}_" for name in lists} | {f"{name}.py" for name in used}))


def _used_modules(text: str) -> set[str]:
    """Return the modules that a list of checks shares with some other trainers, and not with all."""
    named = re.search(r"^USES = \((.*)\)$", text, re.MULTILINE)
    return set(re.findall(r'"(\w+)"', named[1])) if named else set()
