"""The map: all points of the axes that people ask for, what the rules say of each, and what is known of it. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from knowngood.compat.box_search import BoxSearch
from knowngood.compat.cell_answer import SettingState, SettingStateKind, setting_state
from knowngood.compat.findings import DemandProblem, find_minimal_rules
from knowngood.compat.query_placement import FOREIGN_HOST
from knowngood.compat.suggestions import stated_condition_boxes
from knowngood.compat.universe import ATTENTION, CELL_PACKAGES, Universe
from knowngood.compat.value_domain import iterate_bits
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.pair_coverage import choose_covering_rows, list_value_pairs
from knowngood.evidence.cell_standing import CellStanding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


class PointState(StrEnum):
    """What is known of a point, from the most to the least."""

    SEEN_ON_GPU = "seen-on-gpu"
    """It was seen training on a GPU of this architecture, in an image or in a bare environment."""
    REFUSED = "refused"
    """The rules allow it, but a run refused it on a GPU of this architecture, or saw it train wrongly."""
    SEEN_ON_CPU = "seen-on-cpu"
    """It was seen training in an image on a CPU only: unseen on a GPU."""
    IN_MATRIX = "in-matrix"
    """A cell of matrix.yaml has it, and no run trained with it."""
    POSSIBLE = "possible"
    """No rule excludes it."""
    EXCLUDED = "excluded"
    """Rules exclude it, and no run trained with it on a GPU."""


STATE_LETTERS = {
    PointState.SEEN_ON_GPU: "g",
    PointState.REFUSED: "r",
    PointState.SEEN_ON_CPU: "c",
    PointState.IN_MATRIX: "m",
    PointState.POSSIBLE: ".",
    PointState.EXCLUDED: "x",
}
"""The letter of each state in the grids of the document."""
MapPoint = tuple[str, str, str, str]
"""A value on each of `MAP_AXES`."""


@dataclass(frozen=True, kw_only=True)
class MatrixMap:
    """The state of every point, and why rules exclude some."""

    values: Mapping[str, Sequence[str]]
    """Axis -> its values."""
    states: Mapping[MapPoint, PointState]
    reasons: Mapping[MapPoint, tuple[str, ...]]
    """Point -> the ids of the rules that exclude it, for those that any rule excludes."""
    matrix: frozenset[MapPoint]
    """The points that a cell of matrix.yaml has, whatever runs saw of them."""

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many points each state has."""
        numbers = Counter(self.states.values())
        return {str(state): numbers[state] for state in PointState}

    @property
    def possible(self) -> list[MapPoint]:
        """The points that are not excluded."""
        return [point for point, state in self.states.items() if state is not PointState.EXCLUDED]

    @property
    def contradictions(self) -> list[MapPoint]:
        """The points with which a run trained on a GPU although rules exclude the newest releases there."""
        return [point for point in self.reasons if self.states[point] is not PointState.EXCLUDED]

    @cached_property
    def rules(self) -> list[tuple[str, int, int]]:
        """Each rule that excludes points, with how many, and how many that no other rule excludes; the most first."""
        every, alone = Counter[str](), Counter[str]()
        for rules, count in Counter(self.reasons.values()).items():
            every.update(dict.fromkeys(rules, count))
            alone.update(dict.fromkeys(rules if len(rules) == 1 else (), count))
        return [(rule, count, alone[rule]) for rule, count in every.most_common()]

    @cached_property
    def cover(self) -> list[MapPoint]:
        """Possible points in which every pair of values occurs that any possible point has; chosen greedily."""
        return sorted((row[0], row[1], row[2], row[3]) for row in choose_covering_rows(self.possible))

    @cached_property
    def pairs(self) -> int:
        """How many pairs of values are possible."""
        return len(list_value_pairs(self.cover))

    @property
    def least_cover(self) -> int:
        """A number of points below which no set covers all pairs: the most pairs that two axes have."""
        pairs = Counter((first, second) for first, _, second, _ in list_value_pairs(self.cover))
        return max(pairs.values(), default=0)

    @cached_property
    def matrix_pairs(self) -> int:
        """How many pairs of values the cells of the matrix have."""
        return len(list_value_pairs(self.matrix))

    def state_grids(self) -> dict[str, dict[str, list[str]]]:
        """Return GPU -> attention setting -> for each torch a letter for each transformers (`STATE_LETTERS`)."""
        return self._grids(lambda row: "".join(STATE_LETTERS[self.states[point]] for point in row))

    def document(self) -> dict[str, Any]:
        """Return the map as `cells --map --json` prints it; `states` and `excluded_by` have a row for each torch."""
        sets = list(dict.fromkeys(self.reasons.values()))
        numbers: dict[tuple[str, ...] | None, int] = {rules: place for place, rules in enumerate(sets)}
        numbers[None] = -1
        return {
            "axes": {name: list(self.values[name]) for name in MAP_AXES},
            "points": len(self.states),
            "counts": self.counts,
            "rules": [{"id": rule, "points": count, "alone": alone} for rule, count, alone in self.rules],
            "letters": {letter: str(state) for state, letter in STATE_LETTERS.items()},
            "states": self.state_grids(),
            "reasons": [list(rules) for rules in sets],
            "excluded_by": self._grids(lambda row: [numbers[self.reasons.get(point)] for point in row]),
            "contradictions": [list(point) for point in self.contradictions],
            "cover": {
                "method": "greedy",
                "rows": [list(point) for point in self.cover],
                "pairs": self.pairs,
                "at_least": self.least_cover,
                "pairs_in_matrix": self.matrix_pairs,
            },
        }

    def _grids(self, cell_row: Callable[[list[MapPoint]], Any]) -> dict[str, dict[str, list[Any]]]:
        """Return GPU -> attention setting -> for each torch what `cell_row` makes of its points, one a transformers."""
        gpus, torches, releases, settings = (self.values[name] for name in MAP_AXES)
        return {
            gpu: {
                setting: [cell_row([(gpu, torch, release, setting) for release in releases]) for torch in torches]
                for setting in settings
            }
            for gpu in gpus
        }


