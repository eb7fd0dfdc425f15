"""torchtitan's trainer with a flavour of Llama 3 or Qwen3 that is made on the spot, from weights of transformers' kind.

``torchtitan-text`` trains whole documents with its loader of texts, which cuts their stream into rows of one length
(``packed``). ``torchtitan-chat`` trains answers with its loader of chats, which fills rows with as many as fit:
``padded`` has chats of which no two fit, ``packed`` has several to a row. Two batches are accumulated to a step, the
loss is the chunked one, activations are recomputed selectively, FSDP holds the weights of the one process: what the
debug flavours of torchtitan have.

``flex`` is its default, FlexAttention as Inductor compiles it, which has no backward on a CPU. ``eager`` is the same
without the compiler: torch's own mathematics of FlexAttention with torchtitan's masks. ``fa4`` is its ``flex_flash``,
``fa3`` its ``varlen`` as a Hopper runs it. ``sdpa`` is asked for by name where rows are packed, which torchtitan
refuses, and put into the configuration where they are not. ``resumed`` goes on from a checkpoint; ``command`` is
``torchrun -m torchtitan.train``. Without a GPU torchtitan is told that its device is the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import transformers
from smoke_tests.trainers import demands, fp64, hugging_face, tiny, torchtitan_faults, torchtitan_script
from smoke_tests.trainers.torchtitan_checks import CHAT_FAULTS, FAMILIES, TEXT_FAULTS
from smoke_tests.trainers.torchtitan_record import TitanRecord

from smoke_tests import model, training
from smoke_tests.outcomes import Failed
from smoke_tests.precision import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW = 128
PADDED = (0, 1, 3, 4, 6, 7)  # of the chats; no two of them fit into one row of torchtitan's
BACKENDS = {"flex": "flex", "eager": "flex", "fa3": "varlen", "fa4": "flex_flash", "sdpa": "sdpa"}
"""What ``attn_backend`` calls each setting."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""
    _import_torchtitan()

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family="qwen3" if fault else family, fault=fault)

    demands.judge(check, report, (*TEXT_FAULTS, *CHAT_FAULTS), train)


def _import_torchtitan() -> None:
    """Import the trainer; on a machine without a GPU it takes CUDA for granted, unless torch names another device."""
    if training.device_here().type == "cuda":
        import torchtitan.trainer
    else:
        with mock.patch("torch._utils._get_available_device_type", return_value="cpu"):
            import torchtitan.tools.utils
        import torchtitan.components.metrics
        import torchtitan.distributed.utils
        import torchtitan.trainer

        torchtitan.components.metrics.DeviceMemoryMonitor = _NoMemoryMonitor
        torchtitan.distributed.utils.set_pg_timeouts = lambda **_known: None  # it names a device by its number


class _NoMemoryMonitor:
    """Stands for what counts a GPU's memory."""

    device_name, device_capacity_gib = "CPU", 0.0

    def __init__(self, _device: str) -> None:
        pass

    def get_peak_stats(self) -> Any:
        from torchtitan.components.metrics import DeviceMemStats

        return DeviceMemStats(*([0] * len(DeviceMemStats._fields)))

    def reset_peak_stats(self) -> None:
        pass


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    chat = check["detail"].startswith("torchtitan-chat")
    _write_model(folder / "model", family)
    _write_rows(folder / "rows.jsonl", chat=chat, layout=check["layout"])
    options = _options(check, folder, family=family, chat=chat)
    command = "torchrun --nproc_per_node 1 -m torchtitan.train --module torchtitan_script --config tiny"
    hugging_face.keep_options(report, folder, {"options.json": options}, command=command)
    with _attention(check):
        trained, record = _run_trainer(options, torchtitan_faults.FAULTS.get(fault))
        report["losses"] = record.logged
        demands.demand_setting(check, _implementation(check, trained), record, report)
        demands.demand_first_step(
            check, record, report, lambda names: _reference(record, names, chat=chat, options=options)
        )
        demands.demand_logged(record.logged, record)
        if not fault:
            training.demand_learning(record.logged)
        if check["mode"] == "resumed":
            again = {**options, "checkpoint": {**options["checkpoint"], "load_step": hugging_face.SAVED}}
            _, resumed = _run_trainer(again, torchtitan_faults.RESUMED_FAULTS.get(fault))
            demands.demand_same_losses(resumed.logged, record.logged[hugging_face.SAVED :], "after the checkpoint")
    if check["mode"] == "command":
        losses = _losses_of_command(options, folder, command.split())
        demands.demand_same_losses(losses, [round(loss, 5) for loss in record.logged], "with the command")


