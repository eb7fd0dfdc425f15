"""megatron-core's GPT model with its local layers, in one process, as Megatron's quick start trains it.

Query, key and value are one matrix there, so the weights of a tiny Qwen2 or Qwen3 are given to it, and its gradients
are compared by transformers' names. ``padded`` has one row to a sample, prompts and filling masked in the loss;
``packed`` is Megatron's own data set of documents, with the options that keep documents apart (``reset_attention_mask``
and ``eod_mask_loss``); ``packed-varlen`` hands over ``packed_seq_params``. Two batches are accumulated to a step.

``full`` has the plain optimizer and ``calculate_per_token_loss``, ``accumulated`` leaves that at its default.
``distributed`` has the distributed optimizer, ``fused`` also asks for the fused softmax. ``resumed`` goes on from a
distributed checkpoint. Where there is no GPU, what megatron-core asks of CUDA is answered by the CPU.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import transformers
from smoke_tests.trainers import demands, fp64, hugging_face, megatron_core_faults, tiny
from smoke_tests.trainers.megatron_core_checks import FAULTS
from smoke_tests.trainers.megatron_core_record import MegatronRecord, fill
from torch.overrides import TorchFunctionMode

from smoke_tests import data, training
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = 128
SAMPLES = 64


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with megatron-core, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name, _alone():
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    prompts = tiny.PROMPTS if check["layout"] == "padded" else [0] * len(tiny.PROMPTS)
    tiny.write_lines(
        folder / "rows.jsonl", [{"tokens": row, "prompt": prompt} for row, prompt in zip(tiny.rows(), prompts)]
    )
    options = _options(check, folder, family)
    hugging_face.keep_options(report, folder, {"options": options})
    user = _training(check, options)
    if put := megatron_core_faults.FAULTS.get(fault):
        put(user)
    record = MegatronRecord(user)
    user.train()
    report["losses"] = user.losses
    demands.demand_setting(check, _implementation(user), record, report)
    demands.demand_first_step(check, record, report, lambda trained: _reference(check, record, trained))
    demands.demand_logged(user.losses, record)
    demands.demand_learning(check, user.losses)
    if check["mode"].startswith("resumed"):
        again = _training(check, options)
        again.load()
        if put := megatron_core_faults.RESUMED_FAULTS.get(fault):
            put(again)
        again.train()
        demands.demand_same_losses(again.losses, user.losses[hugging_face.SAVED :], "after the checkpoint")


def _options(check: dict[str, Any], folder: Path, family: str) -> dict[str, Any]:
    shape, mode, half = demands.SHAPE, check["mode"], check["dtype"] == "bf16-pure"
    distributed = "distributed" in mode or mode == "fused"
    packed = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
    return {
        "TransformerConfig": {
            "num_layers": shape.layers,
            "hidden_size": shape.hidden,
            "ffn_hidden_size": shape.intermediate,
            "num_attention_heads": shape.heads,
            "num_query_groups": shape.kv_heads,
            "kv_channels": shape.head_dim,
            "normalization": "RMSNorm",
            "layernorm_epsilon": 1e-6,
            "activation_func": "silu",
            "gated_linear_unit": True,
            "add_bias_linear": False,
            "add_qkv_bias": family == "qwen2",
            "qk_layernorm": family == "qwen3",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "use_cpu_initialization": True,
            **({} if mode == "accumulated" else {"calculate_per_token_loss": True}),
            **({"masked_softmax_fusion": True} if mode == "fused" else {}),
            **({"bf16": True, "params_dtype": "bfloat16", "pipeline_dtype": "bfloat16"} if half else {}),
        },
        "OptimizerConfig": {
            "optimizer": "adam",
            "lr": 4e-3,
            "min_lr": 4e-3,
            "weight_decay": 0.0,
            "clip_grad": 0.0,
            **({"use_distributed_optimizer": True} if distributed else {}),
            **({"bf16": True, "params_dtype": "bfloat16"} if half else {}),
        },
        **({"GPTDatasetConfig": packed} if check["layout"] == "packed" else {}),
        # The optimizer's own form cannot be saved (docs/incidents/megatron-core-optimizer-not-saved.md).
        **({"metadata": {"distrib_optim_sharding_type": "fully_reshardable"}} if distributed else {}),
        "rows": str(folder / "rows.jsonl"),
        "model": str(folder / "model"),
        "checkpoint": str(folder / "checkpoint"),
        "vocab_size": tiny.VOCABULARY,
        "eod": tiny.END,
        "pad": tiny.PAD,
        "seq_length": ROW,
        "micro_batch_size": hugging_face.BATCH,
        "num_microbatches": hugging_face.ACCUMULATED,
        "samples": SAMPLES,
        "steps": 1 if demands.is_short(check) else hugging_face.STEPS,
        "save_interval": hugging_face.SAVED if mode.startswith("resumed") else None,
    }


def _training(check: dict[str, Any], options: dict[str, Any]) -> Any:
    from smoke_tests.trainers import megatron_core_script

    given = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=torch.float32).state_dict()
    plain = megatron_core_script._model

    def filled(config: Any, known: dict[str, Any]) -> Any:
        built = plain(config, known)
        fill(built, given)
        return built

    with mock.patch.object(megatron_core_script, "_model", filled):
        user = megatron_core_script.Training(options, training.device_here())
    if check["layout"] == "packed-varlen":
        _hand_over_lengths(user)
    return user


def _hand_over_lengths(user: Any) -> None:
    """Pack a batch's rows into one, and state their lengths, as Megatron's own packing of rows does."""
    from megatron.core.packed_seq_params import PackedSeqParams

    def forward_step(iterator: Any, model: Any) -> Any:
        batch = {name: value.to(user.device) for name, value in next(iterator).items()}
        tokens, labels = batch["tokens"].reshape(1, -1), batch["labels"].reshape(1, -1)
        ends = torch.arange(0, tokens.numel() + 1, ROW, dtype=torch.int32, device=user.device)
        lengths = PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=ROW, max_seqlen_kv=ROW
        )
        places = batch["position_ids"].reshape(1, -1)
        output = model(tokens, places, None, labels=labels, packed_seq_params=lengths)
        return output, lambda losses: user.loss_function(batch["loss_mask"].reshape(1, -1), losses)

    user.forward_step = forward_step


def _implementation(user: Any) -> str:
    """The attention that the model has, by transformers' name of it."""
    built = user.model
    while hasattr(built, "module"):
        built = built.module
    name = type(built.decoder.layers[0].self_attention.core_attention).__name__
    return "eager" if name == "DotProductAttention" else name