def build_matrix_map(universe: Universe, cells: Collection[Cell], standings: Mapping[str, CellStanding]) -> MatrixMap:
    """Return the map of a universe, with the cells of a matrix, and what the runs of these and other cells prove."""
    values = list_map_values(universe)
    reasons = dict(judge_points(universe, values))
    newest = {name: {minor_release(value): value for value in values[name]} for name in ("torch", "transformers")}
    states = {point: PointState.EXCLUDED if rules else PointState.POSSIBLE for point, rules in reasons.items()}
    matrix, order = set(), list(PointState)
    for cell in dict.fromkeys([*cells, *_cells_with_runs(standings)]):
        torch, transformers = (newest[name].get(minor_release(getattr(cell, name)), "") for name in newest)
        standing = standings.get(str(cell)) or CellStanding()
        for setting in ATTENTION:
            point = (cell.gpu, torch, transformers, setting)
            state = _point_state(setting_state(universe, cell, setting, standing))
            if point not in states or state is PointState.EXCLUDED:
                continue
            if cell in cells:
                matrix.add(point)
            elif state is PointState.IN_MATRIX:
                continue
            if order.index(state) < order.index(states[point]) and (not reasons[point] or state is order[0]):
                states[point] = state
    return MatrixMap(
        values=values,
        states=states,
        reasons={point: rules for point, rules in reasons.items() if rules},
        matrix=frozenset(matrix),
    )


def _cells_with_runs(standings: Iterable[str]) -> Iterator[Cell]:
    for name in sorted(standings):
        with contextlib.suppress(UsageError):  # the catalog reports folders that are no cell's
            yield parse_cell(name)


def _point_state(state: SettingState) -> PointState:
    """Return what the state of a setting in a cell of the matrix means for its point; EXCLUDED when it has none."""
    if state.kind is SettingStateKind.PREDICTED:
        return PointState.IN_MATRIX if state.trains else PointState.EXCLUDED
    return _STATES.get(state.kind, PointState.EXCLUDED)


_STATES = {
    SettingStateKind.SEEN_ON_GPU: PointState.SEEN_ON_GPU,
    SettingStateKind.SEEN_ON_CPU: PointState.SEEN_ON_CPU,
    SettingStateKind.REFUSED: PointState.REFUSED,
    SettingStateKind.WRONG: PointState.REFUSED,
}
MAP_AXES = ("gpu", "torch", "transformers", "attn")
"""The axes of the map, in the order of a point."""
FLASH_PACKAGES = {"fa2": "flash-attn", "fa4": "flash-attn-4"}
"""Attention setting -> the package of a cell's flash-attn axis that it needs."""


def minor_release(version: str) -> str:
    """Return the minor release of a version, as 4.57 of 4.57.6."""
    return ".".join(version.split(".")[:2])


