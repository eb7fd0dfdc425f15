"""Which number of DeepSpeed's configuration does not fit the run. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_BATCH = lazy_pattern(
    r"world_size (?P<total>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>\d+)",
)
_ACCUMULATION = lazy_pattern(r"gradient_accumulation_steps['\"]?[ =:]+(\d{1,5})\b")
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
    if asked_steps := _find_accumulation(error, total // micro // ranks if ranks else 0, steps):
        return _describe_accumulation(incident, asked_steps, steps, (total, micro, ranks))
    if meant <= ranks:
        return None
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


def _find_accumulation(error: LastError, fitting: int, steps: int) -> int:
    """The steps of accumulation that the command in the log states, where they and no others make the product right."""
    stated = [int(match[1]) for match in _ACCUMULATION.finditer(error.log_end.decode("utf-8", "replace"))]
    return fitting if fitting != steps and fitting in stated else 0


def _describe_accumulation(incident: Incident, asked_steps: int, steps: int, numbers: tuple[int, int, int]) -> Incident:
    total, micro, ranks = numbers
    return replace(
        incident,
        title=f"DeepSpeed accumulates {steps} step{'s' if steps > 1 else ''}, and the command says {asked_steps}",
        because=(
            f"train_batch_size {total} is {micro} x {asked_steps} x {ranks}, which the command asks for, and "
            "DeepSpeed multiplies "
            f"{micro} x {steps} x {ranks}: its configuration has no gradient_accumulation_steps, or was read "
            "before the trainer "
            "could fill it in (from_pretrained under ZeRO-3 with a configuration of fixed numbers)."
        ),
        fix=(
            advise(
                '"auto" for train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps in the '
                "DeepSpeed configuration, so that all three come from the arguments"
            ),
            advise(f'Or "gradient_accumulation_steps": {asked_steps} there, as in the command'),
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
