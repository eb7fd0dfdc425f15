"""The cause of an error that an installed package raises in a line that the traceback quotes. Pure.

The line, or without a traceback the class of the error, says that the words are the package's own, so that nothing need
be known of the package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.compat.incident import Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LAUNCHER_ERROR, LastError
from knowngood.failures.names.atlas_shelf import NEWER_OR_OLDER, AtlasShelf, is_about_unknown_value, upgrade_package
from knowngood.failures.names.message_causes import (
    ABOUT_ARGUMENTS,
    ADDRESSES,
    ERROR_CLASS,
    SPEAKS,
    MessageCause,
    describe_calling_line,
    describe_traceback,
    find_missing_package,
    read_own_fixes,
    shorten_text,
)
from knowngood.failures.names.name_situation import advise, is_standard_library

if TYPE_CHECKING:
    from knowngood.failures.logs.logged_errors import CodeFrame

_FEWEST_WORDS = 4
_ABOUT_OTHERS = frozenset(
    [
        "aiohttp",
        "botocore",
        "datasets",
        "grpc",
        "httpcore",
        "httpx",
        "huggingface_hub",
        "jaxlib",
        "joblib",
        "ray",
        "requests",
        "torch",
        "triton",
        "urllib3",
    ]
)
"""Packages whose errors tell of what they were given, or of another program, and not of themselves."""
_WORDS = ("'", '"', "f'", 'f"')
"""How the line begins that a traceback quotes, in Pythons before 3.8: they quote the last line of the words."""
_SPEAKER = lazy_pattern(r"^\W*(?P<who>Unsloth)\b")
"""Packages that begin their messages with their name."""
_PASSES_ON = ("during handling", "following error", "see above", "traceback")
"""Words of one who passes another error on."""


def explain_raised_words(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return what a package says itself; `None` unless its line or its class shows that it does."""
    frame = error.frames[-1] if error.frames else None
    named = ERROR_CLASS.match(error.message)
    if named is None:
        return None
    name, text = named["name"], named["text"].strip()
    if name in {"KeyError", "AttributeError"} or LAUNCHER_ERROR.search(name):
        return None
    top = _find_raising_module(frame, shelf) if frame is not None else ""
    if not top and len(text.split()) >= _FEWEST_WORDS:
        top = _find_speaker(text) or (_find_package_of_class(error.message) if frame is None else "")
    if not top or any(words in text.lower() for words in _PASSES_ON):
        return None
    text = text or (frame.code if frame is not None else "")
    package = shelf.owner(top) or shelf.distribution_of(top) or top
    missing = find_missing_package(text, "", package, shelf)
    caller = next((item for item in reversed(error.frames) if _is_own(item, shelf)), None)
    is_about_call = caller is not None and name in ABOUT_ARGUMENTS and bool(ADDRESSES.search(text))
    because = f"The class of the error, or the head of its message, is {package}'s own."
    if frame is not None:
        because = f"Line {frame.line} of {'/'.join(frame.installed or frame.parts[-2:])}.py says so."
    if caller is not None:
        because += f" {describe_calling_line(caller)}"
    fixes = list(read_own_fixes(text, missing)) or [
        advise(f"Change what {package} refuses in its words: an option, an argument, a file or a row of the data")
    ]
    if not missing and is_about_unknown_value(text):
        fixes.append(upgrade_package(package, NEWER_OR_OLDER))
    elif not missing and (name == "AssertionError" or _find_speaker(text)):
        fixes.append(upgrade_package(package, "a newer release may go on"))
    verb = f"{missing} is missing, or too old" if missing else f"{package} refuses to go on"
    component = OwnComponent.YOUR_CODE if is_about_call else package
    if passing := _find_passing_package(error, top, shelf):
        component, because = passing, f"{because} It is {passing} that calls it."
        fixes.append(advise(f"A newer {passing}, or the {package} that its requirements name"))
    incident = Incident(
        id=f"raised:{'.'.join(frame.installed or frame.parts[-2:]) if frame else top}",
        title=f"{verb}: {shorten_text(text, 140)}",
        kind=IncidentKind.NOT_INSTALLED if missing else IncidentKind.CONFIG,
        severity=IncidentSeverity.FAILURE,
        component=missing or component,
        because=because,
        fix=tuple(fixes),
        source=("the traceback",),
        confidence="reported",
    )
    return MessageCause(incident=incident, line=error.line, package=package)


def explain_unimplemented(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return that the class in use lacks a method which a package's base class leaves to it; else `None`."""
    frame = error.frames[-1] if error.frames else None
    if frame is None or error.message != "NotImplementedError" or not frame.function.isidentifier():
        return None
    top = _find_raising_module(frame, shelf)
    if not top:
        return None
    package = shelf.owner(top) or shelf.distribution_of(top) or top
    because = (
        f"{frame.function} of a base class of {package} (line {frame.line} of "
        f"{'/'.join(frame.installed or frame.parts[-2:])}.py) only says that the class below it must have it. The "
        "class in use has not: mostly the code of a model or of the project is older than what now calls it."
    )
    fixes = [
        advise(
            f"A newer revision of the class's own code (download the model's *.py again) that defines {frame.function}"
        ),
        advise(f"Define {frame.function} in that class, or leave out the option for which it is called"),
        advise("The packages that the model's or the project's own requirements name"),
    ]
    incident = describe_traceback(
        "not-implemented",
        IncidentKind.CONFIG,
        OwnComponent.MODEL if package == "transformers" else OwnComponent.YOUR_CODE,
        title=f"The class in use does not implement {frame.function}, which {package} leaves to it",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="", is_likely=True)


def _find_raising_module(frame: CodeFrame, shelf: AtlasShelf) -> str:
    """Return the top-level module in whose file a line refuses to go on; empty for other lines and for own files."""
    if is_standard_library(frame) or not (SPEAKS.match(frame.code) or frame.code.startswith(_WORDS)):
        return ""
    return frame.installed[0] if frame.installed else shelf.module_of(frame).partition(".")[0]


def _is_own(frame: CodeFrame, shelf: AtlasShelf) -> bool:
    """Whether a frame's file is the project's own: not installed, and not of a package's checkout."""
    return not frame.installed and frame.path.endswith(".py") and not shelf.module_of(frame)


def _find_speaker(text: str) -> str:
    """Return the package that begins its messages with its name; empty for none."""
    named = _SPEAKER.match(text)
    return named["who"].lower() if named else ""


def _find_passing_package(error: LastError, top: str, shelf: AtlasShelf) -> str:
    """Return the package that passes to torch and the like what they refuse; empty when the program does it itself."""
    outer = next((item for item in reversed(error.frames) if item.installed[:1] != (top,)), None)
    if top not in _ABOUT_OTHERS or outer is None or not outer.installed or outer.installed[0] in _ABOUT_OTHERS:
        return ""
    name = outer.installed[0]
    return shelf.owner(name) or shelf.distribution_of(name) or ""


def _find_package_of_class(message: str) -> str:
    """Return the module at the head of an error's dotted class, if its words are that package's own; else ""."""
    top, dot, _rest = message.split(":", 1)[0].partition(".")
    return top if dot and top not in _ABOUT_OTHERS and top not in sys.stdlib_module_names else ""
