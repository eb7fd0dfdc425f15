"""Why a checkpoint's weights do not fit the model: their shapes, their names, or another kind of checkpoint. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Fix, Incident, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError

_MISMATCH = lazy_pattern(
    r"size mismatch for (?P<name>[\w.]{1,200}): copying a param with shape (?:torch\.Size\()?\[(?P<file>[\d, ]*)\]\)? "
    r"from checkpoint,? (?:the shape in current model is|where the shape is) (?:torch\.Size\()?\[(?P<model>[\d, ]*)\]"
)
_SET = lazy_pattern(
    r"Trying to set a tensor of shape torch\.Size\(\[(?P<file>[\d, ]*)\]\) in \"(?P<name>[\w.]{1,200})\" "
    r"\(which has shape torch\.Size\(\[(?P<model>[\d, ]*)\]\)"
)
_VOCABULARY = lazy_pattern(
    r"embed_tokens|word_embeddings|\bwte\b|tok_embeddings|lm_head|embed_out|embed_in|output_layer"
)
_HEAD = lazy_pattern(r"(?:^|\.)(?:classifier|score|fc|cls|qa_outputs|head|out_proj)(?:\.\w+)*\.(?:weight|bias)$")
_EMPTY = ("0", "")


def describe_weight_shapes(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the side that is other than expected; `None` where no parameter is named."""
    mismatch = _MISMATCH.search(error.message) or _SET.search(error.message)
    if mismatch is None:
        return None
    name, file, model = mismatch["name"], mismatch["file"].strip(), mismatch["model"].strip()
    if model in _EMPTY and file not in _EMPTY:
        return _describe_divided_model(incident, name, file)
    if file in _EMPTY:
        return _describe_empty_file(incident, name, model)
    return _describe_sizes(incident, name, file.split(", "), model.split(", "))


def _describe_divided_model(incident: Incident, name: str, file: str) -> Incident:
    because = (
        f"The file has {name} with the shape [{file}], and the model's own is empty: under DeepSpeed's ZeRO-3 each "
        "parameter is divided among the ranks when the model is made, and is gathered only for its layer's own step. "
        "load_state_dict in the program's own code sees the empty rest."
    )
    fix = (
        advise(
            "ZeRO-2 in place of ZeRO-3, where the model fits (another ds_config); or load these weights before "
            "deepspeed.zero.Init is on, or inside of deepspeed.zero.GatheredParameters(parameters, modifier_rank=0)"
        ),
        advise("from_pretrained of transformers gathers the parameters itself: put the weights into its checkpoint"),
    )
    title = "The model's parameters are divided by ZeRO-3 where the program loads weights into them"
    return replace(incident, title=title, because=because, fix=fix, component=OwnComponent.YOUR_CODE)


def _describe_empty_file(incident: Incident, name: str, model: str) -> Incident:
    because = (
        f"The file has {name} without a value, where the model has [{model}]: it was saved from a model whose "
        "parameters DeepSpeed's ZeRO-3 or FSDP had divided among the ranks, without gathering them. The weights are "
        "not in this file."
    )
    fix = (
        advise(
            "When the run's own checkpoint folder is there (global_step...): python zero_to_fp32.py FOLDER OUTPUT "
            "gathers the weights from it"
        ),
        advise(
            "Save again: stage3_gather_16bit_weights_on_model_save in DeepSpeed's configuration and trainer.save_model "
            "on all ranks (accelerator.save_model, accelerator.get_state_dict), a full state dict with FSDP"
        ),
    )
    title = "The file of weights is empty: it was saved while ZeRO-3 or FSDP had the parameters divided"
    return replace(incident, title=title, because=because, fix=fix)


