"""The place where a model calls attention: what goes in and comes out is seen there, and can be replaced.

Since transformers 4.48 a model's attention module hands query, key and value (after the rotary embedding) to one
function, which the setting chooses. For ``eager`` it is the model file's own ``eager_attention_forward``, for every
other setting an entry of ``ALL_ATTENTION_FUNCTIONS``.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EAGER = "eager_attention_forward"


@contextlib.contextmanager
def replace_attention(model: Any, implementation: str, wrap: Callable[[Callable], Callable]) -> Iterator[None]:
    """Put ``wrap(function)`` in the place of the model's attention function while inside."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation == "eager":
        files = {sys.modules[type(module).__module__] for module in model.modules()}
        originals = {file: getattr(file, EAGER) for file in files if hasattr(file, EAGER)}
        for file, function in originals.items():
            setattr(file, EAGER, wrap(function))
        try:
            yield
        finally:
            for file, function in originals.items():
                setattr(file, EAGER, function)
        return
    function, local = ALL_ATTENTION_FUNCTIONS[implementation], ALL_ATTENTION_FUNCTIONS._local_mapping
    before = local.get(implementation)
    local[implementation] = wrap(function)
    try:
        yield
    finally:
        del local[implementation]
        if before is not None:
            local[implementation] = before


def is_text_attention(module: Any) -> bool:
    """Whether a call comes from a layer of the language model: it is causal, and numbered."""
    return isinstance(getattr(module, "layer_idx", None), int) and getattr(module, "is_causal", True) is True
