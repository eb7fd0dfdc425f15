"""What `pick` answers: cells, or demands that collide. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from knowngood.cell import Cell
from knowngood.solving.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A cell that fulfils the request."""

    cell: Cell
    tier: str
    """How far it is proven; `none` for one that matrix.yaml does not have."""
    published: bool
    extras: Mapping[str, str]
    """Packages asked for besides the cell's axes."""
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """As `pick --json` has it."""
        return {
            "id": str(self.cell),
            "axes": {str(axis): value for axis, value in self.cell.axes().items()},
            "published": self.published,
            "tier": self.tier,
            "extras": dict(self.extras),
            "findings": [finding.document() for finding in self.findings],
        }


@dataclass(frozen=True, kw_only=True)
class Clash:
    """One demand of a minimal conflict."""

    demand: str
    rules: tuple[Mapping[str, Any], ...]
    relax: Mapping[str, Any] | None
    """`{"change": {...}, "cell": ...}`: the nearest value with which all the other demands can be met; `None` when
    giving this demand up alone does not help."""

    def document(self) -> dict[str, Any]:
        """As `pick --json` has it."""
        return {"demand": self.demand, "rules": [dict(rule) for rule in self.rules], "relax": self.relax}


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The answer to a request."""

    choices: tuple[Choice, ...]
    conflict: tuple[Clash, ...]
    considered: int
    """How many combinations of the cells' axes the answer is about."""
    findings: tuple[Finding, ...] = ()
    unknown: bool = False
    uncovered: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 found, 1 nothing fits, 3 facts do not cover the request."""
        return 0 if self.choices else 3 if self.unknown else 1

    def document(self) -> dict[str, Any]:
        """As `pick --json` has it."""
        return {
            "cells": [choice.document() for choice in self.choices],
            "conflict": [clash.document() for clash in self.conflict],
            "considered": self.considered,
            "findings": [finding.document() for finding in self.findings],
            "uncovered": dict(self.uncovered),
        }
