"""The list of checks of a model: settings x precisions x layouts, the formulas, faults on purpose, times. Pure data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoke_tests.settings import FLASH, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PRECISIONS = ("fp32", "bf16", "fp16")
LAYOUTS = ("dense", "right-padded", "left-padded", "packed")
QUICK_LAYOUTS = ("left-padded", "packed")
COMPILED = ("flex", "fa4")
KERNEL_FAULTS = (
    *("scale-1-percent", "scale-3-percent", "query-gradient-1-percent", "query-gradient-5-percent"),
    *("key-gradient-1-percent", "value-gradient-1-percent"),
)
TIMEOUT, COMPILING = 240.0, 420.0


@dataclass(frozen=True)
class ModelCheck:
    """One point of the suite; its id is its one name."""

    topic: str
    family: str
    setting: str = ""
    dtype: str = ""
    layout: str = ""
    detail: str = ""
    quick: bool = False

    @property
    def id(self) -> str:
        """``gemma2/sdpa/bf16/packed``, ``gemma2/formulas``, ``qwen2/fault/scale-1-percent/sdpa/bf16/dense``."""
        kind = {"model": "fault" if self.detail else "", "formulas": "formulas", "model-speed": "speed"}[self.topic]
        return "/".join(filter(None, (self.family, kind, self.detail, self.setting, self.dtype, self.layout)))

    @property
    def timeout(self) -> float:
        """Seconds after which the check is killed."""
        return COMPILING if self.setting in COMPILED else TIMEOUT

    @property
    def group(self) -> tuple[str, str, str]:
        """The checks that share a reference; a shard has all of a group or none."""
        return (self.family, self.dtype, "dense" if self.layout in ("", "dense") else "ragged")


def list_checks(family: str, *, faults: bool) -> Iterator[ModelCheck]:
    """All checks of a family, those that share a reference together."""
    yield ModelCheck("formulas", family, dtype="fp32", layout="right-padded", quick=True)
    for dtype, layout in itertools.product(PRECISIONS, (*LAYOUTS, "packed-varlen")):
        for setting in SETTINGS:
            if layout == "packed-varlen" and setting not in FLASH:
                continue
            quick = layout in QUICK_LAYOUTS and (dtype == "bf16" or (dtype == "fp32" and setting in ("eager", "sdpa")))
            yield ModelCheck("model", family, setting, dtype, layout, quick=quick)
        if faults and layout == "dense" and dtype != "fp32":
            for setting, detail in itertools.product(("eager", "sdpa", "fa2", "fa3", "fa4"), KERNEL_FAULTS):
                yield ModelCheck("model", family, setting, dtype, layout, detail)
    for setting in SETTINGS:
        # FlexAttention tries kernels of many sizes at first, for a minute on an H100.
        yield ModelCheck("model-speed", family, setting, "bf16", "dense", quick=setting != "flex")


def choose_shard(checks: Iterable[ModelCheck], number: int, count: int) -> list[ModelCheck]:
    """The checks of one of ``count`` shards, 1 the first; every check is in exactly one."""
    listed = list(checks)
    groups = list(dict.fromkeys(check.group for check in listed))
    own = set(groups[number - 1 :: count])
    return [check for check in listed if check.group in own]
