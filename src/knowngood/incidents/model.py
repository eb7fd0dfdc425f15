"""One known failure: what it looks like in a log, which combinations it concerns, why, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packaging.specifiers import SpecifierSet

from knowngood.diagnosing.signature import Signature


class Kind(StrEnum):
    """What sort of failure it is."""

    API_REMOVED = "api-removed"
    SIGNATURE_CHANGED = "signature-changed"
    UNDEFINED_SYMBOL = "undefined-symbol"
    NO_KERNEL_IMAGE = "no-kernel-image"
    ARCH_REFUSED = "arch-refused"
    CUDA_MISMATCH = "cuda-mismatch"
    SOURCE_BUILD = "source-build"
    TRITON_COMPILE = "triton-compile"
    DTYPE = "dtype"
    PADDING = "padding"
    PACKING = "packing"
    MISSING_EXTENSION = "missing-extension"
    BOUNDS = "bounds"
    GLIBC = "glibc"
    DRIVER = "driver"
    PYTHON = "python"
    MEMORY = "memory"
    NUMERICS = "numerics"
    CONFIG = "config"


class Severity(StrEnum):
    """How it shows itself."""

    FAILURE = "failure"
    SILENT = "silent"
    HARMLESS = "harmless"


class RangeFrom(StrEnum):
    """Where `affected` comes from, when neither a contract nor a rule says it."""

    ARTEFACTS = "artefacts"
    THREAD = "thread"
    ENVIRONMENT = "environment"


CONFIDENCES = ("measured", "artefact", "maintainer", "reported")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A remedy: what to change, and what that costs."""

    note: str
    change: Mapping[str, str]
    cost: str = ""

    @property
    def ranges(self) -> dict[str, SpecifierSet]:
        """`change` as ranges."""
        return {name: SpecifierSet("" if text == "*" else text, prereleases=True) for name, text in self.change.items()}

    def document(self) -> dict[str, Any]:
        """As `diagnose --json` shows it."""
        return {
            **({"change": dict(self.change)} if self.change else {}),
            "note": self.note,
            **({"cost": self.cost} if self.cost else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One known failure; its parts are told in `knowngood.incidents.reading`."""

    id: str
    title: str
    kind: Kind
    severity: Severity
    component: str
    signatures: tuple[Signature, ...] = ()
    context: tuple[Signature, ...] = ()
    frames: tuple[Signature, ...] = ()
    affected: tuple[Mapping[str, SpecifierSet], ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    because: str
    fix: tuple[Fix, ...]
    source: tuple[str, ...]
    confidence: str
    report_erred: tuple[str, ...] = ()
    contract: str = ""
    rule: str = ""
    range_from: RangeFrom | None = None
    reproduction: str = ""

    @property
    def marks(self) -> tuple[Signature, ...]:
        """All that is looked for in a log, in the order in which `line` takes what was found."""
        beside = (mark for item in self.signatures for mark in item.beside)
        return (*self.signatures, *self.context, *beside, *self.frames)

    def line(self, found: Sequence[int | None], *, traceback: bool) -> int | None:
        """The line of the log at which this incident shows, from the lines of its marks; `None` where it does not.

        `traceback` says that frames stand in the log, so that those of this incident would.
        """
        context = found[len(self.signatures) : len(self.signatures) + len(self.context)]
        frames = found[len(found) - len(self.frames) :]
        if (context and not any(context)) or (traceback and frames and not any(frames)):
            return None
        shown, at = [], len(self.signatures) + len(self.context)
        for line, item in zip(found, self.signatures, strict=False):
            if line and (not item.beside or any(found[at : at + len(item.beside)])):
                shown.append(line)
            at += len(item.beside)
        return min(shown, default=None)
