"""What can be said of an error inside a package's own file, and of one that was caught or passed on before it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LAUNCHER_ERROR, LastError
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, upgrade_package
from knowngood_diagnose.failures.names.message_causes import (
    ERROR_CLASS,
    PASS_ON,
    SPEAKS,
    MessageCause,
    describe_callers,
    shorten_text,
)
from knowngood_diagnose.failures.names.name_situation import REMOTE_CODE, advise, describe_failure, is_standard_library
from knowngood_diagnose.failures.names.plain_values import explain_empty_value, find_empty_value
from knowngood_diagnose.failures.reasons.handed_in_values import explain_handed_in
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_lookup import find_parameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_OF_PYTHON = frozenset(
    ("AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError", "ZeroDivisionError")
)
"""The classes with which Python itself refuses a value or a name."""
_OF_PLAIN_VALUES = frozenset(("IndexError", "NameError", "UnboundLocalError", "ZeroDivisionError"))
_PLAIN_VALUE = lazy_pattern(
    r"^'(?:NoneType|list|dict|str|int|float|tuple|bool|set|bytes|ndarray|Namespace)' object (?:has no attribute|is not)"
    r"|^(?:'?NoneType'?|list|string|tuple) (?:indices|object)|values to unpack|unsupported operand type"
)
"""Words with which Python refuses a plain value, in classes of errors that packages use too."""
_LACKS = lazy_pattern(r"^'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'")
_TELLING_CLASS = lazy_pattern(r"^[A-Z]\w*[a-z0-9][A-Z]\w+$")
"""A class of more than one word, which only one project is likely to have."""
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
_SHOWN = 140
_LONGEST_RANK = 24


def explain_inner_error(  # noqa: C901, PLR0911, PLR0912 - one for each thing that says nothing
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
    if (ignored := explain_ignored_setting(error, shelf)) is not None:
        return ignored
    if name == "SyntaxError":
        return _explain_made_source(error, text, shelf)
    of_python = name in _OF_PYTHON or (name == "ValueError" and bool(_VALUES.search(text)))
    frames = [frame for frame in error.frames if not _passes_on(frame)]
    if any(REMOTE_CODE in frame.parts for frame in frames) and (of_python or _TENSORS.search(text)):
        return _explain_remote_code(error, frames, f"{name}: {text}")
    if not of_python or "unexpected keyword" in text:  # a keyword is its caller's, which `own_names` looks for
        return None
    if not error.frames:
        return _explain_trainer(error, versions, f"{name}: {text}") or _explain_plain_value(error, name, text)
    if not frames or SPEAKS.match(frames[-1].code) or error.frames[-1].path == "<string>":
        return None  # code without a file, such as the script of a build, is not the package's that runs it
    packages = [_package_of(frame, shelf) for frame in frames]
    inner = packages[-1]
    if not inner:
        return None
    outer = next((package for package in reversed(packages) if package not in {inner, ""}), "")
    if inner not in _CALLED_BY_ALL or outer in _CALLED_BY_ALL:
        outer = ""
    frame = frames[-1]
    if (handed_in := explain_handed_in(error, text, frames, packages, shelf)) is not None:
        return handed_in
    if (reason := explain_empty_value(text, frame, inner)) is not None:
        return _cause(error, reason.component, reason.title, reason.because, list(reason.fixes))
    if (foreign := _explain_foreign_class(error, text, inner, frame, shelf)) is not None:
        return foreign
    place = f"{'/'.join(frame.installed or frame.parts[-2:])}.py" + (f", line {frame.line}" if frame.line else "")
    component = outer or inner
    because = f"Python raises it in {inner}'s own file ({place}{f', in {frame.function}' if frame.function else ''})"
    if outer:
        because += f", which {outer} called: mostly {outer} was written for another {inner}."
    else:
        because += ": a defect of this release, or a value that it does not expect from the step before."
    if (value := find_empty_value(text, frame.code)) is not None:
        because += f" {value.what} is {'None' if value.kind == 'NoneType' else f'a {value.kind}'} in that line."
    because += describe_callers(frames)
    fixes = _fixes(component, inner, outer, is_known=component in shelf.packages or component in shelf.distributions)
    title = (
        f"{inner} fails inside{f' when {outer} calls it' if outer else ''}: {shorten_text(f'{name}: {text}', _SHOWN)}"
    )
    return _cause(error, component, title, because, fixes)


def _explain_foreign_class(
    error: LastError, text: str, inner: str, frame: CodeFrame, shelf: AtlasShelf
) -> MessageCause | None:
    """An attribute that one package asks of an object whose class another package has: the two do not go together."""
    lacked = _LACKS.match(text)
    if lacked is None or not _TELLING_CLASS.match(lacked["owner"]) or inner not in shelf.packages:
        return None
    owner, name = lacked["owner"], lacked["name"]
    owners = [
        package
        for package in shelf.packages
        if (lookup := shelf.open(package)) is not None and any(True for _ in lookup.definitions_of(owner))
    ]
    if len(owners) != 1 or owners[0] == inner:
        return None
    other = owners[0]
    because = (
        f"Line {frame.line} of {'/'.join(frame.installed)}.py ({shorten_text(frame.code, _SHOWN)}) asks an object for "
        f"{name}. Its class {owner} is one of {other}, and no {other} that was read gives it {name}: {inner} was "
        f"written for a {other} whose step before returns another object."
    )
    fixes = [
        upgrade_package(inner, f"the newest {inner}, which may know this {other}"),
        advise(
            f"The {other} that was new when this {inner} came out (pip show {inner} and pip check name its bounds): "
            "the one from before the upgrade after which it failed"
        ),
    ]
    title = f"{inner} asks {other}'s {owner} for `{name}`, which it has not: the two releases do not go together"
    return _cause(error, inner, title, because, fixes)


def _fixes(component: str, inner: str, outer: str, *, is_known: bool = True) -> list[Fix]:
    fixes = [upgrade_package(component)]
    if not is_known:  # it may be a project of one's own, which no index has
        fixes = [advise(f"A newer release or commit of {component}, with the packages that its own requirements name")]
    if outer:
        fixes.append(advise(f"The {inner} that the requirements of this {outer} name, when it is a newer one"))
    else:
        fixes.append(advise(f"The release of {component} before this one, when it came with an upgrade"))
    fixes.append(
        advise(
            f"Look at what your program gives to {component}: an option or a field of the data that is None or empty"
        )
    )
    return fixes


def _explain_made_source(error: LastError, text: str, shelf: AtlasShelf) -> MessageCause | None:
    """The package that executes source code which it made, where that is no valid Python."""
    if len(error.frames) < 2 or error.frames[-1].path != "<string>":
        return None
    frame = error.frames[-2]
    package = _package_of(frame, shelf)
    if not package or not frame.code.startswith(("exec(", "eval(", "compile(")):
        return None
    because = (
        f"{package} makes this source code ({'/'.join(frame.installed)}.py, line {frame.line}), mostly by rewriting "
        "another package's, and executes it; for the release that is installed of that, what it makes is not valid."
    )
    shown = shorten_text(f"SyntaxError: {text}", _SHOWN)
    title = f"{package} rewrites source code, and what it makes is no Python: {shown}"
    fixes = [
        upgrade_package(package, "the newest release, which knows newer packages"),
        advise(
            f"The release of the package that {package} rewrites (often transformers) which is as old as this {package}"
        ),
    ]
    return _cause(error, package, title, because, fixes)


def _explain_remote_code(error: LastError, frames: Sequence[CodeFrame], shown: str) -> MessageCause:
    frame = next(frame for frame in reversed(frames) if REMOTE_CODE in frame.parts)
    title = f"The model's own code does not go with this transformers: {shorten_text(shown, _SHOWN)}"
    because = (
        f"Line {frame.line} of {frame.parts[-1]}.py, which came with the model, leads there: such code is written for "
        "the transformers of its day, and calls or overrides what later releases changed."
    )
    fixes = [
        advise(
            "The transformers that the model's config.json names (transformers_version): pip install transformers==..."
        ),
        advise("A newer revision of the model's code; or, when transformers has the model, trust_remote_code=False"),
    ]
    return _cause(error, OwnComponent.MODEL, title, because, fixes)


def _explain_trainer(error: LastError, versions: Mapping[str, Sequence[str]], shown: str) -> MessageCause | None:
    """The one trainer whose release the log states, for an error without a place."""
    trainers = [name for name in _TRAINERS if name in versions]
    if len(trainers) != 1:
        return None
    trainer = trainers[0]
    version = versions[trainer][-1]
    because = (
        f"The log shows no traceback; what it states is {trainer} {version}, which rewrites or wraps what it runs: "
        "such an error of Python is mostly a defect of its release, or another package's release that it does not know."
    )
    title = f"{trainer} {version} most likely fails inside: {shorten_text(shown, _SHOWN)}"
    return _cause(error, trainer, title, because, _fixes(trainer, trainer, ""))


def _explain_plain_value(error: LastError, name: str, text: str) -> MessageCause | None:
    """A plain Python value that is not what the code expects, where the log shows no traceback."""
    at = error.text.find(name)  # a sentence about an error, such as a title, is about a package
    if at > _LONGEST_RANK or not (name in _OF_PLAIN_VALUES or _PLAIN_VALUE.search(text)):
        return None
    what = "A name is not defined where it is used" if name == "NameError" else "A value is not what the code expects"
    title = f"{what}: {shorten_text(f'{name}: {text}', _SHOWN)}"
    because = (
        "The log shows no traceback, so whose line asks for it is not certain: a field, a key, a file, an argument or "
        "an import is missing, empty or of another kind than the code takes for granted."
    )
    fixes = [
        advise("The whole traceback shows the line: print what it reads, and look where that is set"),
        advise("The data, the configuration and the releases of packages that the project's own instructions name"),
    ]
    return _cause(error, OwnComponent.YOUR_CODE, title, because, fixes)


def _package_of(frame: CodeFrame, shelf: AtlasShelf) -> str:
    """The package of a frame's file; empty for a file that is not installed."""
    top = frame.installed[0].partition("-")[0] if frame.installed else shelf.module_of(frame).partition(".")[0]
    return shelf.owner(top) or shelf.distribution_of(top) or top if top else ""


