"""Questions about one GPU, of which only those are put to `pick` whose answer does not follow from another's.

An answer's cells are the best of all that fit. So whatever else is asked for, as long as all of them fit that too they
stay the answer. And settings that no rule tells apart on this GPU have the same answers, unless one is part of what
collides, and so named in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from knowngood.cell import Cell
from knowngood.evidence import Tier
from knowngood.solving.domain import NONE, bits
from knowngood.solving.findings import word
from knowngood.solving.picking import pick, problem_of
from knowngood.solving.placing import place
from knowngood.solving.published import Published, packages_of
from knowngood.solving.query import Request, Wanted
from knowngood.solving.solve import Search
from knowngood.solving.universe import ATTENTION, Universe

if TYPE_CHECKING:
    from knowngood.solving.picked import Choice, Picked


class Question(NamedTuple):
    """What the page can ask about a GPU; empty parts are not asked."""

    setting: str = ""
    release: str = ""
    """A minor release of transformers."""
    pin: str = ""
    """A framework, as `xtuner==0.2.0`."""
    driver: str = ""

    def request(self, gpu: str) -> Request:
        """The question as `pick` takes it."""
        packages = []
        if self.release:
            packages.append(Wanted(name="transformers", specifier=f"=={self.release}.*"))
        if self.pin:
            name, _, version = self.pin.partition("==")
            packages.append(Wanted(name=name, specifier=f"=={version}"))
        axes = {"driver": self.driver} if self.driver else {}
        return Request(gpu=gpu, attn=self.setting or None, axes=axes, packages=tuple(packages))


@dataclass(frozen=True, kw_only=True)
class Narrowed(Published):
    """Published cells of which only some can answer, those that have what is asked for, with their tiers at hand."""

    gpu: str
    tiers: Mapping[str, str]
    release: str = ""
    """A minor release of transformers, when one is asked for."""

    def tier(self, cell: str) -> Tier:
        """As the catalog has it."""
        return Tier(self.tiers.get(cell, Tier.NONE))

    @cached_property
    def ranked(self) -> list[Cell]:
        """Best proven first, then in the matrix's order."""
        order = list(Tier)
        here = [cell for cell in self.cells if cell.gpu == self.gpu and is_of(cell.transformers, self.release)]
        return sorted(here, key=lambda cell: -order.index(self.tier(str(cell))))


def is_of(version: str, release: str) -> bool:
    """Whether 4.57.6 is of 4.57; every version is of none."""
    return not release or f"{version}.".startswith(f"{release}.")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """See the module's text."""

    universe: Universe
    published: Narrowed
    _by_release: dict[str, Narrowed] = field(default_factory=dict)
    _answers: dict[Question, Picked] = field(default_factory=dict)
    _places: dict[str, tuple[frozenset[str], int]] = field(default_factory=dict)

    def answer(self, question: Question) -> Picked:
        """What `pick` answers."""
        if question not in self._answers:
            self._answers[question] = self._following(question) or self._pick(question)
        return self._answers[question]

    def holds(self, picked: Picked, question: Question) -> bool:
        """Whether all cells of an answer to a wider question, and there are some, fit a narrower one."""
        if not self._wordless:
            return False
        return bool(picked.choices) and all(self._fits(choice, question) for choice in picked.choices)

    def _following(self, question: Question) -> Picked | None:
        if question.driver:
            wider = self.answer(question._replace(driver=""))
            if self.holds(wider, question):
                return wider
        if question.setting:
            wider = self.answer(question._replace(setting=""))
            if self.holds(wider, question):
                return wider
            twin = self._twins[question.setting]
            if twin != question.setting and self._wordless:
                alike = self.answer(question._replace(setting=twin))
                if not any(clash.demand.startswith("attn=") for clash in alike.conflict):
                    return alike
        return None

    def _pick(self, question: Question) -> Picked:
        return pick(self.universe, question.request(self.published.gpu), self._narrowed(question.release))

    def _narrowed(self, release: str) -> Narrowed:
        if release not in self._by_release:
            self._by_release[release] = replace(self.published, release=release)
        return self._by_release[release]

    def _fits(self, choice: Choice, question: Question) -> bool:
        """Whether no rule forbids the cell with the setting and the driver that are asked for."""
        compiled = self.universe.compiled
        point, live = self._inside(choice.cell, choice.extras)
        live &= self._counting[question.setting]
        sets = {"glibc": compiled.domains["glibc"].all, "nvcc": compiled.domains["nvcc"].all}
        for name, value in (("attn", question.setting), ("driver", question.driver)):
            if value:
                live &= ~compiled.outside[name][compiled.domains[name].index[value]]
                point |= {name}
            else:
                sets[name] = compiled.domains[name].all
        return Search(compiled=compiled, among=live).completes(sets, live, point)

    def knows(self, cell: Cell) -> bool:
        """Whether there are facts about all that a cell has."""
        domains = self.universe.compiled.domains
        values = {**packages_of(cell), "gpu": cell.gpu, "python": cell.python}
        return all(
            value == NONE or (name in domains and value in domains[name].index) for name, value in values.items()
        )

    def against(self, cell: Cell, axis: str, value: str) -> list[str]:
        """The rules that forbid a published cell with an attention setting (`attn`) or with a `driver`."""
        compiled = self.universe.compiled
        place_ = compiled.domains[axis].index[value]
        variables, live = self._inside(cell, {})
        live &= self._counting[value if axis == "attn" else ""] & compiled.mentions[axis]
        broken = live & ~compiled.outside[axis][place_] & compiled.within(variables | {axis})
        point = {axis: place_, "gpu": compiled.domains["gpu"].index[cell.gpu]}
        boxes = (compiled.boxes[bit] for bit in bits(broken))
        return list(dict.fromkeys(word(compiled.world, box.rule.because, box, point, {}) for box in boxes))

    def _inside(self, cell: Cell, extras: Mapping[str, str]) -> tuple[frozenset[str], int]:
        """A cell's variables, and the boxes that its values are inside of."""
        if (key := str(cell)) not in self._places:
            compiled = self.universe.compiled
            values = {**packages_of(cell), **extras, "gpu": cell.gpu, "python": cell.python}
            variables = frozenset((*self.universe.packages, "gpu", "python"))
            live = compiled.everything
            for name in variables:
                domain, value = compiled.domains[name], values.get(name, NONE)
                live &= ~compiled.outside[name][-1 if value == NONE else domain.index[value]]
            self._places[key] = variables, live
        return self._places[key]

    @cached_property
    def _counting(self) -> Mapping[str, int]:
        """Attention setting (or none) to the boxes that count with it."""
        requests = {setting: Question(setting).request(self.published.gpu) for setting in ("", *ATTENTION)}
        return {
            setting: problem_of(place(self.universe, request), request, self.published).among
            for setting, request in requests.items()
        }

    @cached_property
    def _wordless(self) -> bool:
        """Whether no advice that comes with a cell depends on, or names, the attention or the driver."""
        compiled = self.universe.compiled
        return not compiled.advice & (compiled.mentions["attn"] | compiled.mentions["driver"])

    @cached_property
    def _twins(self) -> Mapping[str, str]:
        """Attention setting to the first one with the same rules."""
        compiled = self.universe.compiled
        domain, outside = compiled.domains["attn"], compiled.outside["attn"]
        gpu = compiled.outside["gpu"][compiled.domains["gpu"].index[self.published.gpu]]
        first: dict[int, str] = {}
        found = {}
        for setting, place_ in domain.index.items():
            found[setting] = first.setdefault(self._counting[setting] & ~gpu & ~outside[place_], setting)
        return found
