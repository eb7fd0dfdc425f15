"""Whether a package fails for what the program handed to it: then the error is the program's own. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
from knowngood_diagnose.failures.names.message_causes import (
    MessageCause,
    describe_callers,
    shorten_text,
)
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_CALLED_WRONGLY = lazy_pattern(r"^(?P<called>[\w.]+|<lambda>)\(\) (?:missing \d+ required|takes )")
_ASKS_COLUMN = lazy_pattern(
    r"^(?P<called>[\w.]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (?P<names>'\w+'.{0,200})$"
)
_IS_REWARD = lazy_pattern(r"\breward_func\(")
_USED_WRONGLY = lazy_pattern(r"^'(?:function|method|builtin_function_or_method|generator)' object has no attribute")
_IS_PLAIN = lazy_pattern(r"^'(?P<kind>str|int|float|bool|list|dict|tuple)' object has no attribute '(?P<name>\w+)'")
_ASKS_TEXT = lazy_pattern(r"^'?(?P<owner>[A-Za-z_]\w*)'?(?: object)? has no attribute '?(?P<name>\w+)'?")
_OF_TEXT = frozenset(("lower", "upper", "startswith", "endswith", "split", "rsplit", "strip", "rstrip", "lstrip"))
"""Methods that only a text has."""
_PLAIN_KINDS = frozenset(("NoneType", "bool", "dict", "float", "int", "list", "module", "tuple", "set", "bytes"))
_MAKES_OBJECT = frozenset(("__init__", "__post_init__"))
_NAMES_NOTHING = frozenset(("__init__", "__call__", "__new__", "forward", "wrapper", "inner", "_fn", "decorator"))
_UNPACKED = lazy_pattern(
    r"^(?:not enough|too many) values to unpack \(expected (?P<expected>\d+)(?:, got (?P<got>\d+))?\)"
)
_UNPACKS_SHAPE = lazy_pattern(r"^[\w, ()*]+= ?[\w.\[\]]*(?:shape|size\(\))")
_LACKS = lazy_pattern(r"^'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'")
_SHOWN = 140


def explain_handed_in(
    error: LastError, text: str, frames: Sequence[CodeFrame], packages: Sequence[str], shelf: AtlasShelf
) -> MessageCause | None:
    """Return that what the program handed in is at fault; `None` where the package's own code may be.

    Args:
        error: the last error of the log.
        text: its message, without the class.
        frames: the frames that say something, the innermost last.
        packages: the package of each frame, empty for the program's own files.
        shelf: the atlas of all packages.
    """
    inner, frame = packages[-1], frames[-1]
    own = next((at for at in range(len(frames) - 1, -1, -1) if not packages[at]), None)
    is_direct = own is not None and set(packages[own + 1 :]) == {inner}
    called = _CALLED_WRONGLY.match(text)
    lacking = _ASKS_COLUMN.match(text) if frame.installed[:2] == ("trl", "trainer") else None
    plain, attribute = _IS_PLAIN.match(text), _ASKS_TEXT.match(text)
    is_handed_in = (
        (lacking and (_IS_REWARD.search(frame.code) or not _is_of_package(lacking["called"], "trl", shelf)))
        or (called and _is_called_back(called["called"], frame, packages, shelf))
        or (frame.function == "__getattr__" and _LACKS.match(text))
        or (_UNPACKED.match(text) and _UNPACKS_SHAPE.match(frame.code))
        or (is_direct and _USED_WRONGLY.search(text))
        or (is_direct and plain and frame.function in _MAKES_OBJECT)
        or (own is not None and attribute and attribute["name"] in _OF_TEXT and attribute["owner"] not in _PLAIN_KINDS)
    )
    return _cause(error, text, inner, frame) if is_handed_in else None


def _is_called_back(called: str, frame: CodeFrame, packages: Sequence[str], shelf: AtlasShelf) -> bool:
    """Whether a function was given to the package that calls it: the line has another name for it."""
    parts = called.split(".")
    name = parts[-2] if len(parts) > 1 and parts[-1] in _NAMES_NOTHING else parts[-1]
    if name in _NAMES_NOTHING or not frame.code or re.search(rf"\b{re.escape(name)}\b|\*args", frame.code):
        return False
    if len(parts) == 1:
        return True
    lookups = [lookup for package in set(packages) if (lookup := shelf.open(package)) is not None]
    return not any(True for lookup in lookups for part in parts for _ in lookup.definitions_of(part))


def explain_generated_trainer(error: LastError, text: str) -> MessageCause | None:
    """A reward function that the file which unsloth writes of trl's trainer calls; `None` for other errors."""
    frame = error.frames[-1] if error.frames else None
    lacking = _ASKS_COLUMN.match(text)
    if (
        frame is None
        or lacking is None
        or not frame.parts[-1].startswith("Unsloth")
        or "Trainer" not in frame.parts[-1]
    ):
        return None
    return _cause(error, text, "trl", frame) if _IS_REWARD.search(frame.code) else None


def _is_of_package(called: str, package: str, shelf: AtlasShelf) -> bool:
    """Whether a package of the atlas has a function or a class of that name."""
    lookup = shelf.open(package)
    parts = [part for part in called.split(".") if part not in _NAMES_NOTHING and not part.startswith("<")]
    return lookup is None or not parts or any(True for part in parts[-1:] for _ in lookup.definitions_of(part))


def _cause(error: LastError, text: str, inner: str, frame: CodeFrame) -> MessageCause:
    """Say that it is the program's own, where, and the error."""
    place = f"{'/'.join(frame.installed or frame.parts[-2:])}.py, line {frame.line}"
    because = f"{inner} uses there what the program handed to it ({shorten_text(frame.code, _SHOWN)})."
    because += describe_callers(error.frames)
    incident = describe_failure(
        "handed-in",
        IncidentKind.CONFIG,
        OwnComponent.YOUR_CODE,
        title=f"What your program hands to {inner} is not what it takes in {place}: {shorten_text(text, _SHOWN)}",
        because=because,
        fixes=[advise(f"Print what that line is given, and compare it with what this release of {inner} takes there")],
    )
    return MessageCause(incident=incident, line=error.line, package="")