def _passes_on(frame: CodeFrame) -> bool:
    """Whether a frame only passes a call on, and says nothing of who is at fault."""
    return (
        frame.path.startswith("<")
        or is_standard_library(frame)
        or bool(frame.installed[:1] and frame.installed[0] in PASS_ON)
    )


def _cause(error: LastError, component: str, title: str, because: str, fixes: list[Fix]) -> MessageCause:
    incident = describe_failure(
        "inner-error", IncidentKind.FAILS_INSIDE, component, title=title, because=because, fixes=fixes
    )
    return MessageCause(incident=incident, line=error.line, package=component)


_IGNORED = lazy_pattern(
    r"The config attributes \{(?P<keys>[^}]{3,800})\} were passed to (?P<owner>\w+), but are not expected"
)
_KEY = lazy_pattern(r"['\"](?P<key>\w+)['\"]:")
_PACKAGE = "diffusers"
_SHOWN_SETTINGS = 120


def explain_ignored_setting(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return that diffusers is older than the model; `None` where no setting was ignored, or none of a later release.

    Args:
        error: the last error of the log, which arises in a file of diffusers.
        shelf: the atlas of all packages.
    """
    stated = list(_IGNORED.finditer(error.above.decode("utf-8", "replace")))
    lookup = shelf.open(_PACKAGE)
    if not stated or lookup is None or not any(_PACKAGE in frame.installed[:1] for frame in error.frames[-4:]):
        return None
    owner, keys = stated[-1]["owner"], [match["key"] for match in _KEY.finditer(stated[-1]["keys"])]
    taken = {key: find_parameter(lookup, f"{lookup.file.root}.{owner}", key).accepted for key in keys}
    known = {key: mask for key, mask in taken.items() if mask}
    if not known:
        return None
    at = max((mask & -mask).bit_length() - 1 for mask in known.values())
    first, shown = lookup.file.releases[at], ", ".join(known)
    since = f"in every release from {first} on that was read" if at == 0 else f"since {first}"
    because = (
        f"A line above says that {owner} was passed {shown} by the model's config.json, does not expect it, and "
        f"ignores it. diffusers takes it {since}: an older one runs, builds the model without that setting, and fails "
        f"at what follows from it ({shorten_text(error.message, _SHOWN_SETTINGS)})."
    )
    fixes = [
        Fix(change={_PACKAGE: f">={first}"}, note=f"its {owner} takes {shown}", cost="an upgrade"),
        upgrade_package(_PACKAGE, f"the newest {_PACKAGE}"),
        advise("A model of the age of the diffusers that the project needs"),
    ]
    incident = describe_failure(
        "ignored-setting",
        IncidentKind.API_NOT_YET,
        _PACKAGE,
        title=f"diffusers is older than the model: its {owner} does not know {shown}",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=_PACKAGE)


_HANDLING = b"During handling of the above exception, another exception occurred"
_BEGIN = b"Traceback (most recent call last)"
_HANDLER_CLASSES = (
    "TypeError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "ModuleNotFoundError",
    "ImportError",
)
"""Classes with which Python refuses what a handler does."""


def find_handled_lines(error: LastError | None) -> range:
    """Return the numbers of the lines of the error that was caught; none where the last error repeats it."""
    frame = error.frames[-1] if error is not None and error.frames else None
    if error is None or frame is None or SPEAKS.match(frame.code):
        return range(0)
    if not error.message.rpartition(": ")[0].startswith(_HANDLER_CLASSES) and not error.message.startswith(
        _HANDLER_CLASSES
    ):
        return range(0)
    at = error.above.rfind(_HANDLING)
    if at < 0 or error.above.count(_BEGIN, at) != 1:
        return range(0)
    first = error.above.rfind(_BEGIN, 0, at)
    if first < 0:
        return range(0)
    return range(error.line - error.above.count(b"\n", first), error.line - error.above.count(b"\n", at))


_SHOWN_OF_FIRST = 180


def describe_passed_on(incident: Incident, error: LastError) -> Incident | None:
    """Name the error that was passed on; `None` where the log has only the line that passes it on."""
    sentence = (error.message or error.text).partition(' File "')[0]
    if LAUNCHER_ERROR.search(error.text):
        return None
    shown = shorten_text(sentence, _SHOWN_OF_FIRST)
    frame = error.frames[-1] if error.frames else None
    at = f" It arises in {frame.short_file}, line {frame.line}." if frame is not None else ""
    return replace(
        incident,
        title=f"{incident.title.partition(':')[0]}: {shown}",
        because=f"The process that the others wait for ended by this error of its own.{at} {incident.because}",
        fix=(advise(f"What that error says, not the lines behind it: {shown}"), *incident.fix),
    )


_ASKED_KEY = lazy_pattern(r"^(?:KeyError|Exception): (?P<quote>['\"])(?P<key>[^'\"]{1,100})(?P=quote)(?=$|\s)")
_CONTAINERS = frozenset(
    ("datasets", "pandas", "pyarrow", "transformers", "omegaconf", "addict", "tensordict", "easydict")
)
_LOOKS_UP = frozenset(("__getitem__", "__missing__", "__getattr__", "get_loc", "_get_item_cache", "_getitem_axis"))
"""Functions that only look a key up."""


def drop_lookups(error: LastError) -> LastError:
    """Return the error with the code that asked for the key as its innermost frame."""
    frames = list(_put_asker_last(error))
    while len(frames) > 1 and _ASKED_KEY.match(error.message) and _is_lookup(frames[-1]):
        frames.pop()
    return replace(error, frames=tuple(frames))


def _put_asker_last(error: LastError) -> tuple[CodeFrame, ...]:
    """The frames; where the quoted line that asks for the key belongs to none, with the program's own as the last.

    People paste tracebacks in pieces: the line of code stands above the error, and its frame elsewhere.
    """
    key = _ASKED_KEY.match(error.message)
    quoted = error.above.rstrip().rpartition(b"\n")[2].decode("utf-8", "replace").strip()
    lookup = key is not None and re.search(rf"\[\s*['\"]{re.escape(key['key'])}['\"]\s*\]", quoted)
    own = [frame for frame in error.frames if not frame.installed and frame.path.endswith(".py")]
    if not lookup or not own or any(frame.code == quoted for frame in error.frames):
        return error.frames
    return (*(frame for frame in error.frames if frame is not own[-1]), replace(own[-1], code=quoted))


def _is_lookup(frame: CodeFrame) -> bool:
    package = next(iter(frame.installed or frame.parts), "")
    return package in _CONTAINERS and (frame.function in _LOOKS_UP or frame.path.endswith((".pyx", ".pxi")))
