"""The list of the checks of the trainers that are in this folder. Pure data, like ``smoke_tests.catalogue``.

Each trainer has a module ``NAME_checks.py`` with its ``DISTRIBUTION``, the ``MODULES`` that answer for the first part
of a check's detail, its ``checks()``, and the ``REFUSALS`` by which it says that it cannot do something;
``SETTING_REFUSALS``, where it has them, hold for the checks of settings without a trainer. The suite of a cell has only
the list of its own trainer, so that nothing here names one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke_tests.catalogue import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 300.0  # the first check of a trainer imports it: half a minute on a busy machine
FAMILIES = ("qwen2", "qwen3")
FUSED = ("fa2", "fa4")
PLAIN = ("eager", "sdpa")


@dataclass(frozen=True)
class Fault:
    """A fault that is put into a trainer's path on purpose, the check that must notice it, and for which reason."""

    name: str
    layout: str
    mode: str
    reason: str = "first-step-off"
    """What the check must say (``demands.py``): anything else is an accident, and the fault is not noticed."""


LATER_FAULTS = (
    Fault("labels-shifted-later", "padded", "full", "later-step-off"),
    Fault("decay-unasked", "padded", "full", "update-off"),
    Fault("layer-saved-stale", "padded", "full", "saved-elsewhere"),
    Fault("adapter-saved-halved", "padded", "lora", "saved-elsewhere"),
)
"""What a first step does not show, in every trainer that is transformers' Trainer underneath."""


def lists() -> list[Any]:
    """The modules with the lists of the trainers that are in this folder."""
    files = sorted(Path(__file__).parent.glob("*_checks.py"))
    return [importlib.import_module(f"smoke_tests.trainers.{file.stem}") for file in files]


def trainers() -> Iterator[Check]:
    """The checks of every trainer that is in this folder; those of one that is not installed are not run."""
    for module in lists():
        yield from module.checks()


def trainer_check(  # noqa: PLR0913 - they are the parts of its id
    detail: str, dtype: str, layout: str, mode: str, *, setting: str = "sdpa", quick: bool = False
) -> Check:
    """A check whose id is ``trainer/DETAIL/SETTING/DTYPE/LAYOUT/MODE``."""
    return Check("trainer", setting, dtype, layout, mode, detail=detail, quick=quick, timeout=TIMEOUT)


def fault_checks(
    trainer: str, faults: tuple[Fault, ...], *, dtype: str = "fp32", setting: str = "sdpa"
) -> Iterator[Check]:
    """A check for each fault, ``trainer/TRAINER/FAULT/...``; all are quick."""
    for fault in faults:
        yield trainer_check(f"{trainer}/{fault.name}", dtype, fault.layout, fault.mode, setting=setting, quick=True)
