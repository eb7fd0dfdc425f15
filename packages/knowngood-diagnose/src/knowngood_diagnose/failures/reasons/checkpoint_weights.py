"""Why a checkpoint's weights do not fit the model: their shapes, their names, or another kind of checkpoint. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Fix, Incident

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
    return incident.tell("divided-model", name=name, file=file)


def _describe_empty_file(incident: Incident, name: str, model: str) -> Incident:
    return incident.tell("empty-file", name=name, model=model)


def _describe_sizes(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident:
    differing = [at for at, pair in enumerate(zip(file, model, strict=False)) if pair[0] != pair[1]]
    sizes = f"the file has the shape [{', '.join(file)}] and the model [{', '.join(model)}] for {name}"
    if (other := describe_other_kind(incident, name, file, model)) is not None:
        return other
    if (adapter := describe_adapter_shapes(incident, name, file, model)) is not None:
        return adapter
    if _VOCABULARY.search(name) and differing == [0]:
        return incident.tell("vocabulary", file=file[0], model=model[0], sizes=sizes)
    if _HEAD.search(name) and differing == [0]:
        return incident.tell("head", file=file[0], model=model[0], sizes=sizes)
    return incident.tell("sizes", sizes=sizes)


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
    because = (
        f"The {have} has {shown} where the {lack} has the same name without {prefix}, which is put there by {wrapper}. "
    )
    because += (
        "The checkpoint was saved from the wrapped model, and is loaded into one that is not wrapped so (yet)."
        if in_file
        else "The model was wrapped before the weights are loaded, and the checkpoint was saved without it."
    )
    return replace(
        incident.tell("prefix", have=have, prefix=prefix, lack=lack),
        because=because,
        fix=_fixes(prefix, in_file=in_file),
    )


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
    return incident.tell("adapter-shapes", file=", ".join(file), model=", ".join(model), sizes=sizes)


def _list_differing(file: list[str], model: list[str]) -> list[int]:
    return [at for at, pair in enumerate(zip(file, model, strict=False)) if pair[0] != pair[1]]


def _describe_both(name: str, file: list[str], model: list[str]) -> str:
    return f"the file has the shape [{', '.join(file)}] and the model [{', '.join(model)}] for {name}"


def _describe_convolution(incident: Incident, sizes: str, *, is_file: bool) -> Incident:
    first, second = ("a convolution of 1 x 1", "a plain linear layer")
    whose = (first, second) if is_file else (second, first)
    return incident.tell("convolution", in_file=whose[0], in_model=whose[1], sizes=sizes)


def _describe_rank(incident: Incident, sizes: str, file: str, model: str) -> Incident:
    return incident.tell("rank", file=file, model=model, sizes=sizes)


def _describe_packed(incident: Incident, sizes: str, *, is_file: bool) -> Incident:
    side, other = ("file", "model") if is_file else ("model", "file")
    return incident.tell("packed", side=side, other=other, sizes=sizes)


def _describe_text_encoder(incident: Incident, name: str, file: list[str], model: list[str]) -> Incident:
    """Cross-attention of an image model: its width is that of the text encoder, which differs between generations."""
    families = [_FAMILIES.get(side[1], "another model") for side in (file, model)]
    return incident.tell(
        "text-encoder", of_file=families[0], of_model=families[1], name=name, file=file[1], model=model[1]
    )


def _is_packed_to_four_bits(packed: list[str], plain: list[str]) -> bool:
    """Whether one shape is that of a weight in 4 bits, two values a byte, and the other that of the same weight."""
    numbers = [int(text) for text in packed if text], [int(text) for text in plain if text]
    return len(numbers[0]) == len(packed) and numbers[0][-1:] == [1] and 2 * prod(numbers[0]) == prod(numbers[1])
