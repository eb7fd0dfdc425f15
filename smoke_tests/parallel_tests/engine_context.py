"""TransformerEngine's context parallelism: its DotProductAttention in every layer, two parts of a row on each rank."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from parallel_tests.sequence_split import SequenceSplit, drop_mask
from smoke_tests import settings
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.settings import Setting

NAME = "transformer_engine_context_parallel"


class EngineContext(SequenceSplit):
    """Rank r has parts r and 2N - 1 - r of 2N, as TransformerEngine's causal balance wants it, in bf16."""

    package = "transformer-engine"

    def prepare(self, built: Any) -> None:
        if self.world.device.type != "cuda":
            raise NotRun("no GPU: TransformerEngine's attention has no kernels for a CPU")
        group, ranks, stream = dist.new_group(), list(self.world.ranks()), torch.cuda.Stream()
        _register(group, ranks, stream)
        if hasattr(built, "set_attn_implementation"):
            built.set_attn_implementation(NAME)
        else:
            built.config._attn_implementation = NAME
        for layer in built.model.layers:
            layer.self_attn.register_forward_pre_hook(drop_mask, with_kwargs=True)
        self.model = built
        self.optimizer = self.new_optimizer(built.parameters())

    def kernel_fault(self, names: list[str]) -> str | None:
        setting = Setting("transformer-engine", NAME, ("flash-attn-2", "flash-attn-3", "cudnn"))
        return settings.kernel_fault(setting, names, on_gpu=True)

    def divided(self, buffers: list[torch.Tensor]) -> Any:
        """Replace each (1, length) tensor by this rank's two parts of it."""
        rank, parts = self.world.rank, 2 * self.world.size
        for buffer in buffers:
            pieces = buffer.chunk(parts, 1)
            buffer.set_(torch.cat([pieces[rank], pieces[parts - 1 - rank]], 1))
        return contextlib.nullcontext()


def _register(group: Any, ranks: list[int], stream: Any) -> None:
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise NotRun(f"this transformers takes no attention from outside: {error}") from None
    from transformer_engine.pytorch import DotProductAttention

    layers: dict[int, Any] = {}

    def forward(  # noqa: PLR0913, PLR0917 - they are transformers'
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float,
        dropout: float = 0.0,
        **_others: Any,
    ) -> tuple[Any, None]:
        if attention_mask is not None or dropout:
            raise Failed(f"attention was to be causal and no more: dropout {dropout}, a mask {attention_mask}")
        if module.layer_idx not in layers:
            layers[module.layer_idx] = DotProductAttention(
                query.shape[1], query.shape[-1], num_gqa_groups=key.shape[1], softmax_scale=scaling,
                attention_dropout=0.0, qkv_format="bshd", attn_mask_type="causal",
            )  # fmt: skip
            layers[module.layer_idx].set_context_parallel_group(group, ranks, stream)
        # Under autocast the rotary embedding leaves queries and keys in fp32, and TransformerEngine takes one type.
        rows = (states.to(value.dtype).transpose(1, 2).contiguous() for states in (query, key, value))
        mixed = layers[module.layer_idx](*rows)
        return mixed.unflatten(-1, (query.shape[1], query.shape[-1])), None

    AttentionInterface.register(NAME, forward)
