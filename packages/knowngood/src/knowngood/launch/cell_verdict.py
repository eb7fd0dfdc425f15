"""What a person should know of a cell before getting it: how far it is proven, what to mind, and what it costs here.

`pick`, `run`, `cells` and `build` all say this, from here. Nothing is fetched, and no registry is asked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core.formatting import format_bytes
from knowngood.evidence.build_times import BuildTimes, read_build_times
from knowngood.images import build_survey, matrix_plan
from knowngood.images.build_inputs import read_recipe_digest
from knowngood.images.free_resources import DISK_AT_LEAST, DISK_PER_BYTE
from knowngood.lock import wheelhouse
from knowngood.lock.cell_locking import NoWheelError
from knowngood.project import core_facts
from knowngood.registry import image_reference, wheel_supply
from knowngood.wheels import compile_request

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.evidence.cell_answer import CellAnswer
    from knowngood.images.matrix_plan import Holdings
    from knowngood.project.cell_answers import CellAnswers
    from knowngood.project.checkout import Project


class ImageWay(StrEnum):
    """How the image of a cell gets into the engine of this machine."""

    HERE = "here"
    """The engine has it already; nothing is fetched."""
    PULL = "pull"
    """A repository is named that may have it; where it does not, the image is built."""
    BUILD = "build"
    COMPILE = "compile"
    """A wheel that nobody publishes has to be compiled before."""
    LOCK = "lock"
    """It has no lock, or a damaged one, so what it takes is not known."""


def list_run_words(cell: str, *, locked: bool, compiling: bool) -> list[list[str]]:
    """Return the words of the commands that run a program in the image of a cell of the matrix.

    `run` gets the image by itself, but locks and compiles nothing.
    """
    compile_option = ["--compile"] if compiling else []
    first = [] if locked and not compiling else [["knowngood", "build-matrix", *compile_option, cell]]
    return [*first, ["knowngood", "run", cell, "--", "python", "train.py"]]


@dataclass(frozen=True, kw_only=True)
class WheelToCompile:
    """A wheel that a cell needs, and that neither this machine nor a place that is named has."""

    package: str
    version: str
    minutes: int | None
    """About how long compiling takes on this machine; `None` where nobody measured it."""
    cores: int

    @property
    def text(self) -> str:
        """The wheel and the time in words."""
        time = "nobody noted how long that takes" if self.minutes is None else f"about {self.minutes} minutes"
        return f"{self.package} {self.version} must be compiled ({time} on {self.cores} cores)"


@dataclass(frozen=True, kw_only=True)
class CellVerdict:
    """What is known of a cell, and what its image costs on this machine."""

    answer: CellAnswer
    way: ImageWay
    fetch: int | None
    """Bytes to fetch that this machine lacks: layers from a registry, or wheels; `None` when that is not known."""
    disk: int | None
    """Bytes on disk that it may take while it is made; `None` when that is not known."""
    compiled: tuple[WheelToCompile, ...] = ()
    problem: str = ""
    """Why it is not known what it costs."""
    build_times: BuildTimes = field(default_factory=BuildTimes)
    """How long a build may take; none are known where it is not built."""

    @property
    def brief_cost(self) -> str:
        """The cost as a cell of a table has it."""
        compiling = [f"compile {item.package}" for item in self.compiled]
        size = "in the engine" if self.way is ImageWay.HERE else format_bytes(self.fetch)
        return ", ".join([*compiling, size])

    @property
    def cost(self) -> str:
        """What getting the image costs, in words."""
        if self.way is ImageWay.HERE:
            return "the engine has it"
        if self.problem:
            return self.problem
        known = self.fetch is not None and self.disk is not None
        size = (
            f"{format_bytes(self.fetch)} to fetch, up to {format_bytes(self.disk)} of disk" if known else "unknown size"
        )
        time = "nobody measured how long a pull takes" if self.way is ImageWay.PULL else self.build_times.text
        return "; ".join([*(item.text for item in self.compiled), f"{size}, {time}"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What rules and incidents warn of in this cell for any use, as sentences."""
        return tuple(warning.because for warning in self.answer.warnings if not warning.when)

    def run_words(self) -> list[list[str]]:
        """Return the words of the commands that run a program in the image."""
        locked = self.way is not ImageWay.LOCK
        return list_run_words(str(self.answer.cell), locked=locked, compiling=bool(self.compiled))

    def commands(self) -> list[list[str]]:
        """Return the words of the commands that get the image into the engine of this machine; none where it is."""
        cell = str(self.answer.cell)
        if self.way is ImageWay.HERE:
            return []
        lock = [["knowngood", "lock", cell]] if self.way is ImageWay.LOCK else []
        compiling = [["knowngood", "compile", cell]] if self.compiled else []
        return [*compiling, *lock, ["knowngood", "build", cell]]

    def require_wheels(self) -> None:
        """Raise `NoWheelError` when a wheel has to be compiled first, with what that takes."""
        if self.compiled:
            command = " && ".join(map(shlex.join, self.commands()))
            wheels = "; ".join(item.text for item in self.compiled)
            raise NoWheelError(
                f"{self.answer.cell}: this machine has no wheel for it, and no place is named that might: {wheels}; "
                f"`{command}` does it, KNOWNGOOD_WHEELHOUSE names a folder that has one, KNOWNGOOD_REGISTRY a "
                "repository that has the image"
            )

    def document(self) -> dict[str, Any]:
        """Return the costs as `--json` prints them."""
        return {
            "way": str(self.way),
            "fetch": self.fetch,
            "disk": self.disk,
            "minutes": self.build_times.minutes,
            "compile": [vars(item) for item in self.compiled],
            "problem": self.problem,
            "warnings": [asdict(warning) for warning in self.answer.warnings],
        }