def list_map_values(universe: Universe) -> dict[str, tuple[str, ...]]:
    """Return the values of each axis of the map.

    These are all GPU architectures, the newest release of each minor release of torch and of transformers (ascending;
    no pre-releases, withdrawn releases or builds of other indexes), and all attention settings.
    """
    values: dict[str, tuple[str, ...]] = {"gpu": tuple(universe.gpus.names)}
    for name in ("torch", "transformers"):
        domain = universe.index.domains[name]
        releases = domain.texts(universe.selectable[name] & domain.some)
        values[name] = tuple({minor_release(version): version for version in releases}.values())
    return values | {"attn": tuple(ATTENTION)}


def judge_points(universe: Universe, values: Mapping[str, Sequence[str]]) -> Iterator[tuple[MapPoint, tuple[str, ...]]]:
    """Yield every point of these values with the ids of the rules that exclude it; a possible point has none.

    A GPU whose hosts all have a CPU of Arm is excluded as a whole, because the images are x86-64.
    """
    index = universe.index
    foreign = {gpu for gpu in values["gpu"] if universe.gpus.has_only_arm_hosts([gpu])}
    tables = [
        [
            (value, index.domains[name].index[value], ~index.outside[name][index.domains[name].index[value]])
            for value in values[name]
        ]
        for name in MAP_AXES
    ]
    gpus, torches, releases, settings = tables
    for setting, attn_place, attn_mask in settings:
        judge = _SettingJudge(universe=universe, setting=setting)
        among = judge.among & attn_mask
        for gpu, gpu_place, gpu_mask in gpus:
            of_gpu = among & gpu_mask
            hosts = (FOREIGN_HOST,) if gpu in foreign else ()
            for torch, torch_place, torch_mask in torches:
                of_torch = of_gpu & torch_mask
                for transformers, place, mask in releases:
                    reasons = judge.reasons(of_torch & mask, (gpu_place, torch_place, place, attn_place))
                    yield (gpu, torch, transformers, setting), (*hosts, *reasons)


@dataclass(frozen=True, kw_only=True)
class _SettingJudge:
    """Judges the points of one attention setting; points that lie in the same boxes are judged once."""

    universe: Universe
    setting: str
    _answers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _proofs: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """Boxes that together leave no choice, with the ids of their rules."""

    @cached_property
    def absent(self) -> list[str]:
        """The packages that these points do not have."""
        package = FLASH_PACKAGES.get(self.setting)
        flash = set(FLASH_PACKAGES.values()) - {package}
        return [name for name in self.universe.packages if name not in CELL_PACKAGES or name in flash]

    @cached_property
    def among(self) -> int:
        """The boxes of errors that apply with the setting, without those that an absent package avoids."""
        index = self.universe.index
        live = index.errors | index.unknown_errors | index.boxes_of_rule.get("one-flash-attention", 0)
        live |= stated_condition_boxes(self.universe, {"attn": self.setting})
        for name in self.absent:
            live &= ~index.outside[name][-1]
        return live

    @cached_property
    def open_values(self) -> dict[str, int]:
        """The values that the packages may have which a point leaves open: they are there, in a final release."""
        some = self.universe.index.domains
        left = [name for name in CELL_PACKAGES if name not in (*MAP_AXES, *self.absent)]
        return {name: self.universe.selectable[name] & some[name].some for name in left}

    def reasons(self, live: int, places: Sequence[int]) -> tuple[str, ...]:
        """Return the rules that exclude the point at these places, which lies in the boxes `live`."""
        if live not in self._answers:
            self._answers[live] = self._search(live, places)
        return self._answers[live]

    def _search(self, live: int, places: Sequence[int]) -> tuple[str, ...]:
        index = self.universe.index
        fixed = frozenset((*MAP_AXES, *self.absent))
        if broken := live & index.within(fixed):
            return self._rules(iterate_bits(broken))
        for boxes, rules in self._proofs:
            if not boxes & ~live:
                return rules
        if BoxSearch(index=index, among=live).can_complete(self.open_values, live, fixed):
            return ()
        sets = self.open_values | {name: 1 << place for name, place in zip(MAP_AXES, places, strict=True)}
        sets |= {name: index.domains[name].absent for name in self.absent}
        rules = self._rules(find_minimal_rules(DemandProblem(index=index, demands=(), base=sets, among=live), ()))
        self._proofs.append((live & sum(index.boxes_of_rule[rule] for rule in rules), rules))
        return rules

    def _rules(self, bits: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted({self.universe.index.boxes[bit].rule.id for bit in bits}))
