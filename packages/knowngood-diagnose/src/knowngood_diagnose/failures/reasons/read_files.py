"""Why a file that is loaded is not what the program takes it for: a checkpoint, a model's folder, data. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.compat.incident import Incident

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
    return incident.tell("load-key", key=stated["key"])


def describe_place(incident: Incident, error: LastError) -> Incident | None:
    """A folder without the files that are looked for, where the name is a path of this machine."""
    stated = _LOADS_TOKENIZER.search(error.message)
    if stated is not None and stated["what"] == "tokenizer" and re.fullmatch(r"[\w.-]+/[\w.-]+", stated["where"]):
        return _describe_unreached_files(incident, stated["where"])
    if stated is None or not re.match(r"[/.~]|[A-Za-z]:[\\/]|[^/]*/[^/]*/", stated["where"]):
        return None
    what = {"tokenizer": "tokenizer"}.get(stated["what"], "configuration")
    files = "tokenizer.json or the vocabulary" if what == "tokenizer" else "config.json"
    return incident.tell("place", where=stated["where"], what=what, files=files)


def _describe_unreached_files(incident: Incident, name: str) -> Incident:
    """A tokenizer of the hub of which no file came: transformers says so of each reason alike."""
    return incident.tell("unreached-files", name=name)