@dataclass(frozen=True)
class CellVerdicts:
    """Verdicts on the cells of a project, for this machine and one engine."""

    answers: CellAnswers
    engine: Engine | None
    """The engine whose layers count as being here; `None` where none answers."""
    environ: Mapping[str, str]
    pulls: bool = True
    """Whether the repositories that are named count as having images."""

    @property
    def project(self) -> Project:
        """The project whose cells they are."""
        return self.answers.project

    @cached_property
    def _holdings(self) -> Holdings:
        return build_survey.survey_holdings(self.project, self.engine)

    @cached_property
    def _recipe(self) -> str:
        return read_recipe_digest(self.project)

    @cached_property
    def _build_times(self) -> BuildTimes:
        return read_build_times(self.project.evidence)

    @cached_property
    def _house(self) -> Path:
        return wheelhouse.wheelhouse_folder()

    def judge(self, cell: Cell) -> CellVerdict:
        """Return what is known of a cell and what it costs here."""
        answer, compiled = self.answers.answer(cell), tuple(self._find_wheels_to_compile(cell))
        item = build_survey.survey_cell(self.project, cell, None, self._recipe)
        if item.shape is None:
            problem = item.lock_problem or item.lock_defect
            way = ImageWay.LOCK
            return CellVerdict(answer=answer, way=way, fetch=None, disk=None, compiled=compiled, problem=problem)
        if item.shape.inputs in self._holdings.images:
            return CellVerdict(answer=answer, way=ImageWay.HERE, fetch=0, disk=0)
        record = self.project.tree.load_record(cell)
        if self.pulls and record and image_reference.list_repositories(self.project.matrix, self.environ):
            here = {name for name, inputs in self._holdings.layers if inputs == item.shape.layer_inputs}
            fetch = sum(layer.size for layer in record.layers if layer.name not in here)
            return CellVerdict(answer=answer, way=ImageWay.PULL, fetch=fetch, disk=DISK_AT_LEAST * fetch)
        fetch = sum(size for _, size in matrix_plan.layers_to_build(item, self._holdings))
        way = ImageWay.COMPILE if compiled else ImageWay.BUILD
        return CellVerdict(
            answer=answer,
            way=way,
            fetch=fetch,
            disk=DISK_PER_BYTE * fetch,
            compiled=compiled,
            build_times=self._build_times,
        )

    def _find_wheels_to_compile(self, cell: Cell) -> list[WheelToCompile]:
        """Return the wheels that neither this machine nor, as far as their bytes are recorded, a named place has."""
        missing = []
        abi, cores = core_facts.load_torch_cxx11abi, os.cpu_count() or 1
        places = wheel_supply.list_wheel_places(self.project, self.environ)
        for package, version in self.project.matrix.compiled_packages(cell):
            wheel, _ = wheelhouse.find_wheel(
                cell, self._house, cxx11abi=abi(cell.torch), package=package, version=version
            )
            if wheel is None and not (
                places
                and wheelhouse.find_wheel_pin(cell, self.project.tree, package, version, cxx11abi=abi(cell.torch))
            ):
                minutes = compile_request.find_recipe(package).estimate_minutes(cores)
                missing.append(WheelToCompile(package=package, version=version, minutes=minutes, cores=cores))
        return missing
