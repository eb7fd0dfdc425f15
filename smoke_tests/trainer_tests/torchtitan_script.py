"""A user's registry of torchtitan configurations: ``-m torchtitan.train --module torchtitan_script --config tiny``.

It stands alone, as torchtitan's launcher imports it; ``tiny`` reads ``options.json`` in the folder that it is started
in, and the checks call ``trainer_config`` in their own process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any


def tiny() -> Any:
    """The configuration that ``options.json`` states."""
    return trainer_config(json.loads(Path("options.json").read_text(encoding="utf-8")))


def trainer_config(options: dict[str, Any]) -> Any:
    """A configuration of torchtitan's trainer; ``options`` has its parts by torchtitan's names, and paths."""
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.config import TrainingConfig
    from torchtitan.trainer import Trainer

    spec = model_spec(options["family"], options["attention"], options["shape"])
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size)),
        model_spec=spec,
        hf_assets_path=options["model"],
        dump_folder=options["dump_folder"],
        dataloader=_dataloader(options["rows"], chat=options["chat"]),
        optimizer=default_adamw(lr=options["lr"]),
        lr_scheduler=LRSchedulersContainer.Config(**options["lr_scheduler"]),
        training=TrainingConfig(**options["training"]),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(
            enable=True, initial_load_path=options["model"], initial_load_in_hf=True, **options["checkpoint"]
        ),
    )


def model_spec(family: str, attention: str, shape: dict[str, int]) -> Any:
    """A flavour of ``llama3`` or ``qwen3``, made as those in torchtitan's own registries are."""
    from torchtitan.models import llama3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE

    registry, configs, rotary, head_dim = {
        "llama3": (llama3, llama3.llama3_configs, ComplexRoPE, {}),
        "qwen3": (qwen3, qwen3.qwen3_configs, CosSinRoPE, {"head_dim": shape["head_dim"]}),
    }[family]
    layers = {"llama3": llama3._build_llama3_layers, "qwen3": qwen3._build_qwen3_layers}[family]

    def flavour(attn_backend: str, **_more: Any) -> Any:
        made = configs["debugmodel"](attn_backend="flex")
        rope = rotary.Config(dim=shape["head_dim"], max_seq_len=8192, theta=10000.0)
        changed = dataclasses.replace(
            made,
            dim=shape["hidden"],
            vocab_size=shape["vocabulary"],
            enable_weight_tying=False,
            tok_embeddings=dataclasses.replace(
                made.tok_embeddings,
                num_embeddings=shape["vocabulary"],
                embedding_dim=shape["hidden"],
                param_init=made.lm_head.param_init,
            ),
            lm_head=dataclasses.replace(made.lm_head, in_features=shape["hidden"], out_features=shape["vocabulary"]),
            norm=dataclasses.replace(made.norm, normalized_shape=shape["hidden"]),
            layers=layers(
                n_layers=shape["layers"],
                dim=shape["hidden"],
                n_heads=shape["heads"],
                n_kv_heads=shape["kv_heads"],
                hidden_dim=shape["intermediate"],
                attn_backend="flex" if attn_backend == "causal" else attn_backend,
                rope=rope,
                **head_dim,
            ),
        )
        for norm in (
            changed.norm,
            *(part for layer in changed.layers for part in (layer.attention_norm, layer.ffn_norm)),
        ):
            norm.eps = 1e-6
        if attn_backend == "causal":
            _attend_without_masks(changed)
        return changed

    configs["tiny"] = flavour
    return registry.model_registry("tiny", attn_backend=attention)


def _attend_without_masks(config: Any) -> None:
    """Give every layer torchtitan's SDPA, which ``attn_backend`` does not offer: it knows no documents."""
    from torchtitan.models.common.attention import ScaledDotProductAttention

    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()


def _dataloader(file: str, *, chat: bool) -> Any:
    from datasets import load_dataset
    from torchtitan.hf_datasets import DatasetConfig, text_datasets

    if chat:
        return text_datasets.ChatDataLoader.Config(
            dataset_path="json",
            load_dataset_kwargs={"data_files": file, "split": "train"},
            sample_processor=messages_of,
        )
    load = functools.partial(load_dataset, "json", split="train")
    text_datasets.DATASETS["rows"] = DatasetConfig(
        path=file, loader=lambda path: load(data_files=path), sample_processor=lambda row: row["text"]
    )
    return text_datasets.HuggingFaceTextDataLoader.Config(dataset="rows")


def messages_of(row: dict[str, str]) -> list[dict[str, str]]:
    """A row as the two messages that torchtitan's chat takes."""
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
