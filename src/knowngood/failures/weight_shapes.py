"""Why the weights of a file have other shapes than the model, by the first parameter that differs. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.failures.last_errors import LastError
from knowngood.failures.name_situation import advise
from knowngood.failures.shape_numbers import is_packed_to_four_bits

_MISMATCH = re.compile(
    r"size mismatch for (?P<name>[\w.]{1,200}): copying a param with shape (?:torch\.Size\()?\[(?P<file>[\d, ]*)\]\)? "
    r"from checkpoint,? (?:the shape in current model is|where the shape is) (?:torch\.Size\()?\[(?P<model>[\d, ]*)\]"
)
_SET = re.compile(
    r"Trying to set a tensor of shape torch\.Size\(\[(?P<file>[\d, ]*)\]\) in \"(?P<name>[\w.]{1,200})\" "
    r"\(which has shape torch\.Size\(\[(?P<model>[\d, ]*)\]\)"
)
_VOCABULARY = re.compile(r"embed_tokens|word_embeddings|\bwte\b|tok_embeddings|lm_head|embed_out|embed_in|output_layer")
_HEAD = re.compile(r"(?:^|\.)(?:classifier|score|fc|cls|qa_outputs|head|out_proj)(?:\.\w+)*\.(?:weight|bias)$")
_EMPTY = ("0", "")
_CROSS_ATTENTION = re.compile(r"\battn2\.(?:to_[kv]|processor\.to_[kv])")
_FAMILIES = {"768": "Stable Diffusion 1", "1024": "Stable Diffusion 2", "2048": "SDXL"}
"""The width of the text features -> the generation (diffusers 0.31.0: loaders/single_file_utils.py)."""


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


def _describe_sizes(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident:
    differing = [at for at, pair in enumerate(zip(file, model, strict=False)) if pair[0] != pair[1]]
    sizes = f"the file has the shape [{', '.join(file)}] and the model [{', '.join(model)}] for {name}"
    if is_packed_to_four_bits(file, model) or is_packed_to_four_bits(model, file):
        return _describe_packed(incident, sizes, is_file=is_packed_to_four_bits(file, model))
    if _CROSS_ATTENTION.search(name) and differing == [1]:
        return _describe_text_encoder(incident, name, file, model)
    if "lora_" in name:
        return replace(
            incident,
            title="The adapter's weights have another rank or width than the model's adapter",
            because=f"Here {sizes}. adapter_config.json (r, target_modules), with which the adapter is made, is not "
            "of the training that saved these weights, or the base model is another one.",
            fix=(
                advise(
                    "The adapter_config.json that was saved with the weights (its r is the smaller number of "
                    f"{name}'s shape), both from the same folder"
                ),
                advise("The base model that adapter_config.json names (base_model_name_or_path)"),
            ),
        )
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
