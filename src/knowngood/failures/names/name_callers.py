"""Whose code asked for a name that is not there, and which of its releases do not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.names.atlas_shelf import AtlasShelf, NamePlace

_PASSED_ON = frozenset(
    [
        "_call_impl",
        "_wrapped_call_impl",
        "wrapper",
        "inner",
        "decorate_context",
        "__call__",
        "_fn",
        "new_forward",
        "wrapped_fn",
        "wrapped_func",
    ]
)
"""Functions that pass a call on: the frame above them chose the arguments."""
_PASSES_ALL = lazy_pattern(r"\((?:\w+, ?)?\*(?:args|a|_args), ?\*\*(?:kwargs|kw|_kwargs|k)\)")
"""A line of code that passes on all that it was given, as decorators do."""

_WHOLE_IMPORT = lazy_pattern(r"from [\w.]+ import (?P<names>[\w*][^()\\]*)$")
"""A statement that imports names and ends in its line."""

_OF_TORCH = frozenset(("nn", "autograd", "checkpoint", "_dynamo"))
"""Folders and files of torch that call what they are given."""
REMOTE_CODE = "transformers_modules"
"""The folder in which transformers keeps the code that comes with a model."""


@dataclass(frozen=True, kw_only=True)
class NameCaller:
    """The code that asked for a name."""

    frame: CodeFrame
    module: str = ""
    """Its module, when its package is in the atlas."""
    package: str = ""
    """Its package as pip calls it, or the folder in site-packages; empty for a user's own code."""
    lookup: AtlasLookup | None = None
    is_remote_code: bool = False
    """Whether it came with a model from the hub."""

    @property
    def file(self) -> str:
        """Its file, without what differs between machines."""
        return "/".join(self.frame.installed or self.frame.parts[-2:]) + ".py"


def find_caller(error: LoggedError, shelf: AtlasShelf) -> NameCaller | None:
    """Return the code that asked for the name of an error; `None` when the log has no traceback for it."""
    for frame in reversed(error.frames):
        if frame.function in _PASSED_ON or frame.path.startswith("<") or is_standard_library(frame):
            continue
        if error.fault.kind is FaultKind.KEYWORD and _PASSES_ALL.search(frame.code):
            continue
        if _imports_other_name(error, frame):
            return None
        module = shelf.module_of(frame)
        top = module.partition(".")[0] or (frame.installed[0] if frame.installed else "")
        if top == "torch" and _OF_TORCH.intersection(frame.parts):
            continue
        owner = shelf.owner(top) if top else None
        return NameCaller(
            frame=frame,
            module=module,
            package=owner or top,
            lookup=shelf.open(owner) if owner else None,
            is_remote_code=REMOTE_CODE in frame.parts,
        )
    return None


def _imports_other_name(error: LoggedError, frame: CodeFrame) -> bool:
    """Whether a frame's whole line imports something else: the file that asks for the name is not shown."""
    fault, statement = error.fault, _WHOLE_IMPORT.match(frame.code)
    if fault.kind is not FaultKind.IMPORT or statement is None:
        return False
    return not re.search(rf"\b{re.escape(fault.name)}\b|\*", statement["names"])


def find_chooser(error: LoggedError, shelf: AtlasShelf) -> NameCaller | None:
    """Return the code that chose a keyword: the innermost that writes it, else that passes on no keywords."""
    frames = error.frames
    written = re.compile(rf"\b{re.escape(error.fault.name)}\s?=")
    at = next((at for at in range(len(frames) - 1, -1, -1) if written.search(frames[at].code)), None)
    if at is None:
        passing = re.compile(r"\*\*\w+")
        at = next((at for at in range(len(frames) - 1, -1, -1) if not passing.search(frames[at].code)), None)
    return find_caller(replace(error, frames=frames[: at + 1]), shelf) if at is not None else None


def passes_all_on(frame: CodeFrame) -> bool:
    """Return whether a frame is of a decorator's function, which calls what it wraps with all that it was given."""
    return frame.function in _PASSED_ON and bool(_PASSES_ALL.search(frame.code))


def releases_without_use(caller: NameCaller, place: NamePlace) -> int:
    """Return the caller's releases, as bits, that do not use the name; 0 when no use of it is known."""
    lookup = caller.lookup
    if lookup is None or lookup is place.lookup:
        return 0
    using = 0
    for start in place.uses:
        for module, (target, _, _, mask) in lookup.file.find_rows(start):
            if module.startswith("@") and (not place.keyword or place.keyword in _keywords_of(target)):
                using |= mask
    return lookup.every & ~using if using else 0


def _keywords_of(target: str) -> Iterator[str]:
    yield from target.partition("(")[2].rstrip(")").split(",")[1:]


def is_standard_library(frame: CodeFrame) -> bool:
    """Return whether a frame's file is one of Python's own."""
    parts = frame.parts
    return not frame.installed and any(part.startswith("python3.") for part in parts[-4:-1])
