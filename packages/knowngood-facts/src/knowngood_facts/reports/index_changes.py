"""What changed on the package index: locked files that are gone or differ, and new releases of every axis. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.cell import AXIS_PACKAGES, Cell
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlySeverity
from knowngood_facts.compat import query
from knowngood_facts.compat.check_answer import CheckVerdict, check_query
from knowngood_facts.compat.matrix_cells import PublishedCells, packages_of_cell
from knowngood_facts.compat.pick_answer import pick_cells

if TYPE_CHECKING:
    from knowngood_facts.compat.universe import Universe

_DERIVED = {"torch": ("triton",)}
"""Package to those whose version follows from its release."""


@dataclass(frozen=True, kw_only=True)
class UpstreamRelease:
    """A release that the committed facts do not have."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True, kw_only=True)
class UpstreamAxis:
    """The releases of one axis, on the index and in the matrix."""

    package: str
    newest: str | None
    """The newest final release that has facts."""
    in_cells: str | None
    """The newest release that a cell has."""
    new: tuple[str, ...] = ()
    """The releases that the committed facts do not have."""


@dataclass(frozen=True, kw_only=True)
class ReleaseVerdict:
    """The answer of `check` for a cell in which a new release replaces the cell's own."""

    cell: str
    verdict: CheckVerdict
    ids: tuple[str, ...]
    """The rules and incidents that forbid it."""


def list_axis_packages(cells: Iterable[Cell]) -> list[str]:
    """Return the packages whose releases matter to these cells."""
    frameworks = {cell.framework_pin[0] for cell in cells if cell.framework_pin}
    return [*AXIS_PACKAGES, *sorted(frameworks)]


def compare_axis(package: str, known: Sequence[str], cells: Iterable[Cell], new: Sequence[str]) -> UpstreamAxis:
    """Compare an axis with the cells; `known` are all releases that have facts, `new` those that are new among them."""
    final = [version for version in known if not Version(version).is_prerelease]
    used = [version for cell in cells if (version := packages_of_cell(cell).get(package, "none")) != "none"]
    return UpstreamAxis(
        package=package,
        newest=max(final, key=Version, default=None),
        in_cells=max(used, key=Version, default=None),
        new=tuple(sorted(new, key=Version)),
    )


def judge_release(
    universe: Universe, published: PublishedCells, release: UpstreamRelease, cells: Iterable[Cell]
) -> list[ReleaseVerdict]:
    """Return a verdict for each cell that has the package, with the new release instead of its own."""
    verdicts = []
    for cell in cells:
        pins = packages_of_cell(cell)
        if pins.get(release.package, "none") == "none":
            continue
        kept = {name: pin for name, pin in pins.items() if name not in _DERIVED.get(release.package, ())}
        packages = {**kept, release.package: release.version}
        request = query.query_from_document({"gpu": cell.gpu, "python": cell.python, "packages": packages})
        answer = check_query(universe, request, published, suggest=False)
        ids = [item.id for item in answer.findings if item.severity == "error"]
        verdicts.append(ReleaseVerdict(cell=str(cell), verdict=answer.verdict, ids=tuple(dict.fromkeys(ids))))
    return verdicts


def propose_cells(
    universe: Universe, published: PublishedCells, release: UpstreamRelease, gpus: Iterable[str]
) -> dict[str, str]:
    """Return for each GPU the new cell that `pick` makes of a release, or `none: ` and why it makes none."""
    proposals = {}
    for gpu in gpus:
        request = query.query_from_document({"gpu": gpu, "packages": {release.package: release.version}})
        answer = pick_cells(universe, request, published, count=1)
        if answer.choices:
            proposals[gpu] = str(answer.choices[0].cell)
        elif answer.conflict:
            reasons = (str(rule["because"]) for clash in answer.conflict for rule in clash.rules)
            proposals[gpu] = f"none: {next(reasons, 'the demands collide')}"
        else:
            proposals[gpu] = "none: facts do not cover it"
    return proposals


def release_finding(
    release: UpstreamRelease,
    verdicts: Sequence[ReleaseVerdict],
    proposals: Mapping[str, str],
    broken_uses: Mapping[str, str],
) -> NightlyFinding:
    """Return the finding about one new release; `broken_uses` has a caller -> what breaks in it."""
    fits = [item for item in verdicts if item.verdict in (CheckVerdict.COMPATIBLE, CheckVerdict.VERIFIED)]
    parts = [f"{release}: fits {len(fits)} of {len(verdicts)} cells" if verdicts else f"{release}: no cell has it"]
    parts += [f"{name} breaks: {text}" for name, text in broken_uses.items()]
    cells = list(dict.fromkeys(cell for cell in proposals.values() if not cell.startswith("none: ")))
    more = f" and {len(cells) - 1} for other GPUs" if len(cells) > 1 else ""
    parts.append(f"pick makes {cells[0]}{more}" if cells else f"pick makes {next(iter(proposals.values()), 'none')}")
    if broken := [item for item in verdicts if item.verdict is CheckVerdict.BROKEN]:
        ids = dict.fromkeys(name for item in broken for name in item.ids)
        parts.append(f"breaks {len(broken)} ({', '.join(ids)})")
    return NightlyFinding(
        check=NightlyCheck.UPSTREAM,
        kind="release",
        severity=NightlySeverity.WARNING if broken_uses else NightlySeverity.INFO,
        subject=str(release),
        text="; ".join(parts),
        cells=tuple(item.cell for item in fits),
    )
