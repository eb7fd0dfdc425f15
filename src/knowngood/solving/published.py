"""The cells of matrix.yaml and what runs proved of them, as `check` and `pick` need them: read in milliseconds.

`knowngood.matrix` is the whole reading of that file, with every defect at its line; this one takes a sound file's
cells only (an integration test holds the two together).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from knowngood import evidence
from knowngood.cell import NO_FLASH_ATTN, Cell, parse
from knowngood.errors import UsageError
from knowngood.solving.factbook import Factbook
from knowngood.solving.findings import AXES
from knowngood.solving.placing import Placed, stated_packages
from knowngood.solving.query import Request


@dataclass(frozen=True, kw_only=True)
class Published:
    """The matrix's cells, and the folder of evidence."""

    cells: tuple[Cell, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """Of the evidence."""
    locked: frozenset[str] = frozenset()

    @cached_property
    def _runs(self) -> dict[str, list[evidence.Evidence]]:
        return {}

    @cached_property
    def proven(self) -> frozenset[str]:
        """The ids that there is evidence of."""
        if self.folder is None or not self.folder.is_dir():
            return frozenset()
        return frozenset(path.name for path in self.folder.iterdir() if path.is_dir())

    def runs(self, cell: str) -> list[evidence.Evidence]:
        """What runs saw of a cell."""
        if cell not in self.proven or self.folder is None:
            return []
        if cell not in self._runs:
            self._runs[cell] = evidence.load_all(self.folder, cell)[0]
        return self._runs[cell]

    def tier(self, cell: str) -> evidence.Tier:
        """How far a cell is proven."""
        return evidence.tier(self.runs(cell), locked=cell in self.locked)

    @cached_property
    def ranked(self) -> list[Cell]:
        """The cells, best proven first, then in the matrix's order."""
        order = list(evidence.Tier)
        return sorted(self.cells, key=lambda cell: -order.index(self.tier(str(cell))))

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        """Those of the cells, in the matrix's order."""
        return tuple(dict.fromkeys(cell.python for cell in self.cells))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """Those of the cells, the best proven first."""
        return tuple(dict.fromkeys(cell.gpu for cell in self.ranked))


def cells_of(matrix: Mapping[str, Any], book: Factbook) -> tuple[Cell, ...]:
    """The cells of matrix.yaml's plain data; entries that do not make sense are left to `knowngood.matrix`."""
    found: dict[str, Cell] = {}
    for item in matrix.get("cells") or ():
        axes = ("gpu", "base", "torch", "transformers", "flash-attn", "framework")
        lists = [_listed(item.get(key, "none")) for key in axes]
        for gpu, base, torch, transformers, flash, framework in itertools.product(*lists):
            cuda, triton = book.fact("torch", torch, "cuda"), book.fact("torch", torch, "triton")
            python = (matrix.get("bases") or {}).get(base, {}).get("python")
            try:
                cell = Cell(
                    gpu=gpu,
                    cuda=str(cuda),
                    torch=torch,
                    transformers=transformers,
                    flash_attn=NO_FLASH_ATTN if flash == "none" else flash,
                    triton=str(triton),
                    python=str(python),
                    framework=framework.replace("==", ""),
                )
            except UsageError:
                continue
            found.setdefault(str(cell), cell)
    return tuple(found.values())


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


@cache
def packages_of(cell: Cell) -> dict[str, str]:
    """The cell's axes that are packages, by distribution; `none` for the flash attention it does not have."""
    return {
        "torch": cell.torch,
        "transformers": cell.transformers,
        "triton": cell.triton,
        "flash-attn": cell.flash_attn if cell.flash_attn_package == "flash-attn" else "none",
        "flash-attn-4": cell.flash_attn if cell.flash_attn_package == "flash-attn-4" else "none",
        **dict([cell.framework_pin] if cell.framework_pin else []),
    }


def cell_with(published: Published, placed: Placed, point: Mapping[str, int]) -> str | None:
    """The published cell that has these values, the best proven first; `None` when there is none."""
    domains = placed.universe.compiled.domains
    wanted = {name: domains[name].text(place) for name, place in point.items()}
    if not {"torch", "transformers"} & set(wanted):
        return None
    ranges = {demand.variable: demand.mask for demand in placed.demands if demand.variable not in point}
    for cell in published.ranked:
        if cell.framework_pin and cell.framework_pin[0] not in wanted:
            continue
        has = packages_of(cell) | {"gpu": cell.gpu, "python": cell.python}
        if any(name not in has and value != "none" for name, value in wanted.items() if name not in AXES):
            continue
        if any(has[name] != value for name, value in wanted.items() if name in has):
            continue
        if all(mask >> domains[name].index.get(has[name], 10_000) & 1 for name, mask in ranges.items() if name in has):
            return str(cell)
    return None


def proves(published: Published, placed: Placed, request: Request) -> tuple[tuple[str, ...], bool]:
    """The runs that saw exactly this combination train, and whether one of them did on the GPU (with what is asked)."""
    packages = stated_packages(placed)
    if not published.proven or not {"torch", "transformers"} <= set(packages) or request.used:
        return (), False
    found: list[str] = []
    proven = False
    for name in sorted(published.proven):
        try:
            cell = parse(name)
        except UsageError:
            continue
        if _is_cell(cell, placed, packages, request):
            runs = [run for run in published.runs(name) if _shows(run, packages, placed, request)]
            found += [f"{run.cell}: {run.where}, {run.when}, suite {run.suite[:12]}" for run in runs]
            proven = proven or any(run.where is evidence.Where.CONTAINER_GPU for run in runs)
    return tuple(found), proven


def _is_cell(cell: Cell, placed: Placed, packages: Mapping[str, str], request: Request) -> bool:
    has = packages_of(cell)
    domains = placed.universe.compiled.domains
    if request.gpu is not None and ("gpu" not in placed.point or domains["gpu"].text(placed.point["gpu"]) != cell.gpu):
        return False
    if "python" in placed.point and domains["python"].text(placed.point["python"]) != cell.python:
        return False
    bare = {name: version.partition("+")[0] for name, version in packages.items()}
    return all(bare.get(name, "none" if name.startswith("flash") else has[name]) == has[name] for name in has)


def _shows(run: evidence.Evidence, packages: Mapping[str, str], placed: Placed, request: Request) -> bool:
    if run.where is evidence.Where.BARE or not run.ok or "pass" not in run.outcomes.values():
        return False
    installed: Mapping[str, str] = run.report.get("environment", {}).get("distributions", {})
    asked: Sequence[tuple[str, str]] = [*packages.items(), *placed.uncovered.items()]
    for name, version in asked:
        have = installed.get(name, "none").partition("+")[0]
        if version and version.partition("+")[0] != have:
            return False
    return request.attn is None or run.outcomes.get(request.attn) == "pass"
