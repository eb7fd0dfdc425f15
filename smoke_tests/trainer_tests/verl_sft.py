"""verl's supervised fine-tuning, as ``torchrun -m verl.trainer.sft_trainer`` starts it, on conversations in a file.

``packed`` is its default: the rows of a micro-batch one after another, without padding (``use_remove_padding``);
``padded`` is without that, and ``dynamic`` lets it cut a batch into micro-batches by tokens, its default too. The
others have two rows each. In ``fp32`` its mixed precision, which is bf16, is turned off. ``full`` trains all weights
under FSDP, its default, ``fsdp2`` under the newer one, ``lora`` adapters; all with gradient checkpointing, its default,
which ``uncheckpointed`` turns off. ``resumed`` goes on from its checkpoint, ``command`` is its command.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from smoke_tests.trainers import demands, hugging_face, tiny, verl_faults, verl_place
from smoke_tests.trainers.verl_checks import FAULTS
from smoke_tests.trainers.verl_record import EngineRecord

from smoke_tests import training
from smoke_tests.outcomes import Failed, NotRun
from smoke_tests.precision import PRECISIONS
from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from smoke_tests.trainers import fp64

ROWS = hugging_face.BATCH * hugging_face.ACCUMULATED
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}Q: {{ message.content }}\n"
    "{% else %}A: {{ message.content }}<end>{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
)
"""A chat template, which the tiny tokenizer has not."""
TOKENS = 256
"""How many a micro-batch may have where verl cuts batches by tokens: more than any row, less than any four."""


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Train with the trainer, and ask of it what README.md says."""
    if check["dtype"] == "bf16" and check["setting"] != "fa2" and training.device_here().type == "cpu":
        raise NotRun("on a CPU autocast leaves the loss in bf16, which it does not on a GPU")
    if check["mode"] == "command" and training.device_here().type == "cpu":
        raise NotRun("the command is a process of its own, in which nothing stands in for verl's platform of a GPU")

    def train(family: str, fault: str) -> None:
        with tempfile.TemporaryDirectory() as name, verl_place.alone(report):
            _train(check, report, Path(name), family=family, fault=fault)

    demands.judge(check, report, FAULTS, train)


def _train(check: dict[str, Any], report: dict[str, Any], folder: Path, *, family: str, fault: str) -> None:
    import pandas as pd

    tiny.write_model(folder / "model", family)
    write_template(folder / "model")
    talks = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        for prompt, completion in tiny.split_rows()
    ]
    pd.DataFrame({"messages": talks}).to_parquet(folder / "rows.parquet")
    options = _options(check, folder)
    hugging_face.keep_options(report, folder, {"options": options}, command=f"torchrun -m {verl_place.MODULE}")
    trained = _Training(options, fault)
    record = trained.record
    report["losses"] = trained.losses
    demands.demand_setting(check, trained.implementation, record, report)
    demands.demand_first_step(check, record, report, lambda names: demands.step_reference(record, names, _rows(), ROWS))
    demands.demand_logged(trained.losses, record)
    demands.demand_learning(check, trained.losses)
    if check["mode"].startswith("resumed"):
        place = str(folder / "out" / f"global_step_{hugging_face.SAVED}")
        on = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": place}
        again, wanted = _Training(options | on, fault).losses, trained.losses[hugging_face.SAVED :]
        demands.demand_same_losses(again, wanted, "after the checkpoint", bf16=True)
    if check["mode"] == "command":
        own = options | {"trainer.default_local_dir": str(folder / "command")}
        demands.demand_same_losses(_losses_of_command(own, folder), trained.losses, "with the command", bf16=True)


