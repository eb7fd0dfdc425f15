"""The first optimizer step of a training on megatron-core, seen by hooks. Names are those of transformers' models."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands

from smoke_tests import profiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Values = dict[str, torch.Tensor]
PLAIN = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
IN_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}


class MegatronRecord:
    """Hooks into a training that has not begun; what it holds is complete once a step was taken.

    It has what ``demands`` reads of a ``StepRecord``.
    """

    def __init__(self, user: Any) -> None:
        self.trainer = type(user).__name__
        self.weights = named_weights(user.model)
        self.gradients: Values = {}
        self.after: Values = {}
        self.batches: list[dict[str, torch.Tensor]] = []
        self.loss = 0.0
        self.kernels: list[str] = []
        self._user = user
        self._open = contextlib.ExitStack()
        self._names = self._open.enter_context(profiling.watched(user.device))
        self._forward, self._step = user.forward_step, user.optimizer.step
        user.forward_step, user.optimizer.step = self._forward_step, self._optimizer_step
        self._begin, user.step = user.step, self._whole_step

    def _whole_step(self, iterator: Iterator[Any]) -> None:
        self._begin(iterator)
        if len(self._user.losses) == 1:
            self.loss = self._user.losses[0]

    def _forward_step(self, iterator: Iterator[Any], model: Any) -> Any:
        def kept() -> Iterator[Any]:
            for batch in iterator:
                if not self.gradients:
                    self.batches.append(batch)
                yield batch

        return self._forward(kept(), model)

    def _optimizer_step(self) -> Any:
        if self.after:
            return self._step()
        self._open.close()
        self.kernels = self._names
        self.gradients = named_weights(self._user.model, lambda parameter: parameter.main_grad)
        done = self._step()
        self.after = named_weights(self._user.model)
        return done

    def moved(self, *, by: float = 0.0) -> set[str]:
        """The names of the weights that the first step changed by more than this part of them."""
        return {
            name
            for name, value in self.after.items()
            if (value - self.weights[name]).norm() > by * self.weights[name].norm()
        }


def named_weights(model: Any, value_of: Callable[[Any], torch.Tensor] = lambda parameter: parameter) -> Values:
    """The weights of Megatron's model, or another value of each, in fp64 by transformers' names.

    Megatron keeps query, key and value in one matrix, the heads of a group beside its key and value, and both inputs of
    the gate in another.
    """
    values: Values = {}
    for name, parameter in model.named_parameters():
        value = value_of(parameter).detach().double().cpu().clone()
        inner = name.replace("module.", "")
        if inner in PLAIN:
            values[PLAIN[inner]] = value
            continue
        _, _, number, part = inner.split(".", 3)
        layer = f"model.layers.{number}."
        if part in IN_LAYER:
            values[layer + IN_LAYER[part]] = value
        elif part == "mlp.linear_fc1.weight":
            values[f"{layer}mlp.gate_proj.weight"], values[f"{layer}mlp.up_proj.weight"] = value.chunk(2)
        else:
            kind = part.removeprefix("self_attention.linear_qkv.")
            for letter, piece in zip("qkv", split_heads(value)):
                values[f"{layer}self_attn.{letter}_proj.{kind}"] = piece
    return values


def split_heads(value: torch.Tensor) -> list[torch.Tensor]:
    """Query, key and value of Megatron's one matrix, or of its bias."""
    shape, rest = demands.SHAPE, value.shape[1:]
    grouped = value.view(shape.kv_heads, -1, shape.head_dim, *rest)
    per_group = shape.heads // shape.kv_heads
    return [part.reshape(-1, *rest) for part in grouped.split([per_group, 1, 1], dim=1)]


def fill(model: Any, given: Values) -> None:
    """Give Megatron's model the weights that have transformers' names."""
    shape = demands.SHAPE
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            inner = name.replace("module.", "")
            if inner in PLAIN:
                parameter.copy_(given[PLAIN[inner]])
                continue
            _, _, number, part = inner.split(".", 3)
            layer = f"model.layers.{number}."
            if part in IN_LAYER:
                parameter.copy_(given[layer + IN_LAYER[part]])
            elif part == "mlp.linear_fc1.weight":
                parameter.copy_(torch.cat([given[f"{layer}mlp.{kind}_proj.weight"] for kind in ("gate", "up")]))
            else:
                kind = part.removeprefix("self_attention.linear_qkv.")
                parts = [given[f"{layer}self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
                rest = parts[0].shape[1:]
                grouped = [value.view(shape.kv_heads, -1, shape.head_dim, *rest) for value in parts]
                parameter.copy_(torch.cat(grouped, dim=1).reshape(-1, *rest))
