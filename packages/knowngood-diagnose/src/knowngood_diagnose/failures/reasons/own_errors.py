"""The cause of an error that a project's own file or an installed package raises in a line that is quoted. Pure."""

from __future__ import annotations

import re
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
    SPEAKS,
    MessageCause,
    describe_callers,
    find_missing_package,
    read_own_fixes,
    shorten_text,
)
from knowngood_diagnose.failures.names.name_situation import REMOTE_CODE, advise, describe_failure, is_standard_library
from knowngood_diagnose.failures.names.plain_values import explain_empty_value
from knowngood_diagnose.failures.reasons.handed_in_values import explain_generated_trainer
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

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
    if SPEAKS.match(frame.code):
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
    return describe_failure("own-error", IncidentKind.CONFIG, component, title=title, because=because, fixes=fixes)


_ABSENT = lazy_pattern(
    r"^(?:no|missing) (?P<only>[A-Za-z][\w.-]+)(?= ?(?:[/!.,]|$| (?:package|module|library|found|installed)))"
    r"|(?P<before>[A-Za-z][\w-]+) (?:(?:package|module|library) )?(?:is|was|are) (?:not (?:installed|found|available)"
    r"|missing|required)"
    r"|install (?P<linked>[A-Za-z][\w-]+)(?= (?:from http|to use|by running|using pip))"
    r"|(?:install|pip install|requires?|needs?|import) (?:the )?[`'\"]?(?P<named>[A-Za-z][\w-]+)[`'\"]?"
    r"|(?P<short>[A-Za-z][\w-]+) not (?:installed|found|available)",
    re.IGNORECASE,
)
_IMPORTS = frozenset(("ImportError", "ModuleNotFoundError"))
_PLAIN = frozenset(("the", "a", "it", "this", "that", "package", "packages", "library", "module", "them", "or", "and"))
_SHOWN_REQUEST = 140


def explain_required_package(error: LastError, name: str, text: str, shelf: AtlasShelf) -> MessageCause | None:
    """Return the package that the message says is not there; `None` where it names none that is known.

    Args:
        error: the last error of the log.
        name: its class.
        text: its message, without the class.
        shelf: the atlas of all packages.
    """
    package = find_missing_package(text, "", "", shelf) if name in _IMPORTS else ""
    for stated in _ABSENT.finditer(text):
        word = next(filter(None, stated.groups())).lower().rstrip(".")
        known = _find_package(word, shelf)
        is_named = name in _IMPORTS and (stated["only"] or stated["linked"]) and word not in _PLAIN
        if not package and (known or is_named):
            package = known or word.replace("_", "-")
    if not package:
        return None
    frame = error.frames[-1]
    file = frame.short_file
    incident = describe_failure(
        f"package-required:{package}",
        IncidentKind.NOT_INSTALLED,
        package,
        title=f"{package} is not installed, or cannot be imported: {shorten_text(text, _SHOWN_REQUEST)}",
        because=(
            f"Line {frame.line} of {file} raises this where its import of {package} failed. It is needed for an "
            "option that was chosen (an optimizer, a precision, a kind of attention), and it is not in the "
            "environment that runs, or its import fails there."
        ),
        fixes=(
            Fix(
                change={package: "*"},
                note=f"install it into the very environment that runs: python -m pip install {package}",
            ),
            Fix(
                change={},
                note=(
                    f"python -c 'import {package.replace('-', '_')}' shows whether it is there, and why "
                    "its import fails"
                ),
            ),
            Fix(change={}, note=f"Choose what needs no {package}: another value of the option"),
        ),
    )
    return MessageCause(incident=incident, line=error.line, package=package)


def _find_package(word: str, shelf: AtlasShelf) -> str:
    """The known package of that name; empty for a word that is none, and for what every training has."""
    plain = word.replace("_", "-")
    if word in _PLAIN or plain in {"torch", "python", "cuda"}:
        return ""
    return shelf.distribution_of(plain.replace("-", "_")) or (
        plain if plain in shelf.distributions or plain in shelf.packages else ""
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
    caller = next((item for item in reversed(error.frames) if _is_of_project(item, shelf)), None)
    is_about_call = caller is not None and name in ABOUT_ARGUMENTS and bool(ADDRESSES.search(text))
    because = f"The class of the error, or the head of its message, is {package}'s own."
    if frame is not None:
        because = f"Line {frame.line} of {'/'.join(frame.installed or frame.parts[-2:])}.py says so."
    because += describe_callers(error.frames)
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
    incident = describe_failure(
        f"raised:{'.'.join(frame.installed or frame.parts[-2:]) if frame else top}",
        IncidentKind.NOT_INSTALLED if missing else IncidentKind.CONFIG,
        missing or component,
        title=f"{verb}: {shorten_text(text, 140)}",
        because=because,
        fixes=fixes,
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
    incident = describe_failure(
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


def _is_of_project(frame: CodeFrame, shelf: AtlasShelf) -> bool:
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
