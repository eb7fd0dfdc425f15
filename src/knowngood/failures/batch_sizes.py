"""Which number of DeepSpeed's configuration does not fit the run. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.last_errors import LastError
from knowngood.failures.name_situation import advise

_BATCH = lazy_pattern(
    r"world_size (?P<total>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>\d+)",
)
_ACCUMULATION = lazy_pattern(r"gradient_accumulation_steps[ =:]{1,3}(\d{1,4})\b")
_MISMATCHES = lazy_pattern(r"- ds (?P<name>[\w.]+)=(?P<own>\S+) vs hf \w+=(?P<other>\S+)")


def describe_batch(incident: Incident, error: LastError) -> Incident | None:
    """How many processes DeepSpeed counts, and for how many the numbers were made."""
    stated = _BATCH.search(error.message)
    if stated is None:
        return _describe_equal_values(incident, error) or _describe_device_map(incident, error)
    total, micro, steps, ranks = (int(stated[name]) for name in ("total", "micro", "steps", "ranks"))
    if not micro or not steps or total % (micro * steps):
        return replace(
            incident,
            title=f"DeepSpeed's train_batch_size {total} is no product of the other numbers: {micro} x "
            f"{steps} x {ranks}",
            because="train_batch_size is the micro batch size times the accumulation steps times the number of "
            "processes; one of the three stands in the configuration with another value than the run has.",
        )
    meant = total // (micro * steps)
    if meant <= ranks:
        return None
    asked = _ACCUMULATION.findall(error.above.decode("utf-8", "replace"))
    if asked and micro * int(asked[-1]) * ranks == total:
        return replace(
            incident,
            title=f"The {asked[-1]} accumulation steps of the command did not reach DeepSpeed, which counts {steps}",
            because=(
                f"{total} is {micro} x {asked[-1]} x {ranks}, as the command asks; DeepSpeed has {steps} for the "
                "accumulation steps: its configuration was read without those of the arguments (an accelerate or a "
                "Trainer that does not fill in that value), or has a number of its own."
            ),
            fix=(
                advise(f'"gradient_accumulation_steps": "auto" (or {asked[-1]}) in the DeepSpeed configuration'),
                advise("pip install -U transformers accelerate together, which fill in the values that are auto"),
                advise(f"--gradient_accumulation_steps {steps}, when that is meant"),
            ),
        )
    return replace(
        incident,
        title=f"DeepSpeed counts {ranks} process{'es' if ranks > 1 else ''}, and its batch size is that of {meant}",
        because=(
            f"{total} is {micro} x {steps} x {meant}, and the world size that DeepSpeed sees is {ranks}: "
            "the script was "
            f"started without a launcher for {meant} GPUs, or the configuration was read before the process group was "
            "set up (a Trainer and an accelerate whose releases do not fit)."
        ),
        fix=(
            advise(
                f"Start {meant} processes: torchrun --nproc_per_node={meant}, deepspeed --num_gpus={meant} "
                "or accelerate "
                'launch; or "auto" for train_batch_size in the DeepSpeed configuration'
            ),
            advise(
                "With torchrun and the Trainer already: pip install -U transformers accelerate together; in a program "
                "of your own, deepspeed.init_distributed() before the configuration is made"
            ),
        ),
    )


def _describe_equal_values(incident: Incident, error: LastError) -> Incident | None:
    """A value of DeepSpeed's configuration that looks like the argument's and is of another type: a text."""
    pairs = _MISMATCHES.findall(error.message)
    equal = [(name, value) for name, value, other in pairs if value == other]
    if not equal:
        return None
    name, value = equal[0]
    return replace(
        incident,
        title=f'{name} is the text "{value}" in DeepSpeed\'s configuration, and the number {value} in the arguments',
        because=f"Both are shown as {value} and differ all the same, so they are of two types: the JSON file has the "
        f'number in quotes ("{value}"), and a text equals no number.',
        fix=(advise(f'"{name}": {value} without quotes in the JSON file, or "auto"'), *incident.fix[:1]),
    )


def _describe_device_map(incident: Incident, error: LastError) -> Incident | None:
    if "low_cpu_mem_usage" not in error.message:
        return None
    return replace(
        incident,
        title="The model is loaded with low_cpu_mem_usage or a device_map, which ZeRO-3 forbids",
        because="Under ZeRO-3 the weights are divided while the model is built; from_pretrained then takes neither "
        "low_cpu_mem_usage=True nor a device_map (nor a quantization, which sets both).",
    )
