"""The loops in which a point is trained: this suite's own, and those of trainers with their defaults."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from speed_tests.points import Point

STEPS = 10_000
"""More than any point takes; the callback ends the training."""


def forward_backward(point: Point, trained: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the loss of a batch, with gradients added to the weights."""
    kind = batch["input_ids"].device.type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=bool(point.weights)):
        loss: torch.Tensor = trained(**batch)["loss"]
    loss.backward()
    return loss.detach()


def train(point: Point, trained: Any, batch: dict[str, Any], run: Any) -> None:
    """Take steps in the loop that a point names; ``run`` is told when the first begins and when each has ended."""
    loop = {"": _train_plainly, "trainer": _train_with_trainer, "trl": _train_with_trl, "unsloth": _train_with_trl}
    loop[point.loop](point, trained, batch, run)


def load_with_unsloth(model: Any, point: Point) -> Any:
    """Return a model as unsloth loads it from its folder, for the training of all weights."""
    from unsloth import FastLanguageModel

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        _make_tokenizer(model.config.vocab_size).save_pretrained(folder)
        loaded, _ = FastLanguageModel.from_pretrained(
            folder,
            max_seq_length=point.length,
            dtype=model.dtype,
            load_in_4bit=False,
            full_finetuning=True,
            use_gradient_checkpointing="unsloth" if point.memory else False,
        )
    return loaded


def _train_plainly(point: Point, trained: Any, batch: dict[str, Any], run: Any) -> None:
    """Take steps in a loop without anything else in it."""
    options = {"foreach": True} if point.optimizer else {"fused": True}
    parameters = [weight for weight in trained.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, **options)
    run.begin()
    while not run.done:
        loss = forward_backward(point, trained, batch)
        optimizer.step()
        optimizer.zero_grad()
        run.end_step(loss)


def _train_with_trainer(point: Point, trained: Any, batch: dict[str, Any], run: Any) -> None:
    """Take steps in the loop of transformers' Trainer, with its defaults: it clips gradients and reads each batch."""
    import transformers

    read = {name: value.cpu() if torch.is_tensor(value) else value for name, value in batch.items()}

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return model(**inputs)["loss"]

    _run_trainer(
        Trainer,
        run,
        model=trained,
        args=transformers.TrainingArguments(
            **_arguments(point, batch), per_device_train_batch_size=1, remove_unused_columns=False
        ),
        train_dataset=[{"row": row} for row in range(STEPS)],
        data_collator=lambda _: dict(read),
    )


def _train_with_trl(point: Point, trained: Any, batch: dict[str, Any], run: Any) -> None:
    """Take steps with TRL's SFTTrainer on rows of tokens: it collates them, and counts tokens and right ones."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = batch["input_ids"].tolist()
    _run_trainer(
        SFTTrainer,
        run,
        model=trained.model,
        args=SFTConfig(
            **_arguments(point, batch),
            per_device_train_batch_size=len(rows),
            max_length=point.length,
            gradient_checkpointing=bool(point.memory),
        ),
        train_dataset=Dataset.from_dict({"input_ids": rows * 64}),
        processing_class=_make_tokenizer(trained.config.vocab_size),
    )


def _arguments(point: Point, batch: dict[str, Any]) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": STEPS,
        "bf16": bool(point.weights),
        "optim": "adamw_torch" if point.optimizer else "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "learning_rate": 1e-5,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": batch["input_ids"].device.type == "cpu",
    }


def _run_trainer(kind: Any, run: Any, **parts: Any) -> None:
    import transformers

    class Ends(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            run.begin()

        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            run.end_step(state.last_loss)
            control.should_training_stop = run.done

    class Trainer(kind):  # type: ignore[misc]
        def training_step(self, *args: Any, **options: Any) -> Any:
            self.state.last_loss = super().training_step(*args, **options).detach()
            return self.state.last_loss

    Trainer(callbacks=[Ends()], **parts).train()


def _make_tokenizer(vocabulary: int) -> Any:
    """Return a tokenizer with as many words as a model, which trainers ask for and no row needs."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({str(number): number for number in range(vocabulary)}, unk_token="0"))  # noqa: S106
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="1", pad_token="2")  # noqa: S106