class _Training:
    """A training by the command, in this process: its losses, and the record of its first step."""

    def __init__(self, options: dict[str, Any], fault: str) -> None:
        from verl.trainer.sft_trainer import SFTTrainer
        from verl.utils.tracking import Tracking
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

        self.losses: list[float] = []
        self.implementation = ""
        fit, adapt, log = SFTTrainer.fit, FSDPEngine._build_lora_module, Tracking.log

        def adapted(engine: Any, module: Any) -> Any:
            built = adapt(engine, module)
            hugging_face.fill_adapters(built)
            verl_faults.put_into_model(fault, built)
            return built

        def fitted(trainer: Any) -> Any:
            self.implementation = str(trainer.model_config.hf_config._attn_implementation)
            verl_faults.put_into_trainer(fault, trainer, resumed="trainer.resume_from_path" in options)
            self.record = EngineRecord(trainer.engine, type(trainer).__name__, training.device_here())
            return fit(trainer)

        def logged(tracking: Any, data: dict[str, Any], step: int, **known: Any) -> Any:
            self.losses.append(data["train/loss"])
            return log(tracking, data=data, step=step, **known)

        with (
            mock.patch.object(SFTTrainer, "fit", fitted),
            mock.patch.object(FSDPEngine, "_build_lora_module", adapted),
            mock.patch.object(Tracking, "log", logged),
        ):
            verl_place.call_module(options)


def write_template(folder: Path) -> None:
    """Give a tokenizer in a folder the chat template."""
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def _options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    layout, mode, adapted = check["layout"], check["mode"], demands.is_adapted(check)
    attention = {"+model.override_config.attn_implementation": SETTINGS[check["setting"]].implementation}
    whole = {f"{name}_dtype": "fp32" for name in ("param", "reduce", "buffer")}
    saved = {"trainer.save_freq": hugging_face.SAVED} if mode.startswith("resumed") else {}
    return {
        "model.path": str(folder / "model"),
        "data.train_files": str(folder / "rows.parquet"),
        "data.train_batch_size": ROWS,
        "data.micro_batch_size_per_gpu": hugging_face.BATCH,
        "data.use_dynamic_bsz": layout == "dynamic",
        "data.max_token_len_per_gpu": TOKENS,
        "data.num_workers": 0,
        "model.use_remove_padding": layout != "padded",
        **({} if check["setting"] == "fa2" else attention),  # it is its default
        **({"model.lora_rank": hugging_face.RANK, "model.lora_alpha": hugging_face.ALPHA} if adapted else {}),
        **({"model.enable_gradient_checkpointing": False} if mode == "uncheckpointed" else {}),
        **({"engine.strategy": "fsdp2"} if mode.startswith("fsdp2") else {}),
        **({} if PRECISIONS[check["dtype"]].autocast else {"+engine.mixed_precision": whole}),
        "optim.lr": 1e-2 if adapted else 4e-3,
        "optim.clip_grad": 1e9,
        "trainer.total_epochs": 4,
        "trainer.total_training_steps": 1 if demands.is_short(check) else hugging_face.STEPS,
        "trainer.default_local_dir": str(folder / "out"),
        "trainer.logger": ["console"],
        "trainer.device": training.device_here().type,
        **saved,
        "hydra.run.dir": str(folder),
        "hydra.output_subdir": None,
        "hydra/job_logging": "disabled",
        "hydra/hydra_logging": "disabled",
    }


def _losses_of_command(options: dict[str, Any], folder: Path) -> list[float]:
    """The losses that ``python -m verl.trainer.sft_trainer`` prints; torchrun would start the same process."""
    environment = verl_place.environment_of_command() | {"HOME": str(folder), "PYTHONPATH": ""}
    words = [sys.executable, "-m", verl_place.MODULE, *verl_place.words_of(options)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if done.returncode:
        raise Failed(f"`{verl_place.MODULE}` ended with status {done.returncode}: {done.stderr[-600:]}")
    return verl_place.numbers_in(done.stdout, "train/loss")


def _rows() -> list[fp64.Row]:
    """The rows as the chat template lays them out; what follows ``A: `` is trained."""
    rows = []
    for prompt, completion in tiny.split_rows():
        asked = tiny.tokens_of(f"Q: {prompt}\nA: ")
        tokens = [*asked, *tiny.tokens_of(completion), tiny.END]
        rows.append((tokens, tiny.targets(tokens, len(asked))))
    return rows
