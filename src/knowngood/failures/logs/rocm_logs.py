"""Logs of AMD GPUs: torch for ROCm answers to the names of CUDA, but CUDA's remedies do not help it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from knowngood.compat.incident import Fix, Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError

_OF_CUDA = lazy_pattern(r"\b(?:CUDA|nvcc|nvidia|NVIDIA|cu1[0-9]\w*|TORCH_CUDA_ARCH_LIST|CUDA_HOME|libcu\w+)\b")
_NAMELESS = frozenset((OwnComponent.EXTENSION, OwnComponent.CUDA))
_NO_BUILDS = frozenset(OwnComponent) - _NAMELESS
"""What is no package of which there are builds for CUDA and for ROCm."""
_OF_ROCM = lazy_pattern(r"\b(?:ROCm|rocm|HIP|hip|AMD)\b")
_STATES_HIP = lazy_pattern(r"\bHIP (?:error|out of memory)|\bhip(?:Error|blas)\w*|\bHIPBLAS|\bROCm\b")


def is_rocm(versions: Mapping[str, Sequence[str]], error: LastError | None) -> bool:
    """Whether the torch of a log, or its last error, is of ROCm."""
    if any("+rocm" in version for version in versions.get("torch", ())):
        return True
    return error is not None and bool(_STATES_HIP.search(error.message))


def fit_to_rocm(incident: Incident) -> Incident | None:
    """Return a failure with the remedies that an AMD GPU may take; `None` where all may help it, or no build fails."""
    if incident.component in _NO_BUILDS:
        return None
    fixes = [fix for fix in incident.fix if not _OF_CUDA.search(fix.note) or _OF_ROCM.search(fix.note)]
    if len(fixes) == len(incident.fix):
        return None
    what = "the extension" if incident.component in _NAMELESS else incident.component
    note = (
        f"This torch is one for ROCm: take the build of {what} for the same ROCm (its own instructions name it; "
        "python -c 'import torch; print(torch.version.hip)' shows which), or do without it"
    )
    because = f"{incident.because} What is said of CUDA here goes for ROCm in its place."
    return replace(incident, because=because, fix=(Fix(change={}, note=note), *fixes))
