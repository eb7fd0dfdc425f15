"""The cause of an error that a project's own file raises, or that Python raises in it. Pure.

It is said only of a traceback that ends in a file of the project, and of errors that no package can have made: the line
itself raises or asserts, or Python finds a plain value that is missing or of another kind.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, Incident, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.machines.missing_commands import explain_build_error, is_build_script
from knowngood.failures.names.message_causes import ERROR_CLASS, SPEAKS, MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import REMOTE_CODE, advise, is_standard_library
from knowngood.failures.names.plain_values import explain_empty_value
from knowngood.failures.reasons.asserted_conditions import read_assertion
from knowngood.failures.reasons.handed_in_values import explain_generated_trainer, find_unset_local
from knowngood.failures.reasons.required_packages import explain_required_package

if TYPE_CHECKING:
    from knowngood.failures.logs.last_errors import LastError
    from knowngood.failures.logs.logged_errors import CodeFrame
    from knowngood.failures.names.atlas_shelf import AtlasShelf

_OF_VALUES = frozenset(("KeyError", "IndexError", "UnboundLocalError", "ZeroDivisionError"))
"""The classes with which Python itself refuses a plain value."""
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
_OF_MACHINE = lazy_pattern(r"cuda|cudnn|cublas|nccl|hip|driver|triton|out of memory", re.IGNORECASE)
_OPTION = lazy_pattern(r"[`'\"](?P<quoted>[a-z]\w*_\w+(?: ?==? ?[\w.-]+)?)[`'\"]|(?P<flag>--[a-z][\w-]+)")
"""An option in a message: a name in quotes, with or without its value, or a flag."""
_WANTS = lazy_pattern(
    r"\b(?:needs?|requires?|must|should|only (?:works?|supported|supports)|set|use|specify|provide|cannot be used)\b"
)
_SHOWN = 160
_NEW_SYNTAX = lazy_pattern(
    r"^(?:match|case) .{1,200}:$|:=|\b[rR]?[fF]['\"]|^except\*|^type \w+ ?="
    r"|^(?:async )?def .{0,80}\w ?: ?\w|^\w+ ?: ?[\w.\[\]|, ]{1,80}="
)
"""Lines that only newer Pythons read: match, the walrus, f-strings, annotations, exception groups."""
_OLD_SYNTAX = lazy_pattern(r"^print ['\"\w]|^except \w+, ?\w+:|^raise \w+, ")
_PARAMETER = lazy_pattern(r"^'?(?:[\w-]+\.)+(?:layers?|blocks?|h|encoder|decoder|resblocks)\.\d+\.[\w.-]+'?$")
"""The name of a parameter of a model with layers, as a key of its weights."""


def explain_own_error(  # noqa: PLR0911 - one return for each kind of error
    error: LastError, shelf: AtlasShelf
) -> MessageCause | None:
    """Return the cause of an error that arises in a project's own file; `None` where that is not certain."""
    frame = error.frames[-1] if error.frames else None
    named = ERROR_CLASS.match(error.message)
    if named is not None and named["name"] == "KeyError" and _PARAMETER.match(named["text"].strip()):
        return _explain_lost_parameter(error, named["text"].strip().strip("'"))
    if frame is not None and is_build_script(frame):
        return explain_build_error(error)
    if frame is None or named is None or not _is_own(frame, shelf) or _OF_MACHINE.search(error.message):
        return None
    name, text = named["name"], named["text"].strip()
    if name == "SyntaxError":
        return _explain_syntax(error, frame)
    if (reason := explain_empty_value(text, frame, "")) is not None:
        incident = _incident(reason.title, reason.because, list(reason.fixes), reason.component)
        return MessageCause(incident=incident, line=error.line, package="")
    if (unset := find_unset_local(text, frame, "")) is not None:
        component = OwnComponent.MODEL if REMOTE_CODE in frame.parts else OwnComponent.YOUR_CODE
        incident = _incident(unset.title, unset.because, list(unset.fixes), component)
        return MessageCause(incident=incident, line=error.line, package="")
    speaks = bool(SPEAKS.match(frame.code))
    absent = explain_required_package(error, name, text, shelf) if speaks else None
    if (known := absent or explain_generated_trainer(error, text)) is not None:
        return known
    if (
        not speaks
        and name not in _OF_VALUES
        and not (name in {"TypeError", "ValueError"} and _WORDS_OF_VALUES.search(text))
    ):
        return None
    return _explain_line(error, frame, name, text)


