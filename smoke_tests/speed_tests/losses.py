"""The loss of a step: transformers' own, or one that never holds the logits of all tokens."""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 2048  # tokens


class _ChunkedLoss(torch.autograd.Function):
    """The mean cross entropy of a linear layer's outputs, and its gradients, from chunks of tokens.

    The gradients are computed with the loss, so each product is made once and what a chunk needs is freed.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, one: Any) -> torch.Tensor:
        """``hidden`` is (tokens, size), ``weight`` (vocabulary, size), ``targets`` (tokens), -100 where there is none.

        ``one`` is ``chunk_loss``, compiled or not.
        """
        scale = 1 / (targets != -100).sum().clamp(min=1)
        loss = torch.zeros((), device=hidden.device)
        for_hidden = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight) if weight.requires_grad else None
        for start in range(0, len(hidden), CHUNK):
            part = hidden[start : start + CHUNK]
            chunk, gradient = one(part @ weight.T, targets[start : start + CHUNK], scale)
            loss += chunk
            torch.mm(gradient, weight, out=for_hidden[start : start + CHUNK])
            if for_weight is not None:
                for_weight.addmm_(gradient.T, part)
        ctx.save_for_backward(for_hidden, for_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        for_hidden, for_weight = ctx.saved_tensors
        scale = grad.to(for_hidden.dtype)
        return for_hidden * scale, None if for_weight is None else for_weight * scale, None, None


def chunk_loss(logits: torch.Tensor, targets: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of some tokens, times ``scale``, and its gradient for the logits in their type."""
    values = logits.float()
    known = targets != -100
    rows = torch.where(known, targets, 0)[:, None]
    total = torch.logsumexp(values, dim=1, keepdim=True)
    loss = ((total - values.gather(1, rows)).squeeze(1) * known).sum() * scale
    own = torch.arange(values.shape[1], device=values.device)[None, :] == rows
    gradient = (torch.exp(values - total) - own.float()) * (known[:, None] * scale)
    return loss, gradient.to(logits.dtype)


class LossModel(torch.nn.Module):
    """A causal language model whose result is the loss alone."""

    def __init__(self, model: Any, loss: str, compiled: str) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._head, self._decoder, self._loss = base.lm_head, [base.model], loss
        self._chunk = torch.compile(chunk_loss, dynamic=False) if compiled else chunk_loss
        if compiled == "compiled-layers":
            for layer in base.model.layers:
                layer.compile(dynamic=False)
        elif compiled and loss:
            self._decoder = [torch.compile(base.model, dynamic=False)]
        elif compiled:
            self.model = torch.compile(model, dynamic=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **others: Any) -> Any:
        """Return {"loss": the mean over tokens}; ``labels`` are the ids, -100 where nothing is to be learned."""
        if not self._loss:
            return {"loss": self.model(input_ids=input_ids, labels=labels, **others).loss}
        hidden = self._decoder[0](input_ids=input_ids, **others).last_hidden_state.flatten(0, 1)
        targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].flatten()
        return {"loss": _ChunkedLoss.apply(hidden, self._head.weight, targets, self._chunk)}
