"""unsloth's supervised fine-tuning, as its notebooks start it: FastLanguageModel, get_peft_model, TRL's SFTTrainer.

``padding-free`` is what unsloth makes of TRL's default: rows one after another in one row, without padding. ``padded``
turns that off (``padding_free=False``), ``packed`` is TRL's packing. ``responses`` is its ``train_on_responses_only``,
``completion`` a data set of prompts and completions. ``lora`` trains adapters on weights in bf16 (in ``bf16``: in fp32
under autocast, which unsloth always turns on), ``qlora`` on weights in four bits, ``full`` all weights. All with its
own gradient checkpointing, its notebooks' choice, but ``uncheckpointed-lora``.
``resumed-lora`` goes on from a checkpoint in a second trainer. No setting of attention can be asked for: unsloth takes
flash-attn, xformers or torch's kernels, whichever it finds.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from smoke_tests.trainers import demands, hugging_face, tiny, unsloth_faults
from smoke_tests.trainers.unsloth_checks import FAULTS

from smoke_tests import profiling
from smoke_tests.outcomes import Failed
from smoke_tests.settings import families_in

if TYPE_CHECKING:
    from smoke_tests.trainers import fp64
    from smoke_tests.trainers.step_record import StepRecord

ROW_LIMIT = 256
ASKED, ANSWERED = "Q: ", "\nA: "
"""What precedes a prompt and a completion where unsloth looks for these."""
OWN_KERNELS = ("xformers::", "fmha_", "flash_fwd", "flash_bwd", "_varlen_attn")
"""What is in the names of kernels and operators that unsloth takes beside those of torch's SDPA."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            _train(check, report, Path(name), family=family, fault=fault)

    _import_unsloth()
    demands.judge(check, report, FAULTS, train)


def _import_unsloth() -> None:
    """Import unsloth, which patches TRL and transformers when it is imported, and writes modules that it compiles."""
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"  # a file that it would fetch to count its users
    if "UNSLOTH_COMPILE_LOCATION" not in os.environ:
        os.environ["UNSLOTH_COMPILE_LOCATION"] = tempfile.mkdtemp()  # else in the folder at hand
    if _refusals:  # a second import would begin amid what the first one left, and end elsewhere
        raise _refusals[0]
    try:
        import unsloth  # noqa: F401
    except NotImplementedError as error:
        _refusals.append(error)
        raise


_refusals: list[NotImplementedError] = []


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    tiny.write_model(folder / "model", family)
    tiny.write_lines(folder / "rows.jsonl", [_line(check, *parts) for parts in tiny.split_rows()])
    parts = {
        "from_pretrained": _loading(check),
        "get_peft_model": _adapters(check),
        "SFTConfig": _options(check, folder),
    }
    hugging_face.keep_options(report, folder, {name: part for name, part in parts.items() if part})
    caught = hugging_face.train(lambda: _trainer(check, folder).train(), unsloth_faults.FAULTS.get(fault))
    trainer, record = caught[0], caught[1].steps[0]
    report["losses"] = logged = hugging_face.losses(trainer)
    _demand_attention(trainer, record, report)
    count = None if check["layout"] == "packed" else hugging_face.BATCH * hugging_face.ACCUMULATED
    demands.demand_first_step(
        check, record, report, lambda names: demands.step_reference(record, names, _rows(check), count)
    )
    demands.demand_logged(logged, record)
    demands.demand_learning(check, logged)
    if check["mode"].startswith("resumed"):
        _demand_resumption(check, folder, logged, fault)


def _demand_attention(trainer: Any, record: StepRecord, report: dict[str, Any]) -> None:
    """Say which attention unsloth took, and demand that a kernel of it ran."""
    from unsloth.utils import attention_dispatch

    report["resolved"] = {
        "implementation": hugging_face.implementation(trainer),
        "dense": attention_dispatch.select_attention_backend(use_varlen=False),
        "packed": attention_dispatch.select_attention_backend(use_varlen=True),
        "trainer": record.trainer,
    }
    own = {name[: profiling.KEPT_CHARACTERS] for name in record.kernels if any(part in name for part in OWN_KERNELS)}
    report["kernels"] = sorted(own | set(profiling.attention_names(record.kernels)))
    if not own and not families_in(record.kernels):
        raise Failed("no kernel of attention is in the profile of the first step")


