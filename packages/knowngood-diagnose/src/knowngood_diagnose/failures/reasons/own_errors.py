"""Where an error arises of which nothing is known: in a file of the project, or in a package's. Pure.

Of the project's own code the answer says that it is its own, the file, the line and the error, and no more. Of an
installed package it says what the package's own words, or Python's, are, and who called it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LAUNCHER_ERROR, LastError
from knowngood_diagnose.failures.machines.missing_commands import explain_build_error, is_build_script
from knowngood_diagnose.failures.names.atlas_shelf import (
    NEWER_OR_OLDER,
    AtlasShelf,
    is_about_unknown_value,
    upgrade_package,
)
from knowngood_diagnose.failures.names.message_causes import (
    ABOUT_ARGUMENTS,
    ADDRESSES,
    ERROR_CLASS,
    PASS_ON,
    SPEAKS,
    MessageCause,
    describe_callers,
    find_missing_package,
    read_own_fixes,
    shorten_text,
)
from knowngood_diagnose.failures.names.name_situation import REMOTE_CODE, advise, describe_failure, is_standard_library
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_OF_VALUES = frozenset(
    ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError", "ZeroDivisionError")
)
"""The classes with which Python itself refuses a value or a name."""
_WORDS_OF_VALUES = lazy_pattern(
    r"object is not (?:subscriptable|iterable|callable)|does not support item (?:assignment|deletion)"
    r"|values to unpack|indices must be integers|could not convert string to|invalid literal for int"
    r"|unsupported operand type|takes (?:from )?\d+ (?:to \d+ )?positional|takes no arguments"
    r"|missing \d+ required (?:positional|keyword-only)|unhashable type|can only concatenate"
    r"|must be (?:str|int|real number)|expected str, bytes or os\.PathLike|not supported between instances"
    r"|object has no len|division by zero|setting an array element with a sequence|is not in list"
    r"|argument of type '\w+' is not iterable|could not (?:be )?broadcast|got multiple values for"
)
"""The words with which Python and NumPy refuse a value, in errors of classes that anything else may raise too."""
_UNCLEAR = frozenset(("AttributeError", "NameError", "TypeError"))
"""Classes with which a program's own line may also refuse what a package gave it: only Python's words count."""
_OF_MACHINE = lazy_pattern(r"(?i)cuda|cudnn|cublas|nccl|hip|driver|triton|out of memory")
_NEW_SYNTAX = lazy_pattern(
    r"^(?:match|case) .{1,200}:$|:=|\b[rR]?[fF]['\"]|^except\*|^type \w+ ?="
    r"|^(?:async )?def .{0,80}\w ?: ?\w|^\w+ ?: ?[\w.\[\]|, ]{1,80}="
)
"""Lines that only newer Pythons read: match, the walrus, f-strings, annotations, exception groups."""
_SHOWN = 160


def explain_own_error(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return that an error is the project's own, with its file and line; `None` where that is not certain."""
    frame = error.frames[-1] if error.frames else None
    named = ERROR_CLASS.match(error.message)
    if frame is not None and is_build_script(frame):
        return explain_build_error(error)
    if frame is None or named is None or not _is_own(frame, shelf) or _OF_MACHINE.search(error.message):
        return None
    name, text = named["name"], named["text"].strip()
    if name == "SyntaxError":
        return _explain_syntax(error, frame) if _NEW_SYNTAX.search(frame.code) else None
    is_of_value = name in _OF_VALUES - _UNCLEAR
    is_of_value |= name in {"TypeError", "ValueError"} and bool(_WORDS_OF_VALUES.search(text))
    if not SPEAKS.match(frame.code) and not is_of_value:
        return None
    where = f"line {frame.line} of {frame.short_file}"
    shown = shorten_text(f"{name}: {text}" if text else frame.code, _SHOWN)
    return _cause(
        error,
        "own-error",
        OwnComponent.MODEL if REMOTE_CODE in frame.parts else OwnComponent.YOUR_CODE,
        title=f"The program itself stops, in {where}: {shown}",
        because=f"No package has a part in it: {shorten_text(frame.code, _SHOWN) or 'that line'} is the program's own.",
        fixes=[advise(f"Look at {where}: the condition that it checks, or the value that it reads")],
    )


