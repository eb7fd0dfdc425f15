"""Why the weights of a file have other shapes than the model, by the first parameter that differs. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise
from knowngood.failures.reasons.checkpoint_kinds import describe_adapter_shapes, describe_other_kind

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
