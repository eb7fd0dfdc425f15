"""A project: the folder with matrix.yaml, `docker/`, `evidence/` and `smoke_tests/`, and the matrix read from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import resources
from knowngood.errors import InputError, Problem, UnknownError

if TYPE_CHECKING:
    from knowngood.locks.tree import Tree
    from knowngood.matrix import Knowledge, Matrix
    from knowngood.predictions import Prediction

MATRIX = "matrix.yaml"


@dataclass(frozen=True)
class Project:
    """Paths of a project; reading is done when first asked for."""

    root: Path

    @cached_property
    def matrix(self) -> Matrix:
        """matrix.yaml, checked against the facts; `InputError` with every defect."""
        from knowngood import matrix

        return matrix.parse(_utf8((self.root / MATRIX).read_bytes()), MATRIX, knowledge())

    @cached_property
    def tree(self) -> Tree:
        """The committed folder `docker/`."""
        from knowngood.locks.tree import Tree

        return Tree(self.root)

    @cached_property
    def predictions(self) -> list[Prediction]:
        """What the smoke suite is expected to say."""
        from knowngood import predictions

        name = "rules/smoke.yaml"
        return predictions.parse((self.root / name).read_text(encoding="utf-8"), name)

    @property
    def evidence(self) -> Path:
        """Where runs write what they saw."""
        return self.root / "evidence"

    @property
    def suite(self) -> Path:
        """The smoke suite."""
        return self.root / "smoke_tests"

    @property
    def templates(self) -> Path:
        """Jinja templates."""
        return self.root / "templates"


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        problem = Problem(
            file=MATRIX,
            line=before.count(b"\n") + 1,
            column=len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1,
            text=f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8",
        )
        raise InputError([problem]) from None


def find(start: Path | None = None) -> Project:
    """The project around `start` (the working folder), else the one that this program came with."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / MATRIX).is_file() and (folder / "templates").is_dir():
            return Project(folder)
    return Project(resources.root())


def knowledge() -> Knowledge:
    """The facts that matrix.yaml is checked against."""
    from knowngood import facts
    from knowngood.matrix import Knowledge, TorchPins

    def releases(package: str) -> list[str] | None:
        try:
            return list(facts.load(package))
        except UnknownError:
            return None

    torch = {
        version: TorchPins(cuda=item.facts.cuda, triton=item.facts.triton, pythons=tuple(item.facts.pythons))
        for version, item in facts.load("torch").items()
        if item.facts.cuda and item.facts.triton and item.facts.pythons
    }
    return Knowledge(torch=torch, releases=releases)


def cxx11abi(torch: str) -> bool:
    """The C++ ABI of a torch release, as its binaries say; `UnknownError` when the facts do not."""
    from knowngood import facts

    known = facts.load("torch")[torch].facts.cxx11abi
    if known is None:
        raise UnknownError(f"facts/torch.json does not say the C++ ABI of torch {torch}; `knowngood harvest torch`")
    return known
