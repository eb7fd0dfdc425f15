"""The choice of experts: recorded in the reference, and replayed in the model under test.

Which experts a token goes to is decided by comparing numbers. In half precision a near tie is decided the other way
now and then, and the gradient of two experts jumps, whatever attention does. So every model runs with the choices of
the reference; how many the model itself would have made otherwise is counted.

A choice among the places of a row, as sparse attention makes one, is none of experts and stays the model's own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class TopKRecorder(TorchFunctionMode):
    """Keeps the indices of every ``topk`` whose rows are the tokens of one sequence."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.choices: list[torch.Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and keep what ``topk`` chose."""
        result = function(*args, **(kwargs or {}))
        if function in (torch.topk, torch.Tensor.topk) and (leading := _leading(args[0], self.tokens, self.tokens)):
            self.choices.append(result[1].flatten(0, leading - 1).cpu())
        return result


class TopKReplay(TorchFunctionMode):
    """Answers every ``topk`` over the tokens of a batch with the choices that were recorded.

    ``choices`` has an entry for each call, whose rows are the real tokens by sequence; ``places`` says where in the
    flattened batch of ``shape`` (rows, places) each of them is. Padding keeps its own choice.
    """

    def __init__(self, choices: list[torch.Tensor | None], places: torch.Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.choices, self.places = choices, places
        self.tokens, self.length = math.prod(shape), shape[-1]
        self.calls = self.different = self.compared = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; in place of what ``topk`` chose, return what was recorded."""
        result = function(*args, **(kwargs or {}))
        if function not in (torch.topk, torch.Tensor.topk) or self.calls >= len(self.choices):
            return result
        leading = _leading(args[0], self.tokens, self.length)
        if not leading:
            return result
        recorded, own = self.choices[self.calls], result[1]
        self.calls += 1
        indices = own.flatten(0, leading - 1).clone()
        if recorded is None or indices.shape[1:] != recorded.shape[1:]:
            return result
        wanted = recorded.to(indices.device)
        before = indices[self.places]
        self.different += int((before.sort(-1).values != wanted.sort(-1).values).any(-1).sum())
        self.compared += wanted[..., 0].numel()
        indices[self.places] = wanted
        indices = indices.reshape(own.shape)
        return torch.return_types.topk((args[0].gather(-1, indices), indices))


def _leading(scores: torch.Tensor, tokens: int, length: int) -> int:
    """How many leading dimensions count the tokens: 1, or 2 (rows x places); 0 where none does or places are chosen."""
    if scores.dim() < 2 or scores.shape[-1] == length:
        return 0
    if scores.shape[0] == tokens:
        return 1
    return 2 if scores.dim() >= 3 and scores.shape[0] * scores.shape[1] == tokens else 0
