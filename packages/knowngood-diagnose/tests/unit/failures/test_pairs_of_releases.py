"""Which side of a pair is too old or too new, whose method an error is of, and what a process still has in memory."""

from __future__ import annotations

import json

import pytest

PACKAGES = "/opt/env/lib/python3.10/site-packages"


def frame(path: str, line: int, function: str, code: str) -> str:
    """One frame of a traceback."""
    return f'  File "{path}", line {line}, in {function}\n    {code}\n'


BEGIN = "Traceback (most recent call last):\n"
INNER = f"{PACKAGES}/transformers/trainer.py"
CASES = {
    "removed with others that are passed before": (
        frame(
            f"{PACKAGES}/transformers/trainer.py", 4252, "create_accelerator", "self.accelerator = Accelerator(**args)"
        )
        + "TypeError: Accelerator.__init__() got an unexpected keyword argument 'use_seedable_sampler'\n",
        ("accelerate", "likely", "does not have `use_seedable_sampler`", "accelerate"),
    ),
    "an override with too few positions": (
        frame(INNER, 2524, "_inner_training_loop", "loss = self.training_step(model, inputs, num_items_in_batch)")
        + "TypeError: OwnTrainer.training_step() takes 3 positional arguments but 4 were given\n",
        ("your-code", "sure", "OwnTrainer overrides `training_step`", "transformers"),
    ),
    "an override without a keyword, before Python 3.10": (
        frame(INNER, 2144, "_maybe_log_save_evaluate", "metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)")
        + "TypeError: evaluate() got an unexpected keyword argument 'ignore_keys'\n",
        ("your-code", "sure", "overrides `evaluate`", "**kwargs"),
    ),
    "a hook of another release": (
        frame(f"{PACKAGES}/pytorch_lightning/trainer/trainer.py", 1636, "_call_callback_hooks", "fn(self, *args)")
        + "TypeError: on_train_epoch_end() missing 1 required positional argument: 'outputs'\n",
        ("your-code", "sure", "hook `on_train_epoch_end` wants `outputs`", "Take outputs out"),
    ),
    "a bare model": (
        frame("/home/u/train.py", 196, "train", "size = model.module.h")
        + "AttributeError: 'PictureNet' object has no attribute 'module'\n",
        ("your-code", "likely", "is not wrapped", "getattr(model, 'module', model)"),
    ),
    "an object of another package": (
        frame(f"{PACKAGES}/unsloth_zoo/temporary_patches/gemma.py", 384, "forward", "loss = outputs.loss")
        + "AttributeError: 'Gemma3ModelOutputWithPast' object has no attribute 'loss'\n",
        ("unsloth-zoo", "likely", "do not go together", "unsloth-zoo"),
    ),
    "files of two releases": (
        "peft==0.15.0\n"
        + frame(f"{PACKAGES}/peft/auto.py", 31, "<module>", "from .mapping import MODEL_TYPE_TO_PEFT_MODEL_MAPPING")
        + "ImportError: cannot import name 'MODEL_TYPE_TO_PEFT_MODEL_MAPPING' from 'peft.mapping' "
        f"({PACKAGES}/peft/mapping.py)\n",
        ("peft", "sure", "mixed", "Reinstall"),
    ),
    "a keyword that the stated release takes": (
        "Successfully installed transformers-4.46.3\n"
        + frame("train.py", 9, "<module>", "trainer = Trainer(model=model, processing_class=tokenizer)")
        + "TypeError: Trainer.__init__() got an unexpected keyword argument 'processing_class'\n",
        ("transformers", "likely", "runs another transformers", "Restart"),
    ),
    "a release that is new enough": (
        (
            "accelerate==0.20.3\nImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.20.1`: "
            "Please run `pip install accelerate -U`\n"
        ),
        ("accelerate", "sure", "0.20.3 is installed and new enough", "Restart"),
    ),
    "a module of the repository": (
        "megatron_core 0.8.0\n"
        + frame("/home/u/run.py", 18, "<module>", "from megatron.training.tokenizer import tokenizer")
        + "ModuleNotFoundError: No module named 'megatron.training'\n",
        ("megatron-core", "sure", "belongs to the repository", "PYTHONPATH"),
    ),
    "a number in quotes": (
        (
            "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
            "- ds gradient_accumulation_steps=8 vs hf gradient_accumulation_steps=8\n"
        ),
        ("your-code", "sure", 'is the text "8"', "without quotes"),
    ),
    "a subclass that leaves out what its base sets": (
        frame(f"{PACKAGES}/torch/optim/lr_scheduler.py", 166, "step", "self.print_lr(self.verbose, i, lr, epoch)")
        + "AttributeError: 'WarmupMultiStepLR' object has no attribute 'verbose'\n",
        ("your-code", "likely", "did not set `verbose`", "super().__init__"),
    ),
    "a keyword, before Python 3.10 and without a release": (
        frame("pretrain.py", 44, "<module>", "scheduler = torch.optim.lr_scheduler.LambdaLR(optim, f, verbose=True)")
        + "TypeError: __init__() got an unexpected keyword argument 'verbose'\n",
        ("torch", "likely", "an older or a newer one runs", "torch"),
    ),
    "a log that ends at the line that raises": (
        frame(f"{PACKAGES}/torch/amp/grad_scaler.py", 212, "_unscale_grads_", "x = 1").replace("    x = 1\n", "")
        + '    raise ValueError("Attempting to unscale FP16 gradients.")\n',
        ("torch", "likely", "fp16", "fp32"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_read_from_the_line_and_the_releases(name, first_match):
    log, (component, certainty, title, remedy) = CASES[name]
    match = first_match(BEGIN + log)
    assert (match["component"], match["certainty"]) == (component, certainty)
    assert title in match["title"]
    assert remedy in json.dumps(match["fix"])
