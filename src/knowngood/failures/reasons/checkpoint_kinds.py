"""Which other kind of checkpoint a parameter shows by its shapes: packed, of another form, another adapter. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.names.name_situation import advise
from knowngood.failures.reasons.shape_numbers import is_packed_to_four_bits

_CROSS_ATTENTION = lazy_pattern(r"\battn2\.(?:to_[kv]|processor\.to_[kv])")
_FAMILIES = {"768": "Stable Diffusion 1", "1024": "Stable Diffusion 2", "2048": "SDXL"}
"""The width of the text features -> the generation (diffusers 0.31.0: loaders/single_file_utils.py)."""
_LORA = lazy_pattern(
    r"(?P<down>lora_A|lora_down|lora(?:_linear_layer)?\.down)|lora_B|lora_up|lora(?:_linear_layer)?\.up"
)
"""An adapter's matrices: the first has the rank as its rows, the second as its columns."""


def describe_other_kind(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident | None:
    """Return that one side is quantized, or of another generation or form of the architecture; else `None`.

    Args:
        incident: the failure that the shapes differ.
        name: the parameter.
        file: its shape in the checkpoint.
        model: its shape in the model.
    """
    sizes = _describe_both(name, file, model)
    if is_packed_to_four_bits(file, model) or is_packed_to_four_bits(model, file):
        return _describe_packed(incident, sizes, is_file=is_packed_to_four_bits(file, model))
    if _CROSS_ATTENTION.search(name) and _list_differing(file, model) == [1]:
        return _describe_text_encoder(incident, name, file, model)
    short, long = sorted((file, model), key=len)
    if len(short) < len(long) and long[: len(short)] == short and set(long[len(short) :]) == {"1"}:
        return _describe_convolution(incident, sizes, is_file=long is file)
    return None


def describe_adapter_shapes(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident | None:
    """Return whether an adapter has another rank, or is for a layer of another width; `None` for other parameters."""
    side = _LORA.search(name)
    if side is None:
        return None
    sizes = _describe_both(name, file, model)
    rank = 0 if side["down"] else len(file) - 1
    if _list_differing(file, model) == [rank]:
        return _describe_rank(incident, sizes, file[rank], model[rank])
    return replace(
        incident,
        title=f"The adapter is for a layer of another width ({', '.join(file)}) than the model's ({', '.join(model)})",
        because=f"Here {sizes}: the layer's width differs, so the base model (or the part of it, such as one of two "
        "text encoders) is another one than that for which the adapter was trained.",
        fix=(
            advise("The base model that adapter_config.json names (base_model_name_or_path), in the same size"),
            advise(
                "The adapter_config.json that was saved with the weights (target_modules, r), both from the same folder"
            ),
            advise("Where a program has two text encoders: each one's weights into its own, as a newer release does"),
        ),
    )


def _list_differing(file: list[str], model: list[str]) -> list[int]:
    return [at for at, pair in enumerate(zip(file, model, strict=False)) if pair[0] != pair[1]]


def _describe_both(name: str, file: list[str], model: list[str]) -> str:
    return f"the file has the shape [{', '.join(file)}] and the model [{', '.join(model)}] for {name}"


def _describe_convolution(incident: Incident, sizes: str, *, is_file: bool) -> Incident:
    first, second = ("a convolution of 1 x 1", "a plain linear layer")
    whose = (first, second) if is_file else (second, first)
    fix = (
        advise(
            "The code, class or option of the checkpoint's own generation (for Stable Diffusion: the sdxl_ variant of "
            "the script, or --v2; use_linear_projection in the configuration)"
        ),
        advise("The release of the project that wrote the file, or a newer one that converts it"),
    )
    return replace(
        incident,
        title=f"The layer is {whose[0]} in the checkpoint and {whose[1]} in the model",
        because=f"Here {sizes}: the same numbers, with ones behind them on one side. The two are of other forms of the "
        "architecture, and not of another training.",
        fix=fix,
    )


def _describe_rank(incident: Incident, sizes: str, file: str, model: str) -> Incident:
    fix = (
        advise(
            f"The rank of the saved one: r={file} in LoraConfig (lora_rank, --network_dim {file}), with the other "
            "settings with which it was trained; adapter_config.json beside it has them"
        ),
        advise("Or start anew with the new rank, without resuming: no checkpoint, another output folder"),
    )
    return replace(
        incident,
        title=f"The adapter was trained with rank {file}, and the model's adapter is made with rank {model}",
        because=f"Here {sizes}: only the rank differs. A run that resumes, or a program that loads it, was given "
        "another rank than the one that saved it.",
        fix=fix,
    )


def _describe_packed(incident: Incident, sizes: str, *, is_file: bool) -> Incident:
    side, other = ("file", "model") if is_file else ("model", "file")
    fix = (
        advise(
            "Load it as it was saved: a quantized checkpoint with its quantization_config in config.json, a plain one "
            "without load_in_4bit; then the shapes agree"
        ),
        advise("An adapter is saved and loaded alone (PeftModel.from_pretrained), and not the packed base weights"),
    )
    return replace(
        incident,
        title=f"The weights of the {side} are packed to 4 bits, those of the {other} are plain",
        because=f"Here {sizes}: twice the one is exactly the other, as two values of 4 bits share a byte.",
        fix=fix,
    )


def _describe_text_encoder(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident:
    """Cross-attention of an image model: its width is that of the text encoder, which differs between generations."""
    fix = (
        advise(
            "The script or class for the checkpoint's own generation: the sdxl_ variant of the script "
            "(sdxl_merge_lora, sdxl_train_network, StableDiffusionXLPipeline), or --v2 for Stable Diffusion 2; or a "
            "base model and an adapter of the same one"
        ),
        advise("from_single_file of diffusers reads from the checkpoint which of them it is"),
    )
    families = [_FAMILIES.get(side[1], "another model") for side in (file, model)]
    return replace(
        incident,
        title=f"The checkpoint is of {families[0]} and the model that it is loaded into of {families[1]}",
        because=(
            f"{name} takes text features of width {file[1]} in the file and {model[1]} in the model, so the two were "
            "made for different text encoders: another architecture, not another training."
        ),
        fix=fix,
    )
