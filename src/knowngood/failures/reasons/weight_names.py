"""By which prefix the names of a checkpoint differ from those of the model. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Fix, Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

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