def _explain_syntax(error: LastError, frame: CodeFrame) -> MessageCause:
    """A line of a form that this Python lacks."""
    return _cause(
        error,
        "own-error",
        OwnComponent.PYTHON,
        title="This Python is older than the code",
        because=f"Line {frame.line} of {frame.short_file} ({frame.code[:_SHOWN]}) has a form that this Python lacks.",
        fixes=[advise("A newer Python, such as 3.11: conda create -n NAME python=3.11, and install again")],
    )


def _is_own(frame: CodeFrame, shelf: AtlasShelf) -> bool:
    """Whether a frame's file belongs neither to a package nor to Python."""
    return frame.path.endswith(".py") and not (
        frame.installed or is_standard_library(frame) or shelf.module_of(frame) or frame.path.startswith("<")
    )


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
        because = f"Line {frame.line} of {frame.short_file} says so."
    because += describe_callers(error.frames)
    fixes = list(read_own_fixes(text, missing)) or [
        advise(f"Change what {package} refuses in its words: an option, an argument, a file or a row of the data")
    ]
    if not missing and is_about_unknown_value(text):
        fixes.append(upgrade_package(package, NEWER_OR_OLDER))
    elif not missing and (name == "AssertionError" or _find_speaker(text)):
        fixes.append(upgrade_package(package, "a newer release may go on"))
    component = OwnComponent.YOUR_CODE if is_about_call else package
    if passing := _find_passing_package(error, top, shelf):
        component, because = passing, f"{because} It is {passing} that calls it."
        fixes.append(advise(f"A newer {passing}, or the {package} that its requirements name"))
    incident = describe_failure(
        f"raised:{'.'.join(frame.installed or frame.parts[-2:]) if frame else top}",
        IncidentKind.NOT_INSTALLED if missing else IncidentKind.CONFIG,
        missing or component,
        title=f"{f'{missing} is missing, or too old' if missing else f'{package} refuses to go on'}: "
        f"{shorten_text(text, _SHOWN)}",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=package)


def _find_raising_module(frame: CodeFrame, shelf: AtlasShelf) -> str:
    """Return the top-level module in whose file a line refuses to go on; empty for other lines and for own files."""
    if is_standard_library(frame) or not (SPEAKS.match(frame.code) or frame.code.startswith(_WORDS)):
        return ""
    return frame.installed[0] if frame.installed else shelf.module_of(frame).partition(".")[0]


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


_VALUES = lazy_pattern(r"values to unpack|invalid literal for int|could not convert string")
_TENSORS = lazy_pattern(
    r"shape '\[.*\]' is invalid|size of tensor|must match the size|shapes cannot be multiplied|expected scalar type"
)
_TRAINERS = ("unsloth", "axolotl", "ms-swift", "llamafactory", "verl", "openrlhf", "xtuner")
"""Programs that rewrite or wrap most of what they run: an error without a place is mostly theirs."""
_CALLED_BY_ALL = frozenset(
    ("accelerate", "datasets", "huggingface-hub", "numpy", "peft", "safetensors", "tokenizers", "transformers", "trl")
)
"""Packages that trainers call: where one of them fails under a trainer, the two do not go together."""


