"""Who asked for a key that a row, a table or a batch lacks: the code above the container, or the data. Pure.

A `KeyError` arises inside the class that holds the values (a row of datasets, a table of pandas, a batch of a
tokenizer), which is not at fault: it only looks up what it is asked for.
"""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise

_KEY = lazy_pattern(r"^(?:KeyError|Exception): (?P<quote>['\"])(?P<key>[^'\"]{1,100})(?P=quote)(?=$|\s)")
_NUMBER = lazy_pattern(r"^KeyError: \d+(?=$|\s)")
_OF_DATA = frozenset(("datasets", "pandas"))
"""Packages whose rows and tables hold the data itself."""
_CONTAINERS = _OF_DATA | {"transformers", "omegaconf", "addict", "tensordict", "easydict"}
_COLUMNS = frozenset(
    ("instruction", "input_ids", "output", "messages", "conversations", "prompt", "completion", "chosen", "rejected")
)
"""The columns that trainers ask for: without a traceback such a key is mostly one of these."""
_ROW = lazy_pattern(r"\b(?:examples?|samples?|features?)\[")
"""How a trainer's code names a row of the data, where rows are plain dicts."""
_LOOKS_UP = frozenset(("__getitem__", "__missing__", "__getattr__", "get_loc", "_get_item_cache", "_getitem_axis"))
"""Functions that only look a key up."""


def drop_lookups(error: LastError) -> LastError:
    """Return the error with the code that asked for the key as its innermost frame."""
    frames = list(_put_asker_last(error))
    while len(frames) > 1 and _KEY.match(error.message) and _is_lookup(frames[-1]):
        frames.pop()
    return replace(error, frames=tuple(frames))


def _put_asker_last(error: LastError) -> tuple[CodeFrame, ...]:
    """The frames; where the quoted line that asks for the key belongs to none, with the program's own as the last.

    People paste tracebacks in pieces: the line of code stands above the error, and its frame elsewhere.
    """
    key = _KEY.match(error.message)
    quoted = error.above.rstrip().rpartition(b"\n")[2].decode("utf-8", "replace").strip()
    lookup = key is not None and re.search(rf"\[\s*['\"]{re.escape(key['key'])}['\"]\s*\]", quoted)
    own = [frame for frame in error.frames if not frame.installed and frame.path.endswith(".py")]
    if not lookup or not own or any(frame.code == quoted for frame in error.frames):
        return error.frames
    return (*(frame for frame in error.frames if frame is not own[-1]), replace(own[-1], code=quoted))


def explain_missing_field(error: LastError) -> MessageCause | None:
    """Return that the data lacks a field, when a row or a table was asked for it; else `None`."""
    if _NUMBER.match(error.message):
        return _explain_dataset(error)
    key = _KEY.match(error.message)
    asking = drop_lookups(error).frames
    containers = error.frames[len(asking) :]
    if key is None or not asking:
        return _describe_field(error, key["key"]) if key and key["key"] in _COLUMNS else None
    frame, field = asking[-1], key["key"]
    if not any(_package(item) in _OF_DATA for item in containers) and not (frame.installed and _ROW.search(frame.code)):
        return None
    code = f" ({shorten_text(frame.code, 100)})" if frame.code else ""
    return _describe_field(error, field, f"Line {frame.line} of {frame.short_file}{code}")


def _describe_field(error: LastError, field: str, asker: str = "The program") -> MessageCause:
    because = (
        f"{asker} asks a row of the data for the field {field}, "
        "which the files do not have, have under another name, or have in another format than this code reads."
    )
    fixes = [
        advise(
            "Print dataset.column_names (or the first line of the file) and rename the field, or name yours in the "
            f"configuration (text_field, columns, field_messages and the like): the code asks for {field}"
        ),
        advise("The format of data that the instructions of the trainer, or of the chosen dataset type, ask for"),
    ]
    incident = describe_traceback(
        "missing-field",
        IncidentKind.CONFIG,
        OwnComponent.DATA,
        title=f"The data has no field {field}",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="")


def _explain_dataset(error: LastError) -> MessageCause | None:
    """A loader asks for a row by its number, and what it was given takes other keys."""
    rows = [frame for frame in error.frames if _package(frame) != "pandas"]
    if not rows or not rows[-1].path.endswith(("_utils/fetch.py", "_utils\\fetch.py")):
        return None
    incident = describe_traceback(
        "not-a-dataset",
        IncidentKind.CONFIG,
        OwnComponent.YOUR_CODE,
        title="What was given as dataset cannot be asked for a row by its number",
        because=(
            "torch's loader asks the dataset for rows by their numbers, and gets a KeyError: a dict, a DatasetDict "
            "with its splits, or a DataFrame was given as dataset."
        ),
        fixes=[
            advise("One split: dataset['train']; Dataset.from_pandas(frame) or Dataset.from_dict(columns)"),
            advise("A class of one's own needs __len__, and __getitem__ that takes a number (frame.iloc[number])"),
        ],
    )
    return MessageCause(incident=incident, line=error.line, package="")


def _package(frame: CodeFrame) -> str:
    return next(iter(frame.installed or frame.parts), "")


def _is_lookup(frame: CodeFrame) -> bool:
    package = _package(frame)
    return package in _CONTAINERS and (frame.function in _LOOKS_UP or frame.path.endswith((".pyx", ".pxi")))
