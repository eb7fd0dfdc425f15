"""The reason of a failure of which the signature knows only the kind, where the words of the error say more. Pure.

A wide incident ("the shapes do not fit") is right of many logs and tells little. What the message, the numbers in it
and the line of code above it say of the reason is put in its place; where they say nothing, the answer is only likely.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_facts.compat.incident import Incident

NARROWED: Mapping[str, str] = {
    "accelerator-dispatch-batches": "reasons.refused_settings:describe_own_call",
    "arguments-refused": "reasons.refused_settings:describe_choice",
    "accelerate-config-of-newer": "reasons.refused_settings:describe_accelerate_key",
    "binding-arguments-refused": "reasons.refused_values:describe_invoked",
    "checkpoint-not-whole": "reasons.read_files:describe_load_key",
    "cuda-home-not-set": "reasons.refused_values:describe_toolkit_path",
    "bitsandbytes-binary-missing": "machines.gpu_errors:describe_bitsandbytes",
    "bitsandbytes-cuda-setup": "machines.gpu_errors:describe_bitsandbytes",
    "child-process-failed": "reasons.inner_errors:describe_passed_on",
    "cuda-no-kernel-image": "machines.gpu_errors:describe_kernel_owner",
    "cuda-out-of-memory": "machines.memory_numbers:describe_memory",
    "deepspeed-config-mismatch": "reasons.refused_settings:describe_batch",
    "distributed-not-launched": "reasons.refused_settings:describe_launcher_variable",
    "distributed-port-taken": "reasons.refused_values:describe_port",
    "dynamo-failed": "machines.compiler_errors:describe_compilation",
    "fsdp-mixed-parameters": "reasons.refused_values:describe_mixed_dtypes",
    "gpu-not-usable": "machines.gpu_errors:describe_driver_code",
    "hub-no-such-repository": "reasons.read_files:describe_place",
    "sglang-child-failed": "reasons.inner_errors:describe_passed_on",
    "nccl-duplicate-gpu": "machines.nccl_errors:describe_duplicate",
    "nccl-error": "machines.nccl_errors:describe_nccl",
    "nccl-no-way-to-peer": "machines.nccl_errors:describe_unreached",
    "nccl-timeout": "machines.nccl_errors:describe_timeout",
    "nvidia-driver-too-old": "machines.gpu_errors:describe_driver_code",
    "nvidia-library-missing": "machines.library_errors:describe_missing_library",
    "nvidia-library-own-number": "machines.library_errors:describe_missing_library",
    "nvidia-library-other": "machines.library_errors:describe_clash",
    "packages-exclude-each-other": "machines.resolver_words:describe_resolution",
    "pip-no-matching-release": "machines.resolver_words:describe_unsatisfied",
    "sdpa-no-kernel": "machines.gpu_errors:describe_refusals",
    "segmentation-fault": "machines.library_errors:describe_crash",
    "state-dict-keys": "reasons.checkpoint_weights:describe_prefix",
    "state-dict-other-names": "reasons.checkpoint_weights:describe_prefix",
    "state-dict-size-mismatch": "reasons.checkpoint_weights:describe_weight_shapes",
    "torch-cpu-build": "machines.gpu_errors:describe_without_cuda",
    "transformer-engine-no-attention": "machines.gpu_errors:describe_disabled_backends",
    "triton-compilation-failed": "machines.compiler_errors:describe_kernel_compilation",
    "triton-launcher-does-not-compile": "machines.compiler_errors:describe_launcher",
    "triton-shared-memory": "reasons.refused_values:describe_shared_memory",
    "vllm-engine-failed": "reasons.inner_errors:describe_passed_on",
    "wheel-not-built": "machines.resolver_words:describe_unbuilt",
    "xformers-extensions-not-loaded": "machines.library_errors:describe_xformers",
    "values-refused-by-pydantic": "reasons.refused_values:describe_fields",
    "vllm-model-not-supported": "reasons.refused_settings:describe_architecture",
}
"""The id of a known failure -> the function that says more of its reason, which is imported for such a failure only."""
_GUESS = "most likely"
"""In the title of a reason that the words or numbers do not prove."""
_GUESSED = frozenset(
    (
        "checkpoint-not-whole",
        "nvidia-library-missing",
        "nvidia-library-own-number",
        "pip-no-matching-release",
        "xformers-extensions-not-loaded",
    )
)
"""Known failures of which the words give the most likely reason only."""
OPEN_REASONS = frozenset(
    (
        "binding-arguments-refused",
        "data-file-unreadable",
        "tensor-shapes",
    )
)
"""Known failures whose signature leaves the reason open: without more they are only likely."""


def describe_reason(incident_id: str) -> Callable[[Incident, LastError], Incident | None]:
    """Return the function that says more of the reason of a known failure.

    Raises:
        KeyError: nothing says more of it.
    """
    module, _, name = NARROWED[incident_id].partition(":")
    function: Callable[[Incident, LastError], Incident | None] = getattr(
        importlib.import_module(f"knowngood_diagnose.failures.{module}"), name
    )
    return function


def narrow_reason(incident: Incident, error: LastError | None) -> tuple[Incident, bool]:
    """Return a failure with what the log says of its reason, and whether the reason is left open.

    Args:
        incident: a known failure whose signature is in the log.
        error: the last error of the log.
    """
    if incident.id not in NARROWED:
        return incident, incident.id in OPEN_REASONS
    narrowed = describe_reason(incident.id)(incident, error) if error is not None else None
    is_open = incident.id in OPEN_REASONS and (narrowed is None or narrowed == incident)
    is_guess = narrowed is not None and (incident.id in _GUESSED or _GUESS in narrowed.title)
    return narrowed or incident, is_open or is_guess