def explain_inner_error(
    error: LastError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> MessageCause | None:
    """Return the package in whose file Python raises the last error; `None` where that says nothing.

    Args:
        error: the last error of the log.
        versions: package -> the versions in the log.
        shelf: the atlas of all packages.
    """
    named = ERROR_CLASS.match(error.message)
    if named is None:
        return None
    name, text = named["name"], named["text"].strip()
    shown = shorten_text(f"{name}: {text}", _SHOWN)
    of_python = name in _OF_VALUES or (name == "ValueError" and bool(_VALUES.search(text)))
    frames = [frame for frame in error.frames if not _only_calls(frame)]
    remote = next((frame for frame in reversed(frames) if REMOTE_CODE in frame.parts), None)
    if remote is not None and (of_python or _TENSORS.search(text)):
        return _explain_remote_code(error, remote, shown)
    if not of_python or "unexpected keyword" in text:  # a keyword is its caller's, which `own_names` looks for
        return None
    if not error.frames:
        return _explain_trainer(error, versions, shown)
    is_nameless = error.frames[-1].path == "<string>"  # such as the script of a build: not the package's that runs it
    return None if is_nameless or not frames else _explain_place(error, frames, shown, shelf)


def _explain_place(error: LastError, frames: Sequence[CodeFrame], shown: str, shelf: AtlasShelf) -> MessageCause | None:
    """The package in whose file Python refuses a value; `None` for a line that refuses it in its own words."""
    packages = [_package_of(frame, shelf) for frame in frames]
    inner, frame = packages[-1], frames[-1]
    if not inner or SPEAKS.match(frame.code):
        return None
    outer = next((package for package in reversed(packages) if package not in {inner, ""}), "")
    if inner not in _CALLED_BY_ALL or outer in _CALLED_BY_ALL:
        outer = ""
    because = f"Python raises it in {inner}'s own file ({frame.short_file}, line {frame.line})"
    because += f", which {outer} called." if outer else "."
    return _cause(
        error,
        "inner-error",
        outer or inner,
        title=f"{inner} fails inside{f' when {outer} calls it' if outer else ''}: {shown}",
        because=because + describe_callers(frames),
        fixes=_fixes(outer or inner, inner if outer else "", shelf),
    )


def _fixes(component: str, called: str, shelf: AtlasShelf) -> list[Fix]:
    fixes = [upgrade_package(component)]
    if component not in shelf.packages and component not in shelf.distributions:
        fixes = [advise(f"A newer release or commit of {component}, with the packages that its own requirements name")]
    if called:
        fixes.append(advise(f"The {called} that the requirements of this {component} name, when it is a newer one"))
    else:
        fixes.append(advise(f"The release of {component} before this one, when it came with an upgrade"))
    return [
        *fixes,
        advise(f"Look at what your program gives to {component}: an option or a field that is None or empty"),
    ]


def _explain_remote_code(error: LastError, frame: CodeFrame, shown: str) -> MessageCause:
    return _cause(
        error,
        "inner-error",
        OwnComponent.MODEL,
        title=f"The model's own code does not go with this transformers: {shown}",
        because=(
            f"Line {frame.line} of {frame.parts[-1]}.py, which came with the model, leads there: such code is written "
            "for the transformers of its day, and calls or overrides what later releases changed."
        ),
        fixes=[
            advise("The transformers that the model's config.json names (transformers_version)"),
            advise("A newer revision of the model's code; or trust_remote_code=False, when transformers has the model"),
        ],
    )


def _explain_trainer(error: LastError, versions: Mapping[str, Sequence[str]], shown: str) -> MessageCause | None:
    """The one trainer whose release the log states, for an error without a place."""
    trainers = [name for name in _TRAINERS if name in versions]
    if len(trainers) != 1:
        return None
    trainer = f"{trainers[0]} {versions[trainers[0]][-1]}"
    return _cause(
        error,
        "inner-error",
        trainers[0],
        title=f"{trainer} most likely fails inside: {shown}",
        because=f"The log shows no traceback; what it states is {trainer}, which rewrites or wraps what it runs.",
        fixes=[upgrade_package(trainers[0]), advise(f"The release of {trainers[0]} before this one")],
    )


def _package_of(frame: CodeFrame, shelf: AtlasShelf) -> str:
    """The package of a frame's file; empty for a file that is not installed."""
    top = frame.installed[0].partition("-")[0] if frame.installed else shelf.module_of(frame).partition(".")[0]
    return shelf.owner(top) or shelf.distribution_of(top) or top if top else ""


def _only_calls(frame: CodeFrame) -> bool:
    """Whether a frame only passes a call on, and says nothing of who is at fault."""
    return (
        frame.path.startswith("<")
        or is_standard_library(frame)
        or bool(frame.installed[:1] and frame.installed[0] in PASS_ON)
    )


def _cause(  # noqa: PLR0913 - the fields of an incident
    error: LastError, name: str, component: str, *, title: str, because: str, fixes: Sequence[Fix]
) -> MessageCause:
    kind = IncidentKind.FAILS_INSIDE if name == "inner-error" else IncidentKind.CONFIG
    incident = describe_failure(name, kind, component, title=title, because=because, fixes=fixes)
    package = "" if name == "own-error" else component
    return MessageCause(incident=incident, line=error.line, package=package)
