"""What a new release means for the matrix: the cells that it fits, the ones that it makes possible, and their locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.cell import AXIS_PACKAGES, Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.matrix import parse_matrix
from knowngood.core.matrix_entries import insert_matrix_entry, render_matrix_entry
from knowngood.lock.cell_locking import resolver_request
from knowngood.lock.resolver import resolve_distributions
from knowngood.project.checkout import MATRIX_FILE
from knowngood.reports.nightly_report import NightlyCheck, NightlyFinding, NightlySeverity
from knowngood_facts.cli.next_commands import cell_with_extras
from knowngood_facts.compat import query
from knowngood_facts.compat.check_answer import CheckVerdict, check_query
from knowngood_facts.compat.matrix_cells import PublishedCells, packages_of_cell
from knowngood_facts.compat.pick_answer import pick_cells

if TYPE_CHECKING:
    from knowngood.core.matrix import MatrixFacts
    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.compat.universe import Universe
    from knowngood_facts.reports.new_breaks import NewBreak

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
class CellProposal:
    """A cell that `pick` makes of a new release."""

    cell: Cell | None
    """`None` when it makes none."""
    extras: tuple[str, ...] = ()
    """Requirements that the id of the cell cannot name."""
    locks: bool | None = None
    """Whether all that the cell needs can be had; `None` when that was not tried, or the index did not answer."""
    note: str = ""
    """Why there is no cell or no lock, or how large the lock is."""

    def __str__(self) -> str:
        name = " with ".join(filter(None, [str(self.cell or "none"), ", ".join(self.extras)]))
        return f"{name}: {self.note}" if self.note else name


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


def propose_cells(known: CompatKnowledge, release: UpstreamRelease, gpus: Iterable[str]) -> dict[str, CellProposal]:
    """Return for each GPU the cell that `pick` makes of a release, or why it makes none."""
    proposals = {}
    for gpu in gpus:
        request = query.query_from_document({"gpu": gpu, "packages": {release.package: release.version}})
        answer = pick_cells(known.for_query(request, cells=True), request, known.published, count=1)
        if answer.choices:
            choice = answer.choices[0]
            if release.package not in packages_of_cell(choice.cell):  # `pick` leaves out what has no facts
                choice = replace(choice, extras={**choice.extras, release.package: release.version})
            cell, extras = cell_with_extras(choice)
            proposals[gpu] = CellProposal(cell=cell, extras=extras)
        elif answer.conflict:
            reasons = (str(rule["because"]) for clash in answer.conflict for rule in clash.rules)
            proposals[gpu] = CellProposal(cell=None, note=next(reasons, "the demands collide"))
        else:
            proposals[gpu] = CellProposal(cell=None, note="facts do not cover it")
    return proposals


def lock_proposal(proposal: CellProposal, text: str, facts: MatrixFacts, day: str) -> CellProposal:
    """Resolve a proposed cell with the releases up to a day, and return it with what came of it. Nothing is written.

    `text` is that of matrix.yaml, which gets the cell, and `facts` are those that it is checked against then.
    """
    cell = proposal.cell
    if cell is None:
        return proposal
    try:
        matrix = parse_matrix(text, MATRIX_FILE, facts)
        if str(cell) in matrix.entries:
            return replace(proposal, note="matrix.yaml has it")
        base = next((name for name, item in matrix.bases.items() if item.python == cell.python), None)
        if base is None:
            return replace(proposal, note=f"no base of matrix.yaml has Python {cell.python}")
        lines = render_matrix_entry(cell, base, proposal.extras)
        matrix = parse_matrix(insert_matrix_entry(text, MATRIX_FILE, lines).text, MATRIX_FILE, facts)
        if compiled := matrix.compiled_packages(cell):
            return replace(proposal, note=f"{', '.join(map(' '.join, compiled))} is to be compiled first")
        files = resolve_distributions(resolver_request(replace(matrix.entry(cell), locked_at=day), matrix))
    except KnowngoodError as error:
        return replace(proposal, locks=None if isinstance(error, MissingError) else False, note=str(error))
    return replace(proposal, locks=True, note=f"locks with {len(files)} distributions")


def release_finding(
    release: UpstreamRelease,
    verdicts: Sequence[ReleaseVerdict],
    proposals: Iterable[CellProposal],
    breaks: Sequence[NewBreak],
) -> NightlyFinding:
    """Return the finding about one new release: what it fits and breaks, and the cells that it makes possible."""
    fits = [item for item in verdicts if item.verdict in (CheckVerdict.COMPATIBLE, CheckVerdict.VERIFIED)]
    parts = [f"{release}: fits {len(fits)} of {len(verdicts)} cells" if verdicts else f"{release}: no cell has it"]
    parts += [f"{'breaks' if item.stops else 'fails in part'}: {item}" for item in breaks if item.imports]
    if functions := sum(item.functions for item in breaks if not item.imports):
        parts.append(f"{functions} functions of other packages fail when they run")
    parts += dict.fromkeys(f"pick makes {item}" for item in proposals)
    if broken := [item for item in verdicts if item.verdict is CheckVerdict.BROKEN]:
        ids = dict.fromkeys(name for item in broken for name in item.ids)
        parts.append(f"breaks {len(broken)} ({', '.join(ids)})")
    return NightlyFinding(
        check=NightlyCheck.UPSTREAM,
        kind="release",
        severity=NightlySeverity.WARNING
        if any(item.imports and not item.declared for item in breaks)
        else NightlySeverity.INFO,
        subject=str(release),
        text="; ".join(parts),
        cells=tuple(item.cell for item in fits),
    )
