"""What rules and facts say of a cell: its errors, and the attention settings that they predict to be refused. Pure.

The core keeps these judgements in `docker/judgements.json` and answers from there (`evidence.cell_answer`).
"""

from __future__ import annotations

from collections.abc import Mapping

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.evidence.cell_answer import CellError, CellJudgement, CellWarning, PredictedRefusal
from knowngood_facts.compat.findings import Finding, finding_from_box, sort_findings
from knowngood_facts.compat.matrix_cells import values_of_cell
from knowngood_facts.compat.suggestions import possible_warning_boxes, stated_condition_boxes
from knowngood_facts.compat.universe import Universe
from knowngood_facts.compat.value_domain import NONE, iterate_bits


def judge_cell(universe: Universe, cell: Cell, glibc: str | None = None) -> CellJudgement:
    """Return what rules and facts say of a cell; `glibc` is that of its base, where it is known."""
    index = universe.index
    return CellJudgement(
        errors=find_cell_errors(universe, cell, glibc),
        refusals=_predicted_refusals(universe, cell, index.errors),
        doubts=_predicted_refusals(universe, cell, index.unknown_errors),
        warnings=_find_warnings(universe, cell),
        drivers=_find_drivers(universe, cell),
    )


def _find_warnings(universe: Universe, cell: Cell) -> tuple[CellWarning, ...]:
    """Return what rules warn of in a cell, and the incidents that it has under conditions of use."""
    index, assignment = universe.index, _assignment_of_cell(universe, cell)
    bits = index.find_broken(assignment, index.advice | possible_warning_boxes(universe, {}))
    return tuple(
        CellWarning(id=item.id, because=item.because, when=item.when)
        for item in _findings(universe, assignment, {}, bits)
        if item.severity != "info"
    )


def _find_drivers(universe: Universe, cell: Cell) -> str:
    """Return which drivers run a cell on its GPU, as a specifier; empty where any does."""
    index, domain = universe.index, universe.index.domains["driver"]
    assignment, among = _assignment_of_cell(universe, cell), universe.index.errors & universe.index.mentions["driver"]
    runs = [not index.find_broken({**assignment, "driver": place}, among) for place in range(len(domain.values))]
    if all(runs) or not any(runs):
        return ""
    first = runs.index(True)
    above = next((place for place in range(first, len(runs)) if not runs[place]), None)
    clauses = [f">={domain.values[first]}" if first else "", f"<{domain.values[above]}" if above else ""]
    return ",".join(filter(None, clauses))


def judge_setting(universe: Universe, cell: Cell, setting: str) -> CellJudgement:
    """Return what rules and facts say of one attention setting in a cell, without the errors of the cell."""
    index = universe.index
    return CellJudgement(
        refusals=_predicted_refusals(universe, cell, index.errors, (setting,)),
        doubts=_predicted_refusals(universe, cell, index.unknown_errors, (setting,)),
    )


def _predicted_refusals(
    universe: Universe, cell: Cell, errors: int, settings: tuple[str, ...] = tuple(ATTENTION)
) -> dict[str, PredictedRefusal]:
    refusals = {}
    for setting in settings:
        if finding := _predicted_refusal(universe, cell, setting, errors):
            refusals[setting] = PredictedRefusal(rule=finding.id, because=finding.because)
    return refusals


def find_cell_errors(universe: Universe, cell: Cell, glibc: str | None = None) -> tuple[CellError, ...]:
    """Return the errors of a cell by rules and facts, under any attention setting and all conditions of use."""
    assignment, as_written = _assignment_of_cell(universe, cell), dict[str, str]()
    below = universe.index.domains["glibc"].mask(f"<={glibc}") if glibc else 0
    if glibc and below:
        assignment["glibc"] = below.bit_length() - 1
        as_written["glibc"] = glibc
    index = universe.index
    findings = _findings(
        universe, assignment, as_written, index.find_broken(assignment, index.errors | universe.build_errors)
    )
    return tuple(CellError(id=item.id, because=item.because, finding=item.document()) for item in findings)


def _assignment_of_cell(universe: Universe, cell: Cell) -> dict[str, int]:
    """Return variable -> place of the cell's value; a value that facts do not know is left out."""
    domains = universe.index.domains
    places = {
        name: len(domains[name].values) if value == NONE else domains[name].index.get(value)
        for name, value in values_of_cell(cell).items()
        if name in domains
    }
    return {name: place for name, place in places.items() if place is not None}


def _findings(
    universe: Universe, assignment: Mapping[str, int], as_written: Mapping[str, str], bits: int
) -> tuple[Finding, ...]:
    index = universe.index
    boxes = (index.boxes[bit] for bit in iterate_bits(bits))
    return tuple(sort_findings([finding_from_box(index, box, assignment, as_written, {}) for box in boxes]))


def _predicted_refusal(universe: Universe, cell: Cell, setting: str, errors: int) -> Finding | None:
    """Return the first of the errors, a bit set, that the cell has under this setting and not under all."""
    index = universe.index
    among: int = universe.cached(
        f"refusals of {setting} among {errors}",
        lambda: (errors | stated_condition_boxes(universe, {"attn": setting})) & index.mentions["attn"],
    )
    assignment = _assignment_of_cell(universe, cell) | {"attn": index.domains["attn"].index[setting]}
    bits = index.find_broken(assignment, among)
    return _findings(universe, assignment, {}, bits)[0] if bits else None
