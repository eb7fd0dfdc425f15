"""Answers the pages' questions about one kind of machine by `pick`, and says what speaks against its other cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.gpus import GpuMachine
from knowngood.evidence.cell_answer import SettingState, setting_state
from knowngood.evidence.cell_standing import CellStanding
from knowngood_facts.compat.cell_judgement import judge_setting
from knowngood_facts.compat.findings import fill_template
from knowngood_facts.compat.matrix_cells import PublishedCells, find_wanted_trainers, values_of_cell
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
    """The published cells, with what the catalog says of them, and the kind of machine that is asked about."""

    machine: GpuMachine
    known_standings: Mapping[str, CellStanding]

    def standing(self, cell: str) -> CellStanding:
        """Return what the runs of a cell prove, as in the catalog."""
        return self.known_standings.get(cell) or CellStanding()

    @property
    def own(self) -> list[Cell]:
        """The cells for this kind of machine, in the order of `rank`."""
        return [cell for cell in self.ranked if (cell.gpu, cell.host) == (self.machine.sm, self.machine.host)]


@dataclass(frozen=True, kw_only=True)
class GpuAnswers:
    """The answers to questions about one GPU; each is computed once."""

    universe: Universe
    published: GpuCells
    _answers: dict[SiteQuestion, PickAnswer] = field(default_factory=dict)

    def answer(self, question: SiteQuestion) -> PickAnswer:
        """Return what `pick` answers to a question."""
        if question not in self._answers:
            self._answers[question] = self._pick(question)
        return self._answers[question]

    def _pick(self, question: SiteQuestion) -> PickAnswer:
        request = question.request(self.published.machine.query)
        if question.pin and question.pin.partition("==")[0] not in self.universe.packages:
            return self._pick_with_trainer(question, settle_query(self.universe, request).query)
        return pick_cells(self.universe, request, self.published)

    def _pick_with_trainer(self, question: SiteQuestion, request: Query) -> PickAnswer:
        """Return only the cells of the matrix that have a trainer without facts; there may be none.

        What else its packages go with is resolved by their metadata, which takes too long to ask for every driver.
        """
        placement = place_query(self.universe, request)
        problem = pick_problem(placement, request, self.published)
        trainers = find_wanted_trainers(placement.packages, self.published.cells)
        choices = find_published_choices(placement, problem, self.published, trainers)
        fitting = (
            choice
            for choice in choices
            if choice.cell.framework_pin == tuple(question.pin.split("=="))
            and (not question.setting or self._offers(choice.cell, question.setting))
        )
        return PickAnswer(choices=tuple(fitting), conflict=(), considered=0)

    def _offers(self, cell: Cell, setting: str) -> bool:
        return self._state(cell, setting).trains

    def _state(self, cell: Cell, setting: str) -> SettingState:
        judgement = judge_setting(self.universe, cell, setting)
        return setting_state(judgement, cell, setting, self.published.standing(str(cell)))

    def knows(self, cell: Cell) -> bool:
        """Return whether there are facts about everything that a cell has."""
        domains = self.universe.index.domains
        values = values_of_cell(cell).items()
        return all(value == NONE or (name in domains and value in domains[name].index) for name, value in values)

    def against(self, cell: Cell, axis: str, value: str) -> list[str]:
        """Return why a published cell is no answer for an attention setting (`attn`) or a `driver`."""
        if axis == "attn":
            state = self._state(cell, value)
            if not state.trains and state.rule is None:
                return [f"{state.text}: {state.reason}"]
        index = self.universe.index
        # Packages that the cell does not decide are absent.
        values = dict.fromkeys(self.universe.packages, NONE) | values_of_cell(cell) | {axis: value}
        places = {name: index.domains[name].mask(text).bit_length() - 1 for name, text in values.items()}
        broken = index.find_broken(places, self._active_boxes[value if axis == "attn" else ""] & index.mentions[axis])
        point = {name: places[name] for name in (axis, "gpu")}
        boxes = (index.boxes[bit] for bit in iterate_bits(broken))
        return list(dict.fromkeys(fill_template(index.space, box.rule.because, box, point, {}) for box in boxes))

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