def _write_model(folder: Path, family: str) -> None:
    tiny.write_model(folder, "qwen3")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    if family == "llama3":
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        known = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        known += ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "eos_token_id")
        built = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{name: config[name] for name in known}, tie_word_embeddings=False)
        )
        model.fill(built)
        built.save_pretrained(folder)


def _write_rows(file: Path, *, chat: bool, layout: str) -> None:
    if chat:
        split = tiny.split_rows()
        lines = [
            {"prompt": split[number][0], "completion": split[number][1]}
            for number in (PADDED if layout == "padded" else range(len(split)))
        ]
    else:
        lines = [{"text": tiny.text(row[:-1])} for row in tiny.rows()]
    tiny.write_lines(file, lines)


def _options(check: dict[str, Any], folder: Path, *, family: str, chat: bool) -> dict[str, Any]:
    packed = "packed" in check["layout"]
    steps = 1 if check["detail"].rpartition("/")[2] not in FAMILIES and check["mode"] == "full" else hugging_face.STEPS
    batch = 1 if chat and packed else hugging_face.BATCH
    return {
        "family": family,
        "shape": {**dataclasses.asdict(model.TINY), "vocabulary": tiny.VOCABULARY},
        "attention": "causal" if check["setting"] == "sdpa" and not packed else BACKENDS[check["setting"]],
        "model": str(folder / "model"),
        "rows": str(folder / "rows.jsonl"),
        "chat": chat,
        "dump_folder": str(folder / "out"),
        "lr": 4e-3,
        "lr_scheduler": {"warmup_steps": 0, "decay_ratio": 0.0},
        "training": {
            "local_batch_size": batch,
            "global_batch_size": batch * hugging_face.ACCUMULATED,
            "seq_len": 2 * ROW if chat and packed else ROW,
            "steps": steps,
            "max_norm": 1e9,
            "mixed_precision_param": "bfloat16" if PRECISIONS[check["dtype"]].autocast else "float32",
        },
        "checkpoint": {"interval": hugging_face.SAVED},
    }


@contextlib.contextmanager
def _attention(check: dict[str, Any]) -> Iterator[None]:
    """Take the compiler away where ``eager`` is asked for, and the CPU's ban of a backward that its kernel lacks."""
    if check["setting"] != "eager":
        yield
        return
    from torch.nn.attention import flex_attention
    from torchtitan.models.common.attention import FlexAttention

    with (
        mock.patch.object(FlexAttention, "_compiled_flex_attn", staticmethod(flex_attention.flex_attention)),
        mock.patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", new=True),
        mock.patch.object(flex_attention, "_validate_device", return_value=None),
    ):
        yield


def _implementation(check: dict[str, Any], trainer: Any) -> str:
    """The attention that the model has, by transformers' names."""
    inner = trainer.model_parts[0].layers["0"].attention.inner_attention
    named = {"ScaledDotProductAttention": "sdpa", "VarlenAttention": "flash_attention_3"}
    if (name := type(inner).__name__) != "FlexAttention":
        return named[name]
    if inner.kernel_options.get("BACKEND") == "FLASH":
        return "flash_attention_4"
    return "eager" if check["setting"] == "eager" else "flex_attention"


