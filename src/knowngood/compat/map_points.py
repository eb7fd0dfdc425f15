"""What the rules say about every point of the map: a GPU, a torch, a transformers and an attention setting. Pure.

A point is possible when what it leaves open (flash-attn, triton, Python, driver, glibc, nvcc) can be chosen so that no
rule is broken. It has the package of its attention setting, and no framework. About a hundred thousand points share a
few thousand sets of boxes in which their values lie, and each such set is searched once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood.compat.box_search import BoxSearch
from knowngood.compat.findings import DemandProblem, find_minimal_rules
from knowngood.compat.query_placement import FOREIGN_HOST
from knowngood.compat.suggestions import stated_condition_boxes
from knowngood.compat.universe import ATTENTION, CELL_PACKAGES, Universe
from knowngood.compat.value_domain import iterate_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAP_AXES = ("gpu", "torch", "transformers", "attn")
"""The axes of the map, in the order of a point."""
MapPoint = tuple[str, str, str, str]
"""A value on each of `MAP_AXES`."""

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
