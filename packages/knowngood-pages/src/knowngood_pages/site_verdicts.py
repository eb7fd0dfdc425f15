"""Computes what `pick` answers to every question that the page can ask, so that the page decides nothing itself.

A question is a GPU, an attention setting (or none), a minor release of transformers that a published cell has (or
none) and a framework (or none). For the driver there is a ladder: the answers for ever older drivers, each with the
oldest driver for which it holds. For the oldest drivers there is one answer for all releases of transformers, and the
page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from knowngood.core.cell import Cell
from knowngood_facts.compat.factbook import DRIVERS
from knowngood_facts.compat.matrix_cells import PublishedCells
from knowngood_facts.compat.universe import Universe
from knowngood_pages.site_questions import GpuAnswers, GpuCells, SiteQuestion

if TYPE_CHECKING:
    from knowngood_facts.compat.pick_answer import DemandClash, PickAnswer

NO_FRAMEWORK = ""


def list_releases(published: PublishedCells) -> list[str]:
    """Return the minor releases of transformers that published cells have, newest first.

    About others, of which there is no image, `pick` has to be asked on a machine.
    """
    versions = {cell.transformers for cell in published.cells}
    return list(
        dict.fromkeys(".".join(version.split(".")[:2]) for version in sorted(versions, key=Version, reverse=True))
    )


def list_frameworks(published: PublishedCells) -> list[str]:
    """Return the frameworks of published cells, as `xtuner==0.2.0`, after the choice of no framework."""
    pins = {cell.framework_pin for cell in published.cells if cell.framework_pin}
    return [NO_FRAMEWORK, *(f"{name}=={version}" for name, version in sorted(pins))]


_BEYOND_DRIVERS = "9999"
"""Newer than any driver: the least of a step that is only for questions without a driver."""


def list_drivers(universe: Universe) -> list[str]:
    """Return the drivers that facts and rules distinguish, newest first; any other counts as the next older one."""
    return [value for value in reversed(universe.index.domains["driver"].values) if value != "0"]


def list_minimum_drivers(universe: Universe) -> dict[str, str]:
    """Return the oldest driver for each CUDA release, which is written as in cells (`130`)."""
    book = universe.space.book
    minimum = {version: book.fact(DRIVERS, version, "minimum") for version in book.versions(DRIVERS)}
    return {version.replace(".", ""): str(driver) for version, driver in minimum.items() if driver}


_COSTS = ("attn", "transformers", "driver", "gpu")
"""What a demand is about, the cheapest to change first: a word in a script, a package, a machine, another machine."""


def change_cost(clash: DemandClash) -> int:
    """Return how much the way out of a conflict changes, to begin with the least; without a way out it comes last."""
    if clash.relax is None:
        return len(_COSTS) + 1
    (name,) = clash.relax["change"]
    # Any other name is that of a framework, which is a package too.
    return _COSTS.index(name if name in _COSTS else "transformers")


@dataclass(kw_only=True)
class GpuAnswerTable:
    """The answers for one kind of machine, in which each different answer, ladder and text is stored once."""

    universe: Universe
    published: GpuCells

    def __post_init__(self) -> None:
        self.answers = GpuAnswers(universe=self.universe, published=self.published)
        self._answers: dict[str, int] = {}
        self._ladders: dict[tuple[tuple[str, int], ...], int] = {}
        self._texts: dict[str, int] = {}
        self._answer_documents: list[Any] = []

    def document(self, settings: Sequence[str], releases: Sequence[str], pins: Sequence[str]) -> dict[str, Any]:
        """Return the data of the page.

        `rows[framework][setting]` has the number of a ladder for any transformers, then one for each minor release.
        """
        rows = {
            pin: {setting: self._row(setting, ["", *self._releases(pin, releases)], pin) for setting in ["", *settings]}
            for pin in pins
        }
        return {
            "gpu": self.published.machine.name,
            "transformers": {pin: list(self._releases(pin, releases)) for pin in pins},
            "rows": rows,
            "ladders": [[list(step) for step in ladder] for ladder in self._ladders],
            "answers": self._answer_documents,
            "others": [self._other(cell, settings) for cell in self.published.own if self.answers.knows(cell)],
            "texts": list(self._texts),
        }

    def _other(self, cell: Cell, settings: Sequence[str]) -> dict[str, Any]:
        """Return what forbids a published cell, for questions to which it is not an answer."""
        document: dict[str, Any] = {"id": str(cell)}
        for axis, values in (("attn", settings), ("driver", list_drivers(self.universe))):
            against = {value: self.answers.against(cell, axis, value) for value in values}
            document[axis] = {value: [self._text(text) for text in texts] for value, texts in against.items() if texts}
        return document

    def _releases(self, pin: str, releases: Sequence[str]) -> Sequence[str]:
        """Return the releases that a framework can be asked for with: those of the cells that have it."""
        if not pin:
            return releases
        name, _, version = pin.partition("==")
        versions = [cell.transformers for cell in self.published.cells if cell.framework_pin == (name, version)]
        return [release for release in releases if any(f"{text}.".startswith(f"{release}.") for text in versions)]

    def _row(self, setting: str, releases: Iterable[str], pin: str) -> list[int]:
        every = list_drivers(self.universe)
        # For the oldest driver (of CUDA 11), a single release of transformers hardly ever matters.
        return [
            self._ladder(SiteQuestion(setting, release, pin), every[:-1] if release else every) for release in releases
        ]

    def _ladder(self, question: SiteQuestion, known: Iterable[str]) -> int:
        """Return the number of a question's ladder.

        The newest driver may know the GPU no more; then the answer without a driver is a step of its own, which no
        driver reaches.
        """
        steps: list[tuple[str, int]] = []
        whole = self.answers.answer(question)
        first = self._answer(whole)
        drivers = list(known) if whole.choices else list_drivers(self.universe)[-1:]
        for driver, answer in zip(drivers, self._answers_by_driver(question, whole, drivers), strict=True):
            number = self._answer(answer)
            if not steps and number != first:
                steps.append((_BEYOND_DRIVERS, first))
            if steps and steps[-1][1] == number:
                steps[-1] = (driver, number)
            else:
                steps.append((driver, number))
        return self._ladders.setdefault(tuple(steps), len(self._ladders))

    def _answers_by_driver(
        self, question: SiteQuestion, whole: PickAnswer, drivers: Sequence[str]
    ) -> Sequence[PickAnswer]:
        """Return the answer for each driver, the newest first; `whole` is that without a driver.

        An older driver only takes away, if it knows the card. So between two drivers with the same cells are these.
        """
        if not whole.choices:
            return [whole] * len(drivers)
        answers: dict[int, PickAnswer] = {}
        gaps = [(0, len(drivers) - 1)]
        while gaps:
            newer, older = gaps.pop()
            for place in (newer, older):
                if place not in answers:
                    answers[place] = self.answers.answer(question._replace(driver=drivers[place]))
            if answers[newer].choices and answers[newer] == answers[older]:
                answers |= dict.fromkeys(range(newer, older), answers[newer])
            elif older - newer > 1:
                middle = (newer + older) // 2
                gaps += [(newer, middle), (middle, older)]
        return [answers[place] for place in range(len(drivers))]

    def _answer(self, answer: PickAnswer) -> int:
        """Return the number of an answer."""
        document: dict[str, Any] = {}
        if answer.choices:
            document["cells"] = [
                {
                    "id": str(choice.cell),
                    "published": choice.published,
                    "extras": dict(choice.extras),
                    "findings": [self._text(finding.because) for finding in choice.findings],
                }
                for choice in answer.choices
            ]
        if answer.conflict:
            document["conflict"] = [
                {
                    "demand": clash.demand,
                    "rules": [self._text(str(rule["because"])) for rule in clash.rules],
                    "sources": sorted({self._text(source) for rule in clash.rules for source in rule["source"]}),
                    "relax": clash.relax,
                }
                for clash in sorted(answer.conflict, key=change_cost)
            ]
        key = repr(document)
        if key not in self._answers:
            self._answers[key] = len(self._answers)
            self._answer_documents.append(document)
        return self._answers[key]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))
