"""Runs torch code with every request for float32 answered in float64.

transformers computes norms, softmax, rotary angles and the router of experts in float32 whatever the model's dtype
is; for a reference in fp64 that would be a loss of precision in the middle of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FloatsDoubled(TorchFunctionMode):
    """A context in which ``torch.float32`` means ``torch.float64``."""

    def __enter__(self) -> Any:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: object) -> Any:
        torch.set_default_dtype(self.before)
        return super().__exit__(*error)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function with the dtype replaced."""
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        named = {name: _doubled(value) for name, value in (kwargs or {}).items()}
        return function(*map(_doubled, args), **named)


def _doubled(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
