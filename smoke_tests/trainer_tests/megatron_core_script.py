"""A user's training loop on megatron-core: its GPT model with local layers, its schedule, its optimizer, its data set.

What Megatron's quick start does in one process. ``Training`` is made of a dictionary: paths, and the options of
``TransformerConfig``, ``OptimizerConfig`` and ``GPTDatasetConfig`` by their own names.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Batch = dict[str, torch.Tensor]


class Training:
    """A model, its optimizer and the stream of its batches."""

    def __init__(self, options: dict[str, Any], device: torch.device) -> None:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.transformer import TransformerConfig
        from megatron.core.transformer.module import Float16Module

        self.options, self.device = options, device
        self.losses: list[float] = []
        self.taken = 0
        config = TransformerConfig(**_with_types(options["TransformerConfig"]))
        config.finalize_model_grads_func = finalize_model_grads
        built = _model(config, options).to(device)
        if config.bf16:
            built = Float16Module(config, built)
        whole = options["OptimizerConfig"].get("use_distributed_optimizer", False)
        self.model = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(use_distributed_optimizer=whole, grad_reduce_in_fp32=config.bf16),
            built,
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(**_with_types(options["OptimizerConfig"])), [self.model]
        )
        self.forward_backward = get_forward_backward_func()

    def batches(self) -> Iterator[Batch]:
        """The batches from the first one on, again and again."""
        samples = packed_samples(self.options) if "GPTDatasetConfig" in self.options else padded_samples(self.options)
        size, place = self.options["micro_batch_size"], 0
        while True:
            some = [samples[(place + number) % len(samples)] for number in range(size)]
            yield {name: torch.stack([sample[name] for sample in some]) for name in some[0]}
            place += size

    def forward_step(self, iterator: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Any]:
        """What the schedule calls for each batch: the loss of every token, and what sums them up."""
        batch = {name: value.to(self.device) for name, value in next(iterator).items()}
        output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
        return output, functools.partial(self.loss_function, batch["loss_mask"])

    def loss_function(self, loss_mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The sum of the losses that count, how many they are, and both for the log."""
        loss, count = (output.float() * loss_mask).sum(), loss_mask.sum().int()
        return loss, count, (loss.detach().clone(), count.clone())

    def step(self, iterator: Iterator[Batch]) -> None:
        """One step of the optimizer."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums = self.forward_backward(
            forward_step_func=self.forward_step,
            data_iterator=iterator,
            model=[self.model],
            num_microbatches=self.options["num_microbatches"],
            seq_length=self.options["seq_length"],
            micro_batch_size=self.options["micro_batch_size"],
        )
        self.optimizer.step()
        self.taken += 1
        self.losses.append(self.loss_of_log(sums))

    def loss_of_log(self, sums: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """The loss that Megatron's loop logs: the mean over all tokens of the step."""
        return float(sum(loss for loss, _ in sums) / sum(count for _, count in sums))

    def train(self) -> None:
        """Train from where it is, and save a checkpoint on the way."""
        iterator = self.batches()
        for _ in range(self.taken * self.options["num_microbatches"]):
            next(iterator)
        while self.taken < self.options["steps"]:
            self.step(iterator)
            if self.taken == self.options["save_interval"]:
                self.save()

    def save(self) -> None:
        """Save a distributed checkpoint."""
        from megatron.core import dist_checkpointing

        folder = Path(self.options["checkpoint"])
        folder.mkdir(parents=True)
        dist_checkpointing.save(self._state(is_loading=False), str(folder))

    def load(self) -> None:
        """Go on from the checkpoint."""
        from megatron.core import dist_checkpointing

        state = dist_checkpointing.load(self._state(is_loading=True), self.options["checkpoint"])
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.taken = state["taken"]

    def _state(self, *, is_loading: bool) -> dict[str, Any]:
        model = self.model.module.sharded_state_dict()
        metadata = self.options.get("metadata")
        optimizer = self.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)
        return {"model": model, "optimizer": optimizer, "taken": self.taken}


def _with_types(options: dict[str, Any]) -> dict[str, Any]:
    """Options whose dtypes and functions are written as words, as JSON can hold them."""
    words = {"bfloat16": torch.bfloat16, "float32": torch.float32, "silu": torch.nn.functional.silu}
    return {name: words.get(value, value) if isinstance(value, str) else value for name, value in options.items()}


def _model(config: Any, options: dict[str, Any]) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization
        ),
        vocab_size=options["vocab_size"],
        max_sequence_length=options["seq_length"],
        position_embedding_type="rope",
        rotary_base=10000,
        share_embeddings_and_output_weights=False,
    )


def padded_samples(options: dict[str, Any]) -> list[Batch]:
    """The rows of a file, one to a sample: prompts and filling are masked in the loss."""
    samples = []
    for line in Path(options["rows"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        length = options["seq_length"] + 1
        tokens = torch.tensor([*row["tokens"], *[options["pad"]] * (length - len(row["tokens"]))])
        places = torch.arange(options["seq_length"])
        counts = (places >= row["prompt"] - 1) & (places < len(row["tokens"]) - 1)
        samples.append(
            {
                "tokens": tokens[:-1],
                "labels": tokens[1:],
                "loss_mask": counts.float(),
                "position_ids": places,
                "attention_mask": torch.ones(1, len(places), len(places), dtype=torch.bool).triu(1),
            }
        )
    return samples


def packed_samples(options: dict[str, Any]) -> Any:
    """Megatron's data set of documents, each with the token that ends it, packed into samples of one length."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from megatron.core.tokenizers import MegatronTokenizer

    prefix = str(Path(options["rows"]).with_suffix(""))
    if not Path(f"{prefix}.idx").exists():
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(options["vocab_size"]))
        for line in Path(options["rows"]).read_text(encoding="utf-8").splitlines():
            tokens = json.loads(line)["tokens"]
            builder.add_document(torch.tensor(tokens), [len(tokens)])
        builder.finalize(f"{prefix}.idx")
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=options["seq_length"],
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=f"{prefix}.cache",
        tokenizer=MegatronTokenizer.from_pretrained(metadata_path={"library": "null"}, vocab_size=options["eod"]),
        **options["GPTDatasetConfig"],
    )
    made, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, [options["samples"], 0, 0], lambda: True, config).build()
    return made
