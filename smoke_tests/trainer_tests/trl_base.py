"""What the checks of TRL's trainers share: the options by TRL's own names, and adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import demands, hugging_face

from smoke_tests.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


def options(check: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The options of every trainer. What is not stated is TRL's own default, gradient checkpointing among it."""
    setting = SETTINGS[check["setting"]].implementation
    model_options = {"attn_implementation": setting, "dtype": "float32"}
    return {**hugging_face.options(check, folder), "model_init_kwargs": model_options}


ADAPTERS = {
    "r": hugging_face.RANK,
    "lora_alpha": hugging_face.ALPHA,
    "target_modules": hugging_face.TARGETS,
    "task_type": "CAUSAL_LM",
}
"""The options of LoRA on every projection."""


def adapters(check: dict[str, Any]) -> Any:
    """The configuration of LoRA, or None where a check trains all weights."""
    import peft

    return peft.LoraConfig(**ADAPTERS) if demands.is_adapted(check) else None


def keep_options(check: dict[str, Any], report: dict[str, Any], folder: Path, parts: dict[str, Any]) -> None:
    """Keep in a check's report the options by the classes of TRL that take them, and those of adapters."""
    more = {"LoraConfig": ADAPTERS} if demands.is_adapted(check) else {}
    hugging_face.keep_options(report, folder, parts | more)