def _run_trainer(options: dict[str, Any], put: Any) -> tuple[Any, TitanRecord]:
    """What ``torchtitan.train`` does, in this process; returns the trainer, and the record of its first step."""
    with _alone():
        trainer = torchtitan_script.trainer_config(options).build()
        if put is not None:
            put(trainer)
        record = TitanRecord(trainer, training.device_here())
        try:
            trainer.train()
        finally:
            trainer.close()
    return trainer, record


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Say what torchrun tells the only process of a training, and undo what torchtitan changes in a process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    deterministic = torch.are_deterministic_algorithms_enabled()
    with mock.patch.dict(os.environ, {name: str(value) for name, value in own.items()}):
        try:
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            torch.use_deterministic_algorithms(deterministic)
            gc.enable()


def _text_rows() -> dict[tuple[int, ...], list[fp64.Row]]:
    """The rows of the loader of texts: the documents' stream, cut; each piece of a document stands for itself."""
    stream = [
        (token, wanted, number) for number, row in enumerate(tiny.rows()) for token, wanted in zip(row[:-1], row[1:])
    ]
    samples = {}
    for start in range(0, len(stream) - ROW + 1, ROW):
        part = stream[start : start + ROW]
        numbers = sorted({number for _, _, number in part})
        pieces = [[(token, wanted) for token, wanted, owner in part if owner == number] for number in numbers]
        rows = [([token for token, _ in piece], [wanted for _, wanted in piece]) for piece in pieces]
        samples[tuple(token for token, _, _ in part)] = rows
    return samples


def _rows_of_text(sample: list[int]) -> list[fp64.Row]:
    """The pieces of documents in a row of the loader of texts."""
    samples = _text_rows()
    if tuple(sample) not in samples:
        raise Failed(f"a batch has a row that is not cut from the texts: {sample[:8]} ... of {len(sample)}")
    return samples[tuple(sample)]


def _rows_of_chat(sample: list[int]) -> list[fp64.Row]:
    """The chats in a row of the loader of chats, found by their tokens; the rest must be end tokens, its filling."""
    rows: list[fp64.Row] = []
    rest = sample
    while any(token != tiny.END for token in rest):
        found = (n for n, row in enumerate(tiny.rows()) if rest[: len(row) - 1] == row[:-1])
        number = next(found, None)
        if number is None:
            raise Failed(f"a batch has tokens that are no whole chat: {rest[:8]} ... of {len(rest)}")
        row = tiny.rows()[number]
        rows.append((row[:-1], tiny.targets(row, tiny.PROMPTS[number])[:-1]))
        rest = rest[len(row) - 1 :]
    return rows


def _reference(
    record: TitanRecord, trained: set[str], *, chat: bool, options: dict[str, Any]
) -> tuple[float, fp64.Weights]:
    """The reference's loss and gradients for the rows that the first step was given."""
    if len(record.samples) != options["training"]["global_batch_size"]:
        raise Failed(
            f"a step had {len(record.samples)} rows, {options['training']['global_batch_size']} were asked for"
        )
    rows_of = _rows_of_chat if chat else _rows_of_text
    rows = [row for sample in record.samples for row in rows_of(sample)]
    return fp64.mean_loss_and_gradients(record.weights, trained, rows, demands.SHAPE)


def _losses_of_command(options: dict[str, Any], folder: Path, command: list[str]) -> list[float]:
    """The losses that torchtitan's command prints, run in a folder with the configuration."""
    options = {**options, "dump_folder": str(folder / "command")}
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    shutil.copy(torchtitan_script.__file__, folder)
    executable = str(Path(sys.executable).with_name(command[0]))
    own = {"HOME": str(folder), "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [executable, *command[1:]], cwd=folder, capture_output=True, text=True, check=False, env=os.environ | own
    )
    if done.returncode:
        raise Failed(f"`{' '.join(command[:5])}` ended with status {done.returncode}: {done.stderr[-600:]}")
    plain = re.sub(r"\x1b\[\d+m", "", done.stderr + done.stdout)
    return [float(loss) for loss in re.findall(r"step: +\d+ +loss: +([\d.]+)", plain)]
