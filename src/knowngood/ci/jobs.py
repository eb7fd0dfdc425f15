"""The jobs of a plan, for any CI system: wheels before images before promotion, shared layers first. Pure."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from knowngood import cell as cells
from knowngood.building.planning import Wanted
from knowngood.cell import Cell
from knowngood.errors import UsageError

WHEELHOUSE = "wheelhouse"
"""The folder in a checkout that wheels come into and are taken from."""

REPOSITORY = "KNOWNGOOD_REPOSITORY"
"""The variable that names where images are published; where it is not set, nothing is."""


class Stage(StrEnum):
    """What a job does; a stage begins when the one before is done."""

    WHEELS = "wheels"
    IMAGES = "images"
    PROMOTION = "promotion"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job: some cells, on one kind of runner."""

    stage: Stage
    name: str
    """Unlike that of any other job of the plan."""
    cells: tuple[str, ...]
    gpu: str | None = None
    """The architecture of the GPU that it needs, `None` when it needs none."""
    needs: tuple[str, ...] = ()
    """The names of the jobs that make its wheels."""
    key: str = ""
    """Of a job for wheels: changes with what the wheels are, so that a cache can be named by it."""

    @property
    def title(self) -> str:
        """For people: the name, and how many cells more."""
        more = len(self.cells) - 1
        return f"{self.name} and {more} more" if more and self.stage is Stage.IMAGES else self.name

    @property
    def options(self) -> tuple[str, ...]:
        """What the verb is given beside the cells: how they are proven, and where the wheels are."""
        proof = ("--gpus", "--no-quick") if self.gpu else ()
        return (*proof, "--wheelhouse", WHEELHOUSE) if self.needs or self.stage is Stage.WHEELS else proof

    @property
    def commands(self) -> tuple[str, ...]:
        """What it runs, in a checkout with `knowngood` installed."""
        publish = ["knowngood", "publish"]
        if self.stage is Stage.WHEELS:
            return (f"mkdir -p {WHEELHOUSE}", shlex.join(["knowngood", "compile", *self.options, *self.cells]))
        if self.stage is Stage.PROMOTION:
            return (shlex.join([*publish, *self.cells]),)
        build = shlex.join(["knowngood", "build-matrix", "--locked", *self.options, *self.cells])
        publish = [*publish, "--no-aliases", *self.cells]
        return (build, f'if [ -n "${REPOSITORY}" ]; then {shlex.join(publish)}; fi')

    def document(self) -> dict[str, Any]:
        """The job for programs."""
        return {**asdict(self), "stage": str(self.stage), "commands": list(self.commands)}


Pin = tuple[str, str]
"""A package and its version."""


def jobs(
    ordered: Sequence[Wanted], compiled: Mapping[str, Sequence[Pin]], *, gpus: Collection[str], limit: int
) -> tuple[Job, ...]:
    """At most `limit` jobs for cells in the order in which they are best built.

    `compiled` is what a cell has that no index has a wheel of. `gpus` are the architectures that have runners; cells of
    others are proven without a GPU. Where there are more cells than jobs, a job takes several that have much in common.
    """
    of_plan = [cells.parse(item.cell) for item in ordered]
    groups = _groups(ordered, compiled)
    size = max(1, math.ceil(len(of_plan) / limit))
    while True:
        wheels = [_wheels(groups[start : start + size], compiled) for start in range(0, len(groups), size)]
        images = _images(of_plan, {name for job in wheels for name in job.cells}, gpus, size)
        if len(wheels) + len(images) < limit:  # one is left for the promotion
            break
        if size >= len(of_plan):
            least = len(wheels) + len(images) + 1
            raise UsageError(f"{least} jobs at least, and the limit is {limit}; select fewer cells")
        size += 1
    maker = {name: job.name for job in wheels for name in job.cells}
    images = [replace(job, needs=tuple(sorted({maker[name] for name in job.cells if name in maker}))) for job in images]
    promotion = [Job(stage=Stage.PROMOTION, name="promotion", cells=tuple(map(str, of_plan)))] if of_plan else []
    return (*wheels, *images, *promotion)


def wheels_of(cell: str, compiled: Mapping[str, Sequence[Pin]]) -> list[str]:
    """The cell's own wheels, each by a name that says all that it is compiled for."""
    one = cells.parse(cell)
    platform = f"{one.gpu}-cu{one.cuda}-torch{one.torch}-py{one.python}"
    return [f"wheel-{package}-{version}-{platform}" for package, version in compiled.get(cell, ())]


def _groups(ordered: Sequence[Wanted], compiled: Mapping[str, Sequence[Pin]]) -> list[list[Wanted]]:
    """The cells that have wheels to be compiled; those of a group share them, those of two groups share none."""
    groups: list[tuple[set[str], list[Wanted]]] = []
    for item in ordered:
        mine, together = set(wheels_of(item.cell, compiled)), [item]
        if not mine:
            continue
        for group in [group for group in groups if group[0] & mine]:
            groups.remove(group)
            mine, together = group[0] | mine, [*group[1], *together]
        groups.append((mine, together))
    return [items for _, items in groups]


def _wheels(groups: Sequence[Sequence[Wanted]], compiled: Mapping[str, Sequence[Pin]]) -> Job:
    """The job that has each wheel of some groups compiled once: the first of the cells that need it brings it about."""
    items = [item for group in groups for item in group]
    names = list(dict.fromkeys(name for item in items for name in wheels_of(item.cell, compiled)))
    locked = {one.sha256 for item in items for layer in item.layers for one in layer.distributions if one.made_here}
    key = hashlib.sha256("\n".join([*names, *sorted(locked)]).encode()).hexdigest()[:16]
    return Job(stage=Stage.WHEELS, name=names[0], cells=tuple(item.cell for item in items), key=key)


def _images(of_plan: Sequence[Cell], compiled: Collection[str], gpus: Collection[str], size: int) -> list[Job]:
    place = {str(cell): number for number, cell in enumerate(of_plan)}
    runners: dict[str | None, list[Cell]] = {}
    for cell in of_plan:
        runners.setdefault(cell.gpu if cell.gpu in gpus else None, []).append(cell)
    made = []
    for gpu, mine in runners.items():
        alike = mine if size == 1 else sorted(mine, key=lambda cell: _stack(cell, compiled))
        for start in range(0, len(alike), size):
            names = sorted((str(cell) for cell in alike[start : start + size]), key=place.__getitem__)
            made.append(Job(stage=Stage.IMAGES, name=names[0], cells=tuple(names), gpu=gpu))
    return sorted(made, key=lambda job: place[job.name])


def _stack(cell: Cell, compiled: Collection[str]) -> tuple[object, ...]:
    """Cells next to each other by this share the most bytes."""
    return (cell.torch, cell.cuda, cell.python, str(cell) in compiled, cell.gpu, cell.transformers, str(cell))


def labels(text: str) -> tuple[str, ...]:
    """Runner labels as they are typed, `self-hosted,build`."""
    found = tuple(filter(None, re.split(r"[,\s]+", text.strip())))
    wrong = [label for label in found if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", label)]
    if wrong or not found:
        raise UsageError(f"{text!r} does not name runners; write labels with commas between them")
    return found


def architectures(text: str) -> tuple[str, ...]:
    """GPU architectures as they are typed, `sm_90,sm_80`; none when the text is empty."""
    found = tuple(filter(None, re.split(r"[,\s]+", text.strip())))
    for gpu in found:
        if not re.fullmatch(r"sm_[1-9][0-9]{1,2}", gpu):
            raise UsageError(f"{gpu!r} is not a GPU architecture; one is written like sm_90")
    return found
