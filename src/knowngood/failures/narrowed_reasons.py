"""The reason of a failure of which the signature knows only the kind, where the words of the error say more. Pure.

A wide incident ("the shapes do not fit") is right of many logs and tells little. What the message, the numbers in it
and the line of code above it say of the reason is put in its place; where they say nothing, the answer is only likely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knowngood.compat.incident import Incident
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.machines.compilation_words import (
    describe_compilation,
    describe_kernel_compilation,
    describe_launcher,
)
from knowngood.failures.machines.driver_codes import describe_driver_code
from knowngood.failures.machines.kernel_owners import describe_kernel_owner
from knowngood.failures.machines.kernel_refusals import describe_disabled_backends, describe_refusals
from knowngood.failures.machines.library_clashes import describe_clash, describe_crash, describe_xformers
from knowngood.failures.machines.memory_numbers import describe_memory
from knowngood.failures.machines.missing_libraries import describe_missing_library
from knowngood.failures.machines.nccl_timeouts import describe_timeout
from knowngood.failures.machines.nccl_words import NCCL_REASONS
from knowngood.failures.machines.other_platforms import describe_without_cuda
from knowngood.failures.machines.resolver_words import describe_resolution, describe_unsatisfied
from knowngood.failures.machines.unbuilt_wheels import describe_unbuilt
from knowngood.failures.reasons.batch_sizes import describe_batch
from knowngood.failures.reasons.json_reasons import describe_data_file
from knowngood.failures.reasons.model_architectures import describe_architecture, describe_own_auto_class
from knowngood.failures.reasons.passed_on import describe_passed_on
from knowngood.failures.reasons.read_files import describe_load_key, describe_place
from knowngood.failures.reasons.refused_fields import describe_fields
from knowngood.failures.reasons.refused_settings import describe_accelerate_key, describe_choice, describe_own_call
from knowngood.failures.reasons.refused_values import (
    describe_collated,
    describe_column,
    describe_index,
    describe_invoked,
    describe_nested_column,
    describe_no_tensor,
)
from knowngood.failures.reasons.stated_limits import describe_port, describe_shared_memory, describe_toolkit_path
from knowngood.failures.reasons.tensor_shapes import describe_shapes
from knowngood.failures.reasons.unset_variables import describe_launcher_variable
from knowngood.failures.reasons.weight_names import describe_prefix
from knowngood.failures.reasons.weight_shapes import describe_weight_shapes

_REASONS: Mapping[str, Callable[[Incident, LastError], Incident | None]] = {
    "argument-must-be-tensor": describe_no_tensor,
    "accelerator-dispatch-batches": describe_own_call,
    "arguments-refused": describe_choice,
    "auto-class-not-in-own-code": describe_own_auto_class,
    "accelerate-config-of-newer": describe_accelerate_key,
    "binding-arguments-refused": describe_invoked,
    "checkpoint-not-whole": describe_load_key,
    "cuda-home-not-set": describe_toolkit_path,
    "bitsandbytes-binary-missing": describe_without_cuda,
    "bitsandbytes-cuda-setup": describe_without_cuda,
    "child-process-failed": describe_passed_on,
    "collate-none": describe_collated,
    "cuda-no-kernel-image": describe_kernel_owner,
    "cuda-out-of-memory": describe_memory,
    "data-column-unknown": describe_column,
    "data-file-unreadable": describe_data_file,
    "deepspeed-config-mismatch": describe_batch,
    "distributed-not-launched": describe_launcher_variable,
    "distributed-port-taken": describe_port,
    "dynamo-failed": describe_compilation,
    "gpu-not-usable": describe_driver_code,
    "hub-no-such-repository": describe_place,
    "index-outside": describe_index,
    "sglang-child-failed": describe_passed_on,
    **NCCL_REASONS,
    "nccl-timeout": describe_timeout,
    "nvidia-driver-too-old": describe_driver_code,
    "nvidia-library-missing": describe_missing_library,
    "nvidia-library-own-number": describe_missing_library,
    "nvidia-library-other": describe_clash,
    "packages-exclude-each-other": describe_resolution,
    "pip-no-matching-release": describe_unsatisfied,
    "sdpa-no-kernel": describe_refusals,
    "segmentation-fault": describe_crash,
    "state-dict-keys": describe_prefix,
    "state-dict-other-names": describe_prefix,
    "state-dict-size-mismatch": describe_weight_shapes,
    "tensor-shapes": describe_shapes,
    "tokenizer-without-padding": describe_nested_column,
    "torch-cpu-build": describe_without_cuda,
    "transformer-engine-no-attention": describe_disabled_backends,
    "triton-compilation-failed": describe_kernel_compilation,
    "triton-launcher-does-not-compile": describe_launcher,
    "triton-shared-memory": describe_shared_memory,
    "vllm-engine-failed": describe_passed_on,
    "wheel-not-built": describe_unbuilt,
    "xformers-extensions-not-loaded": describe_xformers,
    "values-refused-by-pydantic": describe_fields,
    "vllm-model-not-supported": describe_architecture,
}
"""The id of a known failure -> what says more of its reason."""
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
        "argument-must-be-tensor",
        "binding-arguments-refused",
        "bnb-cublaslt-failed",
        "data-file-unreadable",
        "index-outside",
        "padding-index-outside",
        "tensor-shapes",
    )
)
"""Known failures whose signature leaves the reason open: without more they are only likely."""


def narrow_reason(incident: Incident, error: LastError | None) -> tuple[Incident, bool]:
    """Return a failure with what the log says of its reason, and whether the reason is left open.

    Args:
        incident: a known failure whose signature is in the log.
        error: the last error of the log.
    """
    describe = _REASONS.get(incident.id)
    if describe is None:
        return incident, incident.id in OPEN_REASONS
    narrowed = describe(incident, error) if error is not None else None
    is_open = incident.id in OPEN_REASONS and (narrowed is None or narrowed == incident)
    is_guess = narrowed is not None and (incident.id in _GUESSED or _GUESS in narrowed.title)
    return narrowed or incident, is_open or is_guess