def explain_stated_condition(error: LastError) -> MessageCause | None:
    """Return that a program says which of its settings it wants, in a log without frames; `None` for other words."""
    named = ERROR_CLASS.match(error.message)
    if named is None or error.frames or named["name"] not in {"ValueError", "AssertionError", "NotImplementedError"}:
        return None
    text = named["text"].strip()
    option = _OPTION.search(text)
    if option is None or not _WANTS.search(text) or _OF_MACHINE.search(text):
        return None
    wanted = option["quoted"] or option["flag"]
    title = f"The program says which setting it wants: {shorten_text(text, _SHOWN)}"
    because = (
        "The message names a setting and what must hold for it; the log has no traceback, so which program or package "
        "checks it is not known."
    )
    fixes = [
        advise(f"Do what the message says of {wanted}, in the command line or the configuration file"),
        advise("The help or the documentation of this very release for that setting, when it is set already"),
    ]
    return MessageCause(
        incident=_incident(title, because, fixes, OwnComponent.YOUR_CODE), line=error.line, package="", is_likely=True
    )


def _explain_line(error: LastError, frame: CodeFrame, name: str, text: str) -> MessageCause:
    """Say what the line of code refuses or takes for granted."""
    file = frame.short_file
    shown = shorten_text(text or frame.code, _SHOWN)
    where = f"Line {frame.line} of {file} ({frame.code[:_SHOWN]})" if frame.code else f"Line {frame.line} of {file}"
    stated = read_assertion(frame, error.frames[-2] if len(error.frames) > 1 else None)
    if stated is not None:
        title, because, fixes = stated.title, f"{where} checks this and stops. {stated.because}", list(stated.fixes)
    elif SPEAKS.match(frame.code):
        title = f"{file} itself refuses to go on: {shown}"
        because = f"{where} checks this and stops; no package has a part in it."
        fixes = [advise(f"Meet the condition that {file} checks: look at the lines above line {frame.line}")]
    else:
        title = f"{file} meets a value that it does not expect: {name}: {shown}"
        because = f"{where} takes for granted what the data, the configuration or the step before does not give."
        fixes = [
            advise(
                "Print what that line reads, and where it comes from: a field, a key, a file or an argument is missing "
                f"or of another kind than {file} expects"
            )
        ]
    fixes.append(
        advise("The data, the configuration and the releases of packages that the project's own instructions name")
    )
    return MessageCause(
        incident=_incident(
            title, because, fixes, OwnComponent.MODEL if REMOTE_CODE in frame.parts else OwnComponent.YOUR_CODE
        ),
        line=error.line,
        package="",
    )


def _explain_lost_parameter(error: LastError, parameter: str) -> MessageCause:
    """A key that is the name of a weight: the files and the code that reads them are of different models."""
    fixes = [
        advise(
            "Print the keys of both sides (safetensors.safe_open, model.state_dict()): a prefix such as module. or "
            "base_model., another layout of layers, or another kind of quantization or adapter"
        ),
        advise("The release of the program that wrote the file, or a newer one of the program that reads it"),
    ]
    title = f"The weights, or the model that reads them, have no {parameter}"
    because = (
        "Code looks a weight up by this name, and the checkpoint, the adapter or the model names its weights otherwise."
    )
    return MessageCause(incident=_incident(title, because, fixes, OwnComponent.MODEL), line=error.line, package="")


def _explain_syntax(error: LastError, frame: CodeFrame) -> MessageCause | None:
    """A line that another Python reads; `None` for one that may be wrong in each."""
    if _NEW_SYNTAX.search(frame.code):
        title, fix = "This Python is older than the code", "A newer Python, such as 3.11"
    elif _OLD_SYNTAX.search(frame.code):
        title, fix = "The code was written for Python 2", "2to3, a newer commit of the project, or python2"
    else:
        return None
    because = f"Line {frame.line} of {frame.parts[-1]}.py ({frame.code[:_SHOWN]}) has a form that this Python lacks."
    fixes = [advise(f"{fix}: conda create -n NAME python=3.11, and install again")]
    return MessageCause(incident=_incident(title, because, fixes, OwnComponent.PYTHON), line=error.line, package="")


def _is_own(frame: CodeFrame, shelf: AtlasShelf) -> bool:
    """Whether a frame's file belongs neither to a package nor to Python."""
    return frame.path.endswith(".py") and not (
        frame.installed or is_standard_library(frame) or shelf.module_of(frame) or frame.path.startswith("<")
    )


def _incident(title: str, because: str, fixes: list[Fix], component: str) -> Incident:
    return describe_traceback("own-error", IncidentKind.CONFIG, component, title=title, because=because, fixes=fixes)
