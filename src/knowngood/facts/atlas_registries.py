"""Transformers' own registries: model types, attention functions, optimizers, schedulers, training arguments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from knowngood.facts.atlas_answer import NameAnswer, answer_about_key
from knowngood.facts.atlas_lookup import AtlasLookup

REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "model type": (
        "transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES[{}]",
        "transformers.models.auto.auto_mappings.CONFIG_MAPPING_NAMES[{}]",
    ),
    "attention function": ("transformers.modeling_utils.AttentionInterface._global_mapping[{}]",),
    "optimizer": ("transformers.training_args.OptimizerNames[{}]",),
    "scheduler": ("transformers.trainer_utils.SchedulerType[{}]",),
    "training argument": ("transformers.training_args.TrainingArguments.{}",),
}
"""What a registry holds -> the places of a key in it, over time."""


def find_registry_keys(transformers: AtlasLookup, key: str) -> Iterator[NameAnswer]:
    """Yield an answer for each registry of transformers that has a key in some release, such as `qwen3`."""
    for registry, places in REGISTRIES.items():
        if registry == "training argument" and not key.isidentifier():
            continue
        keys = [place.format(key) for place in places]
        if any(transformers.find_name(place).present for place in keys):
            yield answer_about_key(transformers, f"the {registry} {key}", keys)
