"""The list of checks: settings x precisions x layouts x modes, without the points that say nothing new.

Pure data; nothing heavy is imported, so the list exists even where torch cannot be imported at all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smoke_tests.library_faults import OPTIMIZER
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import FLASH, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUTS = ("dense", "right-padded", "left-padded", "packed")
SLOW_SETTINGS = {"flex": 240.0, "fa4": 240.0}  # compiled at first use
MEASURING = ("speed", "fault")  # alone on the GPU: they measure it, fill it or break its worker
TIMEOUT = 120.0
IMPORTING = 600.0  # a framework, anew for every check: 21 s on an idle core, minutes on a busy machine


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

    @property
    def compiles(self) -> str:
        """The group of checks that compile the same, which is most of their time; empty where that is little.

        It is empty for a trainer's checks too: they start processes and take ports and memory of their own.
        """
        if self.detail == "inductor":
            return self.detail
        if self.topic not in ("training", "mutant", "speed"):
            return ""
        if self.setting == "flex":
            return f"{self.setting}/{self.dtype}"
        return self.setting if self.setting in SLOW_SETTINGS else ""


def training() -> Iterator[Check]:
    """The checks that train the tiny model."""
    for setting, dtype, layout in itertools.product(SETTINGS, PRECISIONS, LAYOUTS):
        if setting == "flex" and dtype in ("fp16", "bf16-pure", "fp16-pure") and "padded" in layout:
            continue  # seconds of compiling each, and the mask is the one of bf16
        dtypes = ("bf16",) if setting in SLOW_SETTINGS and layout == "packed" else ("fp32", "bf16")
        quick = dtype in dtypes and (layout in ("dense", "packed") or setting == "sdpa")
        yield _training(setting, dtype, layout, "full", quick=quick)
    for setting in SETTINGS:
        for dtype in ("fp32", "bf16"):
            yield _training(setting, dtype, "packed-varlen" if setting in FLASH else "packed-mask", "full")
        yield _training(setting, "bf16", "dense", "lora")
        yield _training(setting, "bf16", "dense", "checkpointing")
        yield _training(setting, "fp32", "dense", "checkpointing")
        yield _training(setting, "bf16", "dense", "use-cache")
        yield _training(setting, "bf16", "packed", "use-cache")


def _training(setting: str, dtype: str, layout: str, mode: str, *, quick: bool = False) -> Check:
    timeout = SLOW_SETTINGS.get(setting, TIMEOUT)
    return Check("training", setting, dtype, layout, mode, quick=quick, timeout=timeout)


def mutants() -> Iterator[Check]:
    """Faults that the comparison with the reference must notice, under the settings without a compile of minutes."""
    layouts = {"padding-ignored": "left-padded", "seams-ignored": "packed"}
    masked = ("causality-off-by-one",)  # needs a mask of our own, which flash-attn does not take
    sharp = ("scale-3-percent", "query-gradient-5-percent", "value-gradient-5-percent", "value-fp8", "noise-2-percent")
    names = ("scale-dropped", *sharp, "heads-swapped", "groups-tiled", "causality-dropped", *masked, *layouts)
    for setting, dtype in (("eager", "fp32"), ("eager", "bf16"), ("sdpa", "bf16"), ("fa2", "bf16"), ("fa4", "bf16")):
        for name in names:
            if name not in masked or setting not in FLASH:
                layout = layouts.get(name, "dense")
                quick = setting == "eager" and dtype == "bf16"
                yield Check("mutant", setting, dtype, layout, detail=name, quick=quick)
    for fault in OPTIMIZER:
        for dtype in fault.dtypes:
            yield Check("mutant", "sdpa", dtype, "dense", detail=fault.name)


def toolchain() -> Iterator[Check]:
    """The compilers that Triton and Inductor call at run time."""
    for detail in ("c", "c++", "ptx", "inductor"):
        yield Check("toolchain", detail=detail, quick=detail != "inductor")  # 12 to 28 s of compiling


def triton() -> Iterator[Check]:
    """A Triton kernel of our own."""
    yield Check("triton", detail="rotary", quick=True)


def extras() -> Iterator[Check]:
    """What flash-attn ships beside attention."""
    for detail in ("inventory", "rotary", "rms-norm", "cross-entropy"):
        yield Check("extras", detail=detail)


def frameworks() -> Iterator[Check]:
    """A framework's own way of training Qwen2."""
    layouts = {
        "xtuner": ("as-installed", "padded", "packed", "packed-varlen"),
        "openrlhf": ("left-padded", "right-padded", "packed"),
        "transformer-engine": ("context-parallel-call", "attention"),
    }
    quick = ("as-installed", "padded", "right-padded", "context-parallel-call", "attention")
    for name, its in layouts.items():
        for layout in its:
            yield Check("framework", layout=layout, detail=name, quick=layout in quick, timeout=IMPORTING)


def speed() -> Iterator[Check]:
    """Figures of time and memory."""
    for setting in SETTINGS:
        if setting != "sdpa-math":
            yield Check("speed", setting, "bf16", timeout=SLOW_SETTINGS.get(setting, TIMEOUT))


def faults() -> Iterator[Check]:
    """Faults of a worker."""
    for detail, timeout in (("segfault", 60.0), ("hang", 10.0), ("out-of-memory", 60.0), ("kernel", 60.0)):
        yield Check("fault", detail=detail, timeout=timeout)


def select(checks: Iterator[Check], *, quick: bool) -> list[Check]:
    """The checks to run, the quick ones alone if asked."""
    return [check for check in checks if check.quick or not quick]


TOPICS = {made.__name__: made for made in (toolchain, triton, training, mutants, extras, frameworks, speed, faults)}
