"""The list of checks: settings x precisions x layouts x modes, without the points that say nothing new.

Pure data; nothing heavy is imported, so the list exists even where torch cannot be imported at all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import FLASH, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUTS = ("dense", "right-padded", "left-padded", "packed")
MODES = ("full", "lora", "checkpointing", "use-cache")
SLOW_SETTINGS = {"flex": 240.0, "fa4": 240.0}  # compiled at first use
TIMEOUT = 120.0


@dataclass(frozen=True)
class Check:
    """One point of the suite. Its id is its one name, in the terminal, the report and the predictions."""

    topic: str
    setting: str = ""
    dtype: str = ""
    layout: str = ""
    mode: str = ""
    detail: str = ""
    quick: bool = False
    timeout: float = TIMEOUT

    @property
    def id(self) -> str:
        """``sdpa-math/fp32/dense/full``; topics other than training come first: ``speed/sdpa/bf16``."""
        parts = (self.detail, self.setting, self.dtype, self.layout, self.mode)
        return "/".join(filter(None, parts if self.topic == "training" else (self.topic, *parts)))


def training() -> Iterator[Check]:
    """The checks that train the tiny model."""
    for setting, dtype, layout in itertools.product(SETTINGS, PRECISIONS, LAYOUTS):
        quick = dtype in ("fp32", "bf16") and (layout in ("dense", "packed") or setting == "sdpa")
        yield _training(setting, dtype, layout, "full", quick=quick)
    for setting in SETTINGS:
        for dtype in ("fp32", "bf16"):
            yield _training(setting, dtype, _marked_packing(setting), "full")
        for mode, layout in itertools.product(MODES[1:], ("dense", "packed")):
            if mode == "use-cache" or layout == "dense":
                yield _training(setting, "bf16", layout, mode)
        yield _training(setting, "fp32", "dense", "checkpointing")


def _marked_packing(setting: str) -> str:
    return "packed-varlen" if setting in FLASH else "packed-mask"


def _training(setting: str, dtype: str, layout: str, mode: str, *, quick: bool = False) -> Check:
    timeout = SLOW_SETTINGS.get(setting, TIMEOUT)
    return Check("training", setting, dtype, layout, mode, quick=quick, timeout=timeout)


def select(checks: Iterator[Check], *, quick: bool) -> list[Check]:
    """The checks to run, the quick ones alone if asked."""
    return [check for check in checks if check.quick or not quick]


TOPICS = {"training": training}
