"""When to ask Slurm again: soon after something was handed in, then less and less often. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from knowngood.fleet.slurm_states import Place, Said

SHORTEST, LONGEST, GROWTH = 1.0, 30.0, 1.5
"""Seconds. Between two questions, what jobs leave on shared storage is looked at; nobody is asked for that."""


@dataclass(kw_only=True)
class Pace:
    """What Slurm said last, and when it is asked again."""

    clock: Callable[[], float]
    said: Mapping[Place, Said] = field(default_factory=dict)
    _next: float = 0.0
    _pause: float = SHORTEST

    def due(self, places: set[Place]) -> bool:
        """Whether to ask now: it is time, or there are jobs of which nothing was said yet."""
        if not places <= self.said.keys():
            self.soon()
        return self.clock() >= self._next

    def heard(self, said: Mapping[Place, Said]) -> None:
        """Slurm has answered."""
        self.said = {**self.said, **said}
        self._next = self.clock() + self._pause
        self._pause = min(self._pause * GROWTH, LONGEST)

    def soon(self) -> None:
        """Something was changed: the answer will be another one."""
        self._pause = SHORTEST
        self._next = min(self._next, self.clock() + SHORTEST)
