"""What `pick` answers to every question that the page can ask, made beforehand so that the page decides nothing.

A question is a GPU, an attention setting (or none), a minor release of transformers (or none) and a framework (or
none). The driver is a ladder: the answers for falling drivers, each with the least driver from which on it holds. For
the oldest drivers there is one answer whatever the transformers; the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.cell import Cell
from knowngood.site.asking import Asked, Narrowed, Question, is_of
from knowngood.solving.factbook import DRIVERS
from knowngood.solving.published import Published
from knowngood.solving.universe import Universe

if TYPE_CHECKING:
    from knowngood.solving.picked import Picked

NO_FRAMEWORK = ""


def minors(universe: Universe) -> list[str]:
    """The minor releases of transformers, newest first."""
    versions = universe.compiled.domains["transformers"].values
    return list(dict.fromkeys(".".join(version.split(".")[:2]) for version in reversed(versions)))


def frameworks(published: Published) -> list[str]:
    """The frameworks of published cells, as `xtuner==0.2.0`, after the choice of none."""
    pins = {cell.framework_pin for cell in published.cells if cell.framework_pin}
    return [NO_FRAMEWORK, *(f"{name}=={version}" for name, version in sorted(pins))]


def drivers(universe: Universe) -> list[str]:
    """The drivers that facts and rules tell apart, newest first; a driver counts as the greatest at or below it."""
    return [value for value in reversed(universe.compiled.domains["driver"].values) if value != "0"]


def minimum(universe: Universe) -> dict[str, str]:
    """CUDA as cells write it (`130`) to its least driver."""
    book = universe.world.book
    found = {version: book.fact(DRIVERS, version, "minimum") for version in book.versions(DRIVERS)}
    return {version.replace(".", ""): str(driver) for version, driver in found.items() if driver}


@dataclass(kw_only=True)
class Table:
    """The answers for one GPU, each different one once."""

    universe: Universe
    published: Narrowed

    def __post_init__(self) -> None:
        self.gpu = self.published.gpu
        self.asked = Asked(universe=self.universe, published=self.published)
        self._answers: dict[str, int] = {}
        self._ladders: dict[tuple[tuple[str, int], ...], int] = {}
        self._texts: dict[str, int] = {}
        self._told: list[Any] = []

    def document(self, settings: Sequence[str], releases: Sequence[str], pins: Sequence[str]) -> dict[str, Any]:
        """`rows[framework][setting]`: a ladder for any transformers, then one a minor release."""
        rows = {
            pin: {setting: self._row(setting, ["", *self._releases(pin, releases)], pin) for setting in ["", *settings]}
            for pin in pins
        }
        return {
            "gpu": self.gpu,
            "transformers": {pin: list(self._releases(pin, releases)) for pin in pins},
            "rows": rows,
            "ladders": [[list(step) for step in ladder] for ladder in self._ladders],
            "answers": self._told,
            "others": [self._other(cell, settings) for cell in self.published.ranked if self.asked.knows(cell)],
            "texts": list(self._texts),
        }

    def _other(self, cell: Cell, settings: Sequence[str]) -> dict[str, Any]:
        """What forbids a published cell, for where it is not among the answers."""
        told: dict[str, Any] = {"id": str(cell)}
        for axis, values in (("attn", settings), ("driver", drivers(self.universe))):
            against = {value: self.asked.against(cell, axis, value) for value in values}
            told[axis] = {value: [self._text(text) for text in texts] for value, texts in against.items() if texts}
        return told

    def _releases(self, pin: str, releases: Sequence[str]) -> Sequence[str]:
        """With a framework, those of the cells that have it."""
        if not pin:
            return releases
        name, _, version = pin.partition("==")
        found = {cell.transformers for cell in self.published.cells if cell.framework_pin == (name, version)}
        return [release for release in releases if any(is_of(text, release) for text in found)]

    def _row(self, setting: str, releases: Iterable[str], pin: str) -> list[int]:
        every = drivers(self.universe)
        # Below the last but one driver (CUDA 11's) one release of transformers is hardly ever what matters.
        return [self._ladder(Question(setting, release, pin), every[:-1] if release else every) for release in releases]

    def _ladder(self, question: Question, known: Iterable[str]) -> int:
        """Downwards: where an answer's cells run with the next older driver too, so does the answer hold."""
        steps: list[tuple[str, int]] = []
        picked = self.asked.answer(question)
        for driver in known if picked.choices else drivers(self.universe)[-1:]:
            older = question._replace(driver=driver)
            if picked.choices and not self.asked.holds(picked, older):
                picked = self.asked.answer(older)
            number = self._answer(picked)
            if steps and steps[-1][1] == number:
                steps[-1] = (driver, number)
            else:
                steps.append((driver, number))
        return self._ladders.setdefault(tuple(steps), len(self._ladders))

    def _answer(self, picked: Picked) -> int:
        document: dict[str, Any] = {}
        if picked.choices:
            document["cells"] = [
                {
                    "id": str(choice.cell),
                    "published": choice.published,
                    "extras": dict(choice.extras),
                    "findings": [self._text(finding.because) for finding in choice.findings],
                }
                for choice in picked.choices
            ]
        if picked.conflict:
            document["conflict"] = [
                {
                    "demand": clash.demand,
                    "rules": [self._text(str(rule["because"])) for rule in clash.rules],
                    "relax": clash.relax,
                }
                for clash in picked.conflict
            ]
        key = repr(document)
        if key not in self._answers:
            self._answers[key] = len(self._answers)
            self._told.append(document)
        return self._answers[key]

    def _text(self, said: str) -> int:
        return self._texts.setdefault(said, len(self._texts))