def _reference(check: dict[str, Any], record: MegatronRecord, trained: set[str]) -> tuple[float, fp64.Weights]:
    """The reference's loss and gradients for the rows that the first step was given."""
    if check["layout"] == "packed":
        rows = [row for batch in record.batches for line in range(len(batch["tokens"])) for row in _pieces(batch, line)]
        return fp64.mean_loss_and_gradients(record.weights, trained, rows, demands.SHAPE)
    prompts = tiny.PROMPTS if check["layout"] == "padded" else [0] * len(tiny.PROMPTS)
    rows = [(row, tiny.targets(row, prompt)) for row, prompt in zip(tiny.rows(), prompts)]
    batches = [{"input_ids": batch["tokens"]} for batch in record.batches]
    numbers = demands.rows_in(batches, [tokens for tokens, _ in rows])
    if len(numbers) != hugging_face.BATCH * hugging_face.ACCUMULATED:
        raise Failed(f"a step had the rows {numbers}")
    return fp64.mean_loss_and_gradients(record.weights, trained, [rows[number] for number in numbers], demands.SHAPE)


def _pieces(batch: dict[str, torch.Tensor], line: int) -> list[fp64.Row]:
    """The pieces of documents in a packed sample, each found in the documents; an end token predicts nothing."""
    pieces: list[list[int]] = [[]]
    for token in batch["tokens"][line].tolist():
        pieces[-1].append(token)
        if token == tiny.END:
            pieces.append([])
    rows = []
    for number, piece in enumerate(pieces):
        if not piece:
            continue
        following = _following(piece, first=number == 0)
        wanted = [data.IGNORED if token == tiny.END else after for token, after in zip(piece, [*piece[1:], following])]
        rows.append((piece, wanted))
    return rows


def _following(piece: list[int], *, first: bool) -> int:
    """The token that follows a piece of a document; the first of a sample may begin in the document's midst."""
    if piece[-1] == tiny.END:
        return data.IGNORED
    for row in tiny.rows():
        for start in range(len(row) - len(piece) if first else 1):
            if row[start : start + len(piece)] == piece:
                return row[start + len(piece)]
    raise Failed(f"a sample has tokens that are of no document: {piece[:8]} ... of {len(piece)}")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Set up megatron-core's groups for the only process of a training, and take them away after it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    on_gpu = training.device_here().type == "cuda"
    with (
        mock.patch.dict(os.environ, {name: str(value) for name, value in own.items()}),
        contextlib.ExitStack() as stack,
    ):
        if not on_gpu:
            stack.enter_context(_without_cuda())
        from megatron.core import parallel_state, tensor_parallel

        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        stack.callback(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel()
        stack.callback(parallel_state.destroy_model_parallel)
        if on_gpu:
            torch.cuda.set_device(0)
            tensor_parallel.model_parallel_cuda_manual_seed(1234)
        yield


@contextlib.contextmanager
def _without_cuda() -> Iterator[None]:
    """Answer by the CPU what megatron-core asks of CUDA: where to put a tensor, and the state of a generator."""
    with (
        mock.patch("torch.cuda.current_device", return_value="cpu"),
        mock.patch("torch.cuda.synchronize"),
    ):
        from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

        with mock.patch.object(CudaRNGStatesTracker, "fork", return_value=contextlib.nullcontext()), _OnCpu():
            yield


class _OnCpu(TorchFunctionMode):
    """Puts on the CPU what is asked for on a GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")  # the distributed optimizer asks for these words
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)
