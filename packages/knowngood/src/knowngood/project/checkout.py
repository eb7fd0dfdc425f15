"""A project: the folder with matrix.yaml, `docker/`, `evidence/` and `smoke_tests/`, and the matrix read from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core import local_files
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import UsageError

if TYPE_CHECKING:
    from knowngood.core.matrix import Matrix
    from knowngood.lock.lock_tree import LockTree
    from knowngood.project.release_seal import ReleaseSeal

MATRIX_FILE = "matrix.yaml"


@dataclass(frozen=True)
class Project:
    """The paths of a project. The matrix and the locks are read at their first use."""

    root: Path

    @cached_property
    def matrix(self) -> Matrix:
        """matrix.yaml, checked against the facts. Raises `InputError` with every defect."""
        from knowngood.core import matrix
        from knowngood.project import core_facts

        return matrix.parse_matrix(read_matrix_text(self.root), MATRIX_FILE, core_facts.load_matrix_facts())

    @cached_property
    def tree(self) -> LockTree:
        """The committed locks and Dockerfiles in `docker/`."""
        from knowngood.lock.lock_tree import LockTree

        return LockTree(self.root)

    @cached_property
    def seal(self) -> ReleaseSeal | None:
        """The seal of the last release; `None` where matrix.yaml names no key to verify it with."""
        from knowngood.project.release_seal import load_release_seal

        return load_release_seal(self.root, self.matrix.publish.keys)

    @property
    def evidence(self) -> Path:
        """The folder of evidence: one file of each run that was committed."""
        return self.root / "evidence"

    @property
    def evidence_store(self) -> Path:
        """Where new runs write their evidence: `evidence`, or this user's data beside an installed program."""
        return local_files.user_data_folder() / "evidence" if self.installed else self.evidence

    @property
    def parallel_store(self) -> Path:
        """Where runs over several processes write their reports: apart from cells' runs, since they prove no tier."""
        return self.evidence_store / "parallel"

    @property
    def speed_store(self) -> Path:
        """Where runs of the speed suite write their reports: they prove no tier either."""
        return self.evidence_store / "speed"

    @property
    def installed(self) -> bool:
        """Whether these are the files that an installed program comes with, which stay as they are."""
        return self.root == local_files.data_folder() and self.root.name == "_data"

    @property
    def sources(self) -> dict[str, str]:
        """The folder of matrix.yaml, locks, evidence and seal, and that of what is known of packages."""
        return {"project": str(self.root), "facts, rules and incidents": str(local_files.data_folder())}

    @property
    def foreign_knowledge(self) -> list[str]:
        """A sentence where facts, rules and incidents are of another place than the cells; none in a checkout."""
        knowledge = local_files.data_folder()
        return [] if knowledge == self.root else [f"facts, rules and incidents are those in {knowledge}"]

    @property
    def suites(self) -> Path:
        """The folder of the suites, from which each can be imported by its name."""
        return self.root / "smoke_tests"

    @property
    def suite(self) -> Path:
        """The folder of the smoke suite."""
        return self.suites / "smoke_tests"

    @property
    def trainer_suite(self) -> Path:
        """The folder of the checks of trainers, which join the suite of the cells that have one."""
        return self.suites / "trainer_tests"

    @property
    def parallel_suite(self) -> Path:
        """The folder of the checks of training over several processes."""
        return self.suites / "parallel_tests"

    @property
    def model_suite(self) -> Path:
        """The folder of the checks of any model, which use the smoke suite beside them."""
        return self.suites / "model_tests"

    @property
    def speed_suite(self) -> Path:
        """The folder of the speed suite, which uses the smoke suite beside it."""
        return self.suites / "speed_tests"

    @property
    def templates(self) -> Path:
        """The folder of Jinja templates."""
        return self.root / "templates"


def read_matrix_text(root: Path) -> str:
    """Return the text of a project's matrix.yaml.

    Raises:
        UsageError: the folder has none.
        InputError: it cannot be read, or is not UTF-8; the position is stated.
    """
    try:
        return read_data_text(root / MATRIX_FILE, MATRIX_FILE)
    except FileNotFoundError:
        raise UsageError(
            f"{root} has no {MATRIX_FILE}, which lists the GPUs and the cells; run this in a project that has one, "
            "or restore the file"
        ) from None


def find_project(start: Path | None = None) -> Project:
    """Return the project around `start` (default: the working folder), else the one that this program comes with.

    A checkout that has lost its matrix.yaml is still the project, so that no other one answers in its place.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        has_matrix = (folder / MATRIX_FILE).is_file() or (folder / "docker/cells").is_dir()
        if has_matrix and (folder / "templates").is_dir():
            return Project(folder)
    return Project(local_files.data_folder())


def find_checkout(written: str) -> Project:
    """Return the project around the working folder, for a command that writes into it; `written` says what.

    Raises `UsageError` where there is none: the files that an installed program comes with stay as they are.
    """
    project = find_project()
    if project.installed:
        raise UsageError(
            f"this command writes {written}, and {Path.cwd()} is in no project; run it in a checkout of knowngood, or "
            f"in a folder with {MATRIX_FILE} and templates/"
        )
    return project