def _demand_resumption(check: dict[str, Any], folder: Path, logged: list[float], fault: str) -> None:
    place = hugging_face.checkpoint(folder)
    again, _ = hugging_face.train(
        lambda: _trainer(check, folder).train(resume_from_checkpoint=place), unsloth_faults.RESUMED_FAULTS.get(fault)
    )
    seen, wanted = hugging_face.losses(again)[hugging_face.SAVED :], logged[hugging_face.SAVED :]
    demands.demand_same_losses(seen, wanted, "after the checkpoint", bf16=True)


def _line(check: dict[str, Any], prompt: str, completion: str) -> dict[str, str]:
    if check["layout"] == "completion":
        return {"prompt": prompt, "completion": completion}
    if check["layout"] == "responses":
        return {"text": f"{ASKED}{prompt}{ANSWERED}{completion}<end>"}
    return {"text": f"{prompt}{completion}<end>"}  # the end token is written by the user: unsloth adds none


def _loading(check: dict[str, Any]) -> dict[str, Any]:
    """The options of FastLanguageModel.from_pretrained."""
    return {
        "max_seq_length": ROW_LIMIT,
        "dtype": {"bf16": "float32", "bf16-pure": "bfloat16"}[check["dtype"]],
        "load_in_4bit": check["mode"] == "qlora",
        **({} if demands.is_adapted(check) else {"full_finetuning": True}),
        **({} if _is_checkpointed(check) else {"use_gradient_checkpointing": False}),
    }


def _adapters(check: dict[str, Any]) -> dict[str, Any]:
    """The options of FastLanguageModel.get_peft_model; none where all weights are trained."""
    if not demands.is_adapted(check):
        return {}
    return {
        "r": hugging_face.RANK,
        "lora_alpha": hugging_face.ALPHA,
        "target_modules": hugging_face.TARGETS,
        "use_gradient_checkpointing": "unsloth" if _is_checkpointed(check) else False,
    }


def _is_checkpointed(check: dict[str, Any]) -> bool:
    return not str(check["mode"]).startswith("uncheckpointed")


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    packed = check["layout"] == "packed"
    return {
        **hugging_face.options(check, folder),
        "bf16": True,
        "max_length": ROW_LIMIT,
        "packing": packed,
        "per_device_train_batch_size": 1 if packed else hugging_face.BATCH,
        "dataset_num_proc": 1,
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        **({"padding_free": False} if check["layout"] == "padded" else {}),
    }


def _trainer(check: dict[str, Any], folder: Path) -> Any:
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer
    from unsloth import FastLanguageModel
    from unsloth.chat_templates import train_on_responses_only

    # A full fine-tuning before this one leaves it set, and then no adapters are added
    # (docs/incidents/unsloth-full-finetuning-stays.md).
    os.environ["UNSLOTH_ENABLE_FULL_FINETUNING"] = "0"
    loading = _loading(check)
    loading["dtype"] = getattr(torch, loading["dtype"])
    built, tokenizer = FastLanguageModel.from_pretrained(str(folder / "model"), **loading)
    if demands.is_adapted(check):
        built = FastLanguageModel.get_peft_model(built, **_adapters(check))
    trainer = SFTTrainer(
        model=built,
        processing_class=tokenizer,
        args=SFTConfig(**_options(check, folder)),
        train_dataset=load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train"),
    )
    if check["layout"] == "responses":
        trainer = train_on_responses_only(trainer, instruction_part=ASKED, response_part=ANSWERED, num_proc=1)
    return trainer


def _rows(check: dict[str, Any]) -> list[fp64.Row]:
    """The rows as unsloth lays them out, and what is trained of each."""
    rows = []
    for prompt, completion in tiny.split_rows():
        asked = f"{ASKED}{prompt}{ANSWERED}" if check["layout"] == "responses" else prompt
        tokens = [*tiny.tokens_of(asked + completion), tiny.END]
        only_completion = check["layout"] in ("responses", "completion")
        rows.append((tokens, tiny.targets(tokens, len(asked) if only_completion else 0)))
    return rows
