"""Why a file that is loaded is not what the program takes it for: a checkpoint, a model's folder, data. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError

_LOAD_KEY = lazy_pattern(r"invalid load key, '(?P<key>.{1,6}?)'")
_KEYS_OF_LFS = frozenset(("v", "<", "{"))
_LOADS_TOKENIZER = lazy_pattern(
    r"Can't load (?P<what>tokenizer|the configuration of|image processor)\b.{0,8}?'(?P<where>[^']{1,200})'"
)


def describe_load_key(incident: Incident, error: LastError) -> Incident | None:
    """A file in another format than a pickle, by the byte that pickle refuses."""
    stated = _LOAD_KEY.search(error.message)
    if stated is None or stated["key"] in _KEYS_OF_LFS:
        return None
    return replace(
        incident,
        title="torch.load reads a file that is no pickle: another format, most likely safetensors, or one cut off",
        because=(
            f"The first byte that is refused ({stated['key']}) begins no file of torch.save. A file of "
            "safetensors begins "
            "with the length of its header, which is any byte; an encrypted, compressed or broken file begins so too."
        ),
        fix=(
            advise(
                "For a file with the ending .safetensors, or one that was renamed from it: safetensors.torch.load_file "
                "in the place of torch.load; from_pretrained(use_safetensors=True)"
            ),
            advise("head -c 64 FILE | xxd shows what it is; compare its size with the hub's, and download it again"),
        ),
    )


def describe_place(incident: Incident, error: LastError) -> Incident | None:
    """A folder without the files that are looked for, where the name is a path of this machine."""
    stated = _LOADS_TOKENIZER.search(error.message)
    if stated is not None and stated["what"] == "tokenizer" and re.fullmatch(r"[\w.-]+/[\w.-]+", stated["where"]):
        return _describe_unreached_files(incident, stated["where"])
    if stated is None or not re.match(r"[/.~]|[A-Za-z]:[\\/]|[^/]*/[^/]*/", stated["where"]):
        return None
    what = {"tokenizer": "tokenizer"}.get(stated["what"], "configuration")
    files = "tokenizer.json or the vocabulary" if what == "tokenizer" else "config.json"
    return replace(
        incident,
        title=f"The folder {stated['where']} has no files of a {what}, or is not there",
        because=(
            f"{stated['where']} is a path of this machine, where {files} was not found: what wrote the "
            "folder (training, "
            "a merge, a conversion) saved only the weights, or the folder does not exist where the job runs."
        ),
        component=OwnComponent.MODEL,
        fix=(
            advise(f"ls {stated['where']} where the job runs shows which of the two it is"),
            advise(
                "Without the files: copy tokenizer*, special_tokens_map.json, vocab and config.json from the base "
                "model into it, or AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
            ),
        ),
    )


def _describe_unreached_files(incident: Incident, name: str) -> Incident:
    """A tokenizer of the hub of which no file came: transformers says so of each reason alike."""
    because = (
        f"None of the tokenizer's files of {name} was found. While it looks for them, transformers takes a hub that "
        "does not answer for a file that is not there (a wrong name is refused in other words: 'is not a local folder "
        "and is not a valid model identifier'). So the hub could not be reached or was down and the cache has no copy, "
        f"or a local folder {name} stands in its place, or the repository has no tokenizer."
    )
    fixes = (
        advise(
            "Try again later, and look at the hub's status page; curl -I https://huggingface.co from that machine "
            "shows whether it is reached (a proxy, HF_ENDPOINT)"
        ),
        advise(f"ls {name} where it runs: rename a local folder of that name"),
        advise("Without a network: huggingface-cli download on another machine, and the path of that folder"),
        advise("A tokenizer that the repository does not have: the one of the base model, by its own name"),
    )
    return replace(
        incident,
        title=f"No file of the tokenizer {name} came: most likely the hub was not reached, or a folder has its name",
        because=because,
        fix=fixes,
        component=OwnComponent.HUB,
    )
