"""A known failure: what it looks like in a log, which combinations it affects, why, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packaging.specifiers import SpecifierSet

from knowngood.compat.log_signature import Signature


class IncidentKind(StrEnum):
    """The mechanism of a failure."""

    API_REMOVED = "api-removed"
    API_NOT_YET = "api-not-yet"
    API_UNKNOWN = "api-unknown"
    SIGNATURE_CHANGED = "signature-changed"
    NOT_INSTALLED = "not-installed"
    SHADOWED = "shadowed"
    FAILS_INSIDE = "fails-inside"
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


class IncidentSeverity(StrEnum):
    """How a failure shows: an error, a wrong result without one, a right one that takes longer, or a mere warning."""

    FAILURE = "failure"
    SILENT = "silent"
    SLOW = "slow"
    HARMLESS = "harmless"


class OwnComponent(StrEnum):
    """What is at fault when it is no package."""

    YOUR_CODE = "your-code"
    """The program that the user wrote, or how it was called or set up."""
    MODEL = "model"
    """The checkpoint: its files, or the code that comes with it."""
    DATA = "data"
    """What the program trains on."""
    GPU_MEMORY = "gpu-memory"
    """The run wants more memory than the GPU has left."""
    HOST_MEMORY = "host-memory"
    """The run, or a compiler, wants more memory than the machine has left."""
    NCCL = "nccl"
    """The communication between GPUs, and what of the network it uses."""
    HUB = "hub"
    """The hub of models, the access to it, or the way there."""
    NETWORK = "network"
    """The way to a server from which something is fetched, other than the hub of models."""
    CONTAINER = "container"
    """The container or job, and what it was given of the machine."""
    DRIVER = "driver"
    CUDA = "cuda"
    """The CUDA toolkit, with nvcc."""
    COMPILER = "compiler"
    """The C++ compiler, and the files that it needs."""
    PYTHON = "python"
    GLIBC = "glibc"
    LIBSTDCXX = "libstdc++"
    EXTENSION = "extension"
    """Any compiled extension: the log says which."""


class RangeOrigin(StrEnum):
    """Where `affected` comes from when neither uses nor a rule cover the incident."""

    ARTEFACTS = "artefacts"
    THREAD = "thread"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A remedy: what to change (package -> specifier), and what that costs."""

    note: str
    change: Mapping[str, str]
    cost: str = ""
    gpu: str = ""
    """The compute capabilities for which it is meant, as a specifier such as `>=100`; empty for any."""

    @property
    def ranges(self) -> dict[str, SpecifierSet]:
        """The changes as specifier sets, in which pre-releases count."""
        return {name: SpecifierSet("" if text == "*" else text, prereleases=True) for name, text in self.change.items()}

    def document(self) -> dict[str, Any]:
        """The remedy as `diagnose --json` prints it."""
        return {
            **({"change": dict(self.change)} if self.change else {}),
            "note": self.note,
            **({"cost": self.cost} if self.cost else {}),
            **({"gpu": self.gpu} if self.gpu else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class IncidentUse:
    """A use of one package by another in the atlas; the incident affects the releases that break it."""

    caller: str
    target: str
    """`transformers:Trainer.__init__`, as in `knowngood breaks`."""
    detail: str = ""
    """The keyword, or into how many names the result is unpacked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident:
    """One known failure; `knowngood.compat.incident_file` explains the fields."""

    id: str
    title: str
    kind: IncidentKind
    severity: IncidentSeverity
    component: str
    """The package at fault, or an `OwnComponent`."""
    signatures: tuple[Signature, ...] = ()
    context: tuple[Signature, ...] = ()
    frames: tuple[Signature, ...] = ()
    without: tuple[Signature, ...] = ()
    affected: tuple[Mapping[str, SpecifierSet], ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    run_reasons: tuple[str, ...] = ()
    """What a run of the model suite says of the models of `when`, or of any model."""
    because: str
    fix: tuple[Fix, ...]
    source: tuple[str, ...]
    confidence: str
    report_erred: tuple[str, ...] = ()
    uses: IncidentUse | None = None
    rule: str = ""
    range_from: RangeOrigin | None = None
    reproduction: str = ""

    @property
    def marks(self) -> tuple[Signature, ...]:
        """All signatures to look for in a log, in the order in which `line` takes their lines."""
        beside = (mark for item in self.signatures for mark in item.beside)
        return (*self.signatures, *self.context, *beside, *self.without, *self.frames)

    def line(self, mark_lines: Sequence[int | None], *, traceback: bool) -> int | None:
        """Return the line of the log at which this incident shows; `None` when it does not.

        `mark_lines` has the line of each of the `marks`, `None` for those that are not in the log. `traceback` says
        that the log has frames of a traceback, so that those of this incident would be there too.
        """
        context = mark_lines[len(self.signatures) : len(self.signatures) + len(self.context)]
        end = len(mark_lines) - len(self.frames)
        frames, without = mark_lines[end:], mark_lines[end - len(self.without) : end]
        if (context and not any(context)) or (traceback and frames and not any(frames)) or any(without):
            return None
        lines, at = [], len(self.signatures) + len(self.context)
        for line, item in zip(mark_lines, self.signatures, strict=False):
            if line and (not item.beside or any(mark_lines[at : at + len(item.beside)])):
                lines.append(line)
            at += len(item.beside)
        return min(lines, default=None)
