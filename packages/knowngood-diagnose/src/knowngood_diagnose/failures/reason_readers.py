"""What reads more of the reason of a known failure out of a log, where its signature knows only the kind. Pure.

A wide incident ("NCCL timed out") is right of many logs and tells little. What the message, the numbers in it and the
line of code above it say of the reason is put in its place; where they say nothing, the answer is only likely. An
incident's file names its reader (`narrowed_by`). Imported only for a log with such an incident, because of the time
that the imports take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood_diagnose.failures.machines.compiler_errors import (
    describe_compilation,
    describe_kernel_compilation,
    describe_launcher,
    describe_newest_compiler,
)
from knowngood_diagnose.failures.machines.gpu_errors import (
    describe_bitsandbytes,
    describe_disabled_backends,
    describe_kernel_owner,
    describe_refusals,
    describe_without_cuda,
)
from knowngood_diagnose.failures.machines.library_errors import (
    describe_clash,
    describe_crash,
    describe_missing_library,
    describe_xformers,
)
from knowngood_diagnose.failures.machines.memory_numbers import describe_memory
from knowngood_diagnose.failures.machines.nccl_errors import (
    describe_duplicate,
    describe_nccl,
    describe_timeout,
    describe_unreached,
)
from knowngood_diagnose.failures.machines.resolver_words import (
    describe_resolution,
    describe_unbuilt,
    describe_unsatisfied,
)
from knowngood_facts.compat.incident import GUESS, IncidentTrait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_facts.compat.incident import Incident

READERS: Mapping[str, Callable[[Incident, LastError], Incident | None]] = {
    "bitsandbytes": describe_bitsandbytes,
    "clash": describe_clash,
    "compilation": describe_compilation,
    "crash": describe_crash,
    "disabled-backends": describe_disabled_backends,
    "duplicate": describe_duplicate,
    "kernel-compilation": describe_kernel_compilation,
    "kernel-owner": describe_kernel_owner,
    "launcher": describe_launcher,
    "memory": describe_memory,
    "missing-library": describe_missing_library,
    "nccl": describe_nccl,
    "newest-compiler": describe_newest_compiler,
    "refusals": describe_refusals,
    "resolution": describe_resolution,
    "timeout": describe_timeout,
    "unbuilt": describe_unbuilt,
    "unreached": describe_unreached,
    "unsatisfied": describe_unsatisfied,
    "without-cuda": describe_without_cuda,
    "xformers": describe_xformers,
}
"""The name of a reader -> the function that returns the failure with its reason, or `None`."""


def narrow_reason(incident: Incident, error: LastError) -> tuple[Incident, bool]:
    """Return a failure with what the log says of its reason, and whether the reason is left open.

    Args:
        incident: a known failure whose signature is in the log, with `narrowed_by`.
        error: the last error of the log.
    """
    narrowed = READERS[incident.narrowed_by](incident, error)
    is_open = IncidentTrait.OPEN in incident.traits and (narrowed is None or narrowed == incident)
    is_guess = narrowed is not None and (IncidentTrait.GUESSED in incident.traits or GUESS in narrowed.title)
    return narrowed or incident, is_open or is_guess
