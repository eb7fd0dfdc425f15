"""The reason of a failure of which the signature knows only the kind, where the words of the error say more. Pure.

A wide incident ("the shapes do not fit") is right of many logs and tells little. What the message, the numbers in it
and the line of code above it say of the reason is put in its place; where they say nothing, the answer is only likely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from knowngood.compat.incident import Incident
from knowngood.failures.batch_sizes import describe_batch
from knowngood.failures.json_reasons import describe_data_file
from knowngood.failures.last_errors import LastError
from knowngood.failures.model_architectures import describe_architecture, describe_own_auto_class
from knowngood.failures.read_files import describe_load_key, describe_place
from knowngood.failures.refused_fields import describe_fields
from knowngood.failures.refused_settings import describe_accelerate_key, describe_choice, describe_own_call
from knowngood.failures.refused_values import (
    describe_collated,
    describe_column,
    describe_index,
    describe_invoked,
    describe_nested_column,
    describe_no_tensor,
)
from knowngood.failures.stated_limits import describe_port, describe_shared_memory, describe_toolkit_path
from knowngood.failures.tensor_shapes import describe_shapes
from knowngood.failures.unset_variables import describe_launcher_variable
from knowngood.failures.weight_names import describe_prefix
from knowngood.failures.weight_shapes import describe_weight_shapes

_REASONS: Mapping[str, Callable[[Incident, LastError], Incident | None]] = {
    "argument-must-be-tensor": describe_no_tensor,
    "accelerator-dispatch-batches": describe_own_call,
    "arguments-refused": describe_choice,
    "auto-class-not-in-own-code": describe_own_auto_class,
    "accelerate-config-of-newer": describe_accelerate_key,
    "binding-arguments-refused": describe_invoked,
    "checkpoint-not-whole": describe_load_key,
    "cuda-home-not-set": describe_toolkit_path,
    "collate-none": describe_collated,
    "data-column-unknown": describe_column,
    "data-file-unreadable": describe_data_file,
    "deepspeed-config-mismatch": describe_batch,
    "distributed-not-launched": describe_launcher_variable,
    "distributed-port-taken": describe_port,
    "hub-no-such-repository": describe_place,
    "index-outside": describe_index,
    "state-dict-keys": describe_prefix,
    "state-dict-other-names": describe_prefix,
    "state-dict-size-mismatch": describe_weight_shapes,
    "tensor-shapes": describe_shapes,
    "tokenizer-without-padding": describe_nested_column,
    "triton-shared-memory": describe_shared_memory,
    "values-refused-by-pydantic": describe_fields,
    "vllm-model-not-supported": describe_architecture,
}
"""The id of a known failure -> what says more of its reason."""
_GUESS = "most likely"
"""In the title of a reason that the words or numbers do not prove."""
_GUESSED = frozenset(("checkpoint-not-whole",))
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