def _describe_sizes(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident:
    differing = [at for at, pair in enumerate(zip(file, model, strict=False)) if pair[0] != pair[1]]
    sizes = f"the file has the shape [{', '.join(file)}] and the model [{', '.join(model)}] for {name}"
    if (other := describe_other_kind(incident, name, file, model)) is not None:
        return other
    if (adapter := describe_adapter_shapes(incident, name, file, model)) is not None:
        return adapter
    if _VOCABULARY.search(name) and differing == [0]:
        return replace(
            incident,
            title=f"The weights are of a vocabulary with {file[0]} rows, the model of one with {model[0]}",
            because=f"Here {sizes}: tokens were added before it was saved, or the tokenizer and config.json "
            "(vocab_size) beside it are those of another model.",
            fix=(
                advise(
                    f"model.resize_token_embeddings({file[0]}) on the base model before the weights are loaded, with "
                    "the tokenizer that was saved beside them"
                ),
                advise(f"vocab_size {file[0]} in config.json, when only that is of another model"),
            ),
        )
    if _HEAD.search(name) and differing == [0]:
        return replace(
            incident,
            title=f"The head of the checkpoint has {file[0]} outputs, that of the model {model[0]}",
            because=f"Here {sizes}: the number of classes of the data (num_labels) is another one than that with "
            "which the checkpoint was trained.",
            fix=(
                advise(
                    "For a new task: from_pretrained(..., num_labels=N, ignore_mismatched_sizes=True) makes the head "
                    "anew; without transformers, delete the head's keys and load with strict=False"
                ),
                advise(f"For the same task: num_labels={file[0]}, as in the checkpoint"),
            ),
        )
    return replace(incident, because=f"{incident.because} Here {sizes}.")


_MISSING = lazy_pattern(r"Missing key\(s\) in state_dict: (?P<names>\"[^\n]{1,1400})")
_UNEXPECTED = lazy_pattern(r"Unexpected key\(s\) in state_dict: (?P<names>\"[^\n]{1,1400})")
_NAME = lazy_pattern(r"\"(?P<name>[\w.-]{1,200})\"")
_WRAPPERS = {
    "module.": "DataParallel or DistributedDataParallel (or an engine of DeepSpeed)",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP",
    "base_model.model.": "peft",
    "_forward_module.": "Lightning's strategy for DeepSpeed or FSDP",
    "model.": "a class that holds the model as its attribute model (a LightningModule)",
}
"""What a wrapper puts before the names of the weights, the longest first where one is the end of another."""
_OF_ADAPTERS = "base_model.model."
_RELOADS = "loading state_dict for SentenceTransformer:"
"""What the trainer of sentence-transformers says when it reloads its own checkpoint into the model."""
_FEWEST = 2


def describe_prefix(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the prefix that one side has and the other lacks; `None` where that is not all."""
    text = error.message
    missing, unexpected = _MISSING.search(text), _UNEXPECTED.search(text)
    if missing is None or unexpected is None:
        return None
    wanted = _list_names(missing["names"].partition("Unexpected key(s)")[0])
    given = _list_names(unexpected["names"].partition("Missing key(s)")[0])
    for prefix, wrapper in _WRAPPERS.items():
        if _count_pairs(given, wanted, prefix) >= min(_FEWEST, len(given)):
            described = _describe(incident, prefix, wrapper, in_file=True, shown=given[0])
            is_reload = prefix == _OF_ADAPTERS and _RELOADS in text
            return replace(described, component="sentence-transformers") if is_reload else described
        if _count_pairs(wanted, given, prefix) >= min(_FEWEST, len(wanted)):
            return _describe(incident, prefix, wrapper, in_file=False, shown=wanted[0])
    return None


def _list_names(text: str) -> list[str]:
    return [match["name"] for match in _NAME.finditer(text)]


def _count_pairs(long: list[str], short: list[str], prefix: str) -> int:
    """How many names are the same as one of `short`, once the prefix is cut out of them at one place."""
    known = set(short)
    return sum(
        any(
            (name[: place.start()] + name[place.end() :]) in known
            for place in re.finditer(rf"(?:^|(?<=\.)){re.escape(prefix)}", name)
        )
        for name in long
    )


def _describe(incident: Incident, prefix: str, wrapper: str, *, in_file: bool, shown: str) -> Incident:
    have, lack = ("file", "model") if in_file else ("model", "file")
    title = f"The names of the {have}'s weights have {prefix} in them, and those of the {lack} do not"
    because = (
        f"The {have} has {shown} where the {lack} has the same name without {prefix}, which is put there by {wrapper}. "
    )
    because += (
        "The checkpoint was saved from the wrapped model, and is loaded into one that is not wrapped so (yet)."
        if in_file
        else "The model was wrapped before the weights are loaded, and the checkpoint was saved without it."
    )
    return replace(incident, title=title, because=because, fix=_fixes(prefix, in_file=in_file))


def _fixes(prefix: str, *, in_file: bool) -> tuple[Fix, ...]:
    cut = advise(
        f"weights = {{name.replace('{prefix}', '', 1): value for name, value in weights.items()}} "
        "before load_state_dict"
        if in_file
        else f"Load the weights into the model inside ({_inner(prefix)}), or before it is wrapped"
    )
    if prefix != _OF_ADAPTERS:
        save = advise(f"Save {_inner(prefix)}.state_dict() the next time, so that any program can load it")
        return (cut, save) if in_file else (cut,)
    if not in_file:
        return (cut, advise("PeftModel.from_pretrained(base, FOLDER) for an adapter; base first, then get_peft_model"))
    return (
        advise(
            "When a trainer resumes: a newer release of that trainer (sentence-transformers, "
            "transformers), which loads "
            "the adapter of a checkpoint as an adapter; load_state_dict of the whole model cannot take these names"
        ),
        advise(
            "By hand: load the base model, then the adapter of the checkpoint folder (model.load_adapter(FOLDER), "
            "PeftModel.from_pretrained(base, FOLDER, is_trainable=True)), and train on without resume_from_checkpoint"
        ),
        cut,
    )


def _inner(prefix: str) -> str:
    inner = {
        "module.": "model.module",
        "_orig_mod.": "model._orig_mod",
        "base_model.model.": "model.base_model.model",
        "model.": "model.model",
    }
    return inner.get(prefix, "the model inside")


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
    if _is_packed_to_four_bits(file, model) or _is_packed_to_four_bits(model, file):
        return _describe_packed(incident, sizes, is_file=_is_packed_to_four_bits(file, model))
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


def _is_packed_to_four_bits(packed: list[str], plain: list[str]) -> bool:
    """Whether one shape is that of a weight in 4 bits, two values a byte, and the other that of the same weight."""
    numbers = [int(text) for text in packed if text], [int(text) for text in plain if text]
    return len(numbers[0]) == len(packed) and numbers[0][-1:] == [1] and 2 * prod(numbers[0]) == prod(numbers[1])
