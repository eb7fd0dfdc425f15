"""Answers the pages' questions about one kind of machine by `pick`, and says what speaks against its other cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.gpus import GpuMachine
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.evidence.cell_answer import SettingState, setting_state
from knowngood.evidence.cell_standing import CellStanding
from knowngood_facts.compat.cell_judgement import judge_setting
from knowngood_facts.compat.findings import fill_template
from knowngood_facts.compat.matrix_cells import PublishedCells, find_wanted_trainers, packages_of_cell
from knowngood_facts.compat.pick_answer import PickAnswer, find_published_choices, pick_cells, pick_problem
from knowngood_facts.compat.query import PackageSpec, Query
from knowngood_facts.compat.query_placement import place_query
from knowngood_facts.compat.universe import Universe
from knowngood_facts.compat.use_conditions import settle_query
from knowngood_facts.compat.value_domain import NONE, iterate_bits


class SiteQuestion(NamedTuple):
    """A question that the page can ask about a GPU; empty parts are not part of it."""

    setting: str = ""
    release: str = ""
    """A minor release of transformers, `4.57`."""
    pin: str = ""
    """A framework, as `xtuner==0.2.0`."""
    driver: str = ""

    def request(self, gpu: str) -> Query:
        """Return the question as `pick` takes it; `gpu` is the text of `--gpu`."""
        packages = []
        if self.release:
            packages.append(PackageSpec(name="transformers", specifier=f"=={self.release}.*"))
        if self.pin:
            name, _, version = self.pin.partition("==")
            packages.append(PackageSpec(name=name, specifier=f"=={version}"))
        axes = {"driver": self.driver} if self.driver else {}
        return Query(gpu=gpu, attn=self.setting or None, axes=axes, packages=tuple(packages))


@dataclass(frozen=True, kw_only=True)
class GpuCells(PublishedCells):
    """The published cells, of which only those of one kind of machine and one release can be answers."""

    machine: GpuMachine
    known_standings: Mapping[str, CellStanding]
    release: str = ""
    """A minor release of transformers, or empty for all."""

    def standing(self, cell: str) -> CellStanding:
        """Return what the runs of a cell prove, as in the catalog."""
        return self.known_standings.get(cell) or CellStanding()

    @cached_property
    def own(self) -> list[Cell]:
        """The cells that can be answers, in the order of `rank`."""
        axes = self.machine.sm, self.machine.host
        cells = (cell for cell in self.cells if (cell.gpu, cell.host) == axes)
        return self.rank(cell for cell in cells if is_of_release(cell.transformers, self.release))

    @cached_property
    def ranked(self) -> list[Cell]:
        """The cells that `pick` looks at; for a host with few facts, a cell of another can be its way out."""
        return self.own if self.machine.host is DEFAULT_HOST else self.rank(self.cells)


def is_of_release(version: str, release: str) -> bool:
    """Return whether a version is of a minor release, as 4.57.6 is of 4.57; every version is when that is empty."""
    return not release or f"{version}.".startswith(f"{release}.")


@dataclass(frozen=True, kw_only=True)
class GpuAnswers:
    """The answers to questions about one GPU; each is computed once."""

    universe: Universe
    published: GpuCells
    _by_release: dict[str, GpuCells] = field(default_factory=dict)
    _answers: dict[SiteQuestion, PickAnswer] = field(default_factory=dict)

    def answer(self, question: SiteQuestion) -> PickAnswer:
        """Return what `pick` answers to a question."""
        if question not in self._answers:
            self._answers[question] = self._pick(question)
        return self._answers[question]

    def _pick(self, question: SiteQuestion) -> PickAnswer:
        request = question.request(self.published.machine.query)
        published = self._cells_of(question.release)
        if question.pin and question.pin.partition("==")[0] not in self.universe.packages:
            return self._pick_with_trainer(question, settle_query(self.universe, request).query, published)
        return pick_cells(self.universe, request, published)

    def _pick_with_trainer(self, question: SiteQuestion, request: Query, published: GpuCells) -> PickAnswer:
        """Return only the cells of the matrix that have a trainer without facts; there may be none.

        What else its packages go with is resolved by their metadata, which takes too long to ask for every driver.
        """
        placement = place_query(self.universe, request)
        problem = pick_problem(placement, request, published)
        trainers = find_wanted_trainers(placement.packages, published.cells)
        choices = find_published_choices(placement, problem, published, trainers)
        fitting = (
            choice
            for choice in choices
            if choice.cell.framework_pin == tuple(question.pin.split("=="))
            and (not question.setting or self._offers(choice.cell, question.setting))
        )
        return PickAnswer(choices=tuple(fitting), conflict=(), considered=0)

    def _cells_of(self, release: str) -> GpuCells:
        if release not in self._by_release:
            self._by_release[release] = replace(self.published, release=release)
        return self._by_release[release]

    def _offers(self, cell: Cell, setting: str) -> bool:
        return self._state(cell, setting).trains

    def _state(self, cell: Cell, setting: str) -> SettingState:
        judgement = judge_setting(self.universe, cell, setting)
        return setting_state(judgement, cell, setting, self.published.standing(str(cell)))

    def knows(self, cell: Cell) -> bool:
        """Return whether there are facts about everything that a cell has."""
        domains = self.universe.index.domains
        values = {**packages_of_cell(cell), "gpu": cell.gpu, "python": cell.python}
        return all(
            value == NONE or (name in domains and value in domains[name].index) for name, value in values.items()
        )

    def against(self, cell: Cell, axis: str, value: str) -> list[str]:
        """Return why a published cell is no answer for an attention setting (`attn`) or a `driver`."""
        if axis == "attn":
            state = self._state(cell, value)
            if not state.trains and state.rule is None:
                return [f"{state.text}: {state.reason}"]
        index = self.universe.index
        values = self._values_of(cell, {}) | {axis: value}
        places = {name: index.domains[name].mask(text).bit_length() - 1 for name, text in values.items()}
        broken = index.find_broken(places, self._active_boxes[value if axis == "attn" else ""] & index.mentions[axis])
        point = {name: places[name] for name in (axis, "gpu")}
        boxes = (index.boxes[bit] for bit in iterate_bits(broken))
        return list(dict.fromkeys(fill_template(index.space, box.rule.because, box, point, {}) for box in boxes))

    def _values_of(self, cell: Cell, extras: Mapping[str, str]) -> dict[str, str]:
        """Return the value of each variable that a cell decides, with extra packages; other packages are absent."""
        absent = dict.fromkeys(self.universe.packages, NONE)
        return {**absent, **packages_of_cell(cell), **extras, "gpu": cell.gpu, "python": cell.python}

    @cached_property
    def _active_boxes(self) -> Mapping[str, int]:
        """Attention setting (or none) to the bit set of the boxes that apply with it."""
        gpu = self.published.machine.query
        requests = {
            setting: settle_query(self.universe, SiteQuestion(setting).request(gpu)).query
            for setting in ("", *ATTENTION)
        }
        return {
            setting: pick_problem(place_query(self.universe, request), request, self.published).among
            for setting, request in requests.items()
        }
