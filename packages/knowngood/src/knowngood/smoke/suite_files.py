"""The files of the smoke suite, which is brought into the container, the job folder or the pod that runs it."""

from __future__ import annotations

import runpy
from pathlib import Path

from knowngood.core.errors import MissingError

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
