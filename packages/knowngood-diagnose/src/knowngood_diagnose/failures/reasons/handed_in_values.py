"""What a program hands to a package that uses it, and a variable that is used before it is set. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, upgrade_package
from knowngood_diagnose.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

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


def explain_handed_in(  # noqa: PLR0911 - one for each kind of value
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
    called = _CALLED_WRONGLY.match(text)
    lacking = _ASKS_COLUMN.match(text) if frame.installed[:2] == ("trl", "trainer") else None
    if lacking and (_IS_REWARD.search(frame.code) or not _is_of_package(lacking["called"], "trl", shelf)):
        return _explain_reward(error, lacking["called"], lacking["names"], frame)
    if called and _is_called_back(called["called"], frame, packages, shelf):
        return _explain_callback(error, called["called"], inner, frame, text)
    if frame.function == "__getattr__" and (lacked := _LACKS.match(text)):
        return _explain_wrapped(error, lacked["owner"], lacked["name"], inner)
    unpacked = _UNPACKED.match(text)
    if unpacked and _UNPACKS_SHAPE.match(frame.code):
        return _explain_dimensions(error, inner, frame, unpacked)
    own = next((at for at in range(len(frames) - 1, -1, -1) if not packages[at]), None)
    if own is not None and set(packages[own + 1 :]) == {inner} and _USED_WRONGLY.search(text):
        return _explain_function(error, inner, frames[own], text)
    plain = _IS_PLAIN.match(text)
    if own is not None and plain and set(packages[own + 1 :]) == {inner} and frame.function in _MAKES_OBJECT:
        return _explain_plain(error, inner, frames[own], frame, plain)
    attribute = _ASKS_TEXT.match(text)
    if own is not None and attribute and attribute["name"] in _OF_TEXT and attribute["owner"] not in _PLAIN_KINDS:
        return _explain_object_for_text(error, inner, frames[own], attribute)
    return None


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


def _explain_callback(error: LastError, called: str, inner: str, frame: CodeFrame, text: str) -> MessageCause:
    title = (
        f"{called}, which {inner} was given, takes other arguments than {inner} passes: {shorten_text(text, _SHOWN)}"
    )
    because = (
        f"{inner} calls it in {'/'.join(frame.installed or frame.parts[-2:])}.py, line {frame.line} "
        f"({shorten_text(frame.code, _SHOWN)}), under another name: the program handed it in."
    )
    fixes = [
        advise(
            f"Write {called} with the arguments that this {inner} passes to it, and **kwargs for the rest; an argument "
            "that comes from a column of the data needs that column (for rewards: remove_unused_columns=False)"
        ),
        advise(f"The release of {inner} for which the program was written"),
    ]
    return _cause(error, title, because, fixes)


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
    return _explain_reward(error, lacking["called"], lacking["names"], frame) if _IS_REWARD.search(frame.code) else None


def _is_of_package(called: str, package: str, shelf: AtlasShelf) -> bool:
    """Whether a package of the atlas has a function or a class of that name."""
    lookup = shelf.open(package)
    parts = [part for part in called.split(".") if part not in _NAMES_NOTHING and not part.startswith("<")]
    return lookup is None or not parts or any(True for part in parts[-1:] for _ in lookup.definitions_of(part))


def _explain_reward(error: LastError, called: str, names: str, frame: CodeFrame) -> MessageCause:
    """A reward function of the program's own that asks for a column which the data set does not have."""
    names = names.replace("'", "")
    title = f"The reward function {called} asks for {names}, which is no column of the data set"
    because = (
        f"trl calls it ({frame.parts[-1]}.py, line {frame.line}) with prompts, completions and the columns of the data "
        f"set, each under its own name. No column is called {names}: the function was written for "
        "another data set, the "
        "column has a similar name (the singular), or it was removed before."
    )
    fixes = [
        advise(
            f"print(dataset.column_names): rename the column to {names} (dataset.rename_column), or the argument of "
            f"{called} to the column's name"
        ),
        advise(f"def {called}(completions, **kwargs) and kwargs.get(...), when not every data set has the column"),
        advise("remove_unused_columns=False in the arguments, when the data has the column; or leave this reward out"),
    ]
    return _cause(error, title, because, fixes)


def _explain_function(error: LastError, inner: str, own: CodeFrame, text: str) -> MessageCause:
    title = f"{inner} was given a function where it takes an object: {shorten_text(text, _SHOWN)}"
    because = f"Line {own.line} of {own.parts[-1]}.py calls {inner}, which asks what it was given for an attribute."
    fixes = [
        advise(
            f"Give {inner} the object itself (a model, a configuration): call the function, or use its own argument"
        ),
        advise(f"The arguments as the documentation of this very release of {inner} has them"),
    ]
    return _cause(error, title, because, fixes)


def _explain_object_for_text(error: LastError, inner: str, own: CodeFrame, attribute: re.Match[str]) -> MessageCause:
    """An object that the program gave to a package where that takes a name or a path."""
    owner = attribute["owner"]
    title = f"{inner} was given an object ({owner}) where it takes a text: a name or a path"
    because = (
        f"Only a text has {attribute['name']}(), which {inner} asks of what it was given. Line {own.line} of "
        f"{own.parts[-1]}.py ({shorten_text(own.code, _SHOWN)}) passes an object of the class {owner} in its place."
    )
    fixes = [
        advise(f"Pass the name or the path (a text) from which the {owner} was loaded, in that call"),
        advise("str(path), when the object is a path"),
        advise(f"The documentation of this very {inner} says what each argument takes"),
    ]
    return _cause(error, title, because, fixes)


def _explain_plain(
    error: LastError, inner: str, own: CodeFrame, frame: CodeFrame, plain: re.Match[str]
) -> MessageCause:
    """A plain value that the program gave to the class of a package, which takes an object in its place."""
    kind, name = plain["kind"], plain["name"]
    looked_at = re.search(rf"(?P<what>[\w.]+)\.{re.escape(name)}\b", frame.code)
    what = looked_at["what"].removeprefix("self.") if looked_at else "an argument"
    title = f"{inner} was given a {kind} for {what}, where it takes an object with `{name}`"
    because = (
        f"{'/'.join(frame.installed or frame.parts[-2:])}.py, line {frame.line} "
        f"({shorten_text(frame.code, _SHOWN)}), looks at what its class was made with. What made it is line {own.line} "
        f"of {own.parts[-1]}.py, with a {kind}: a name or a setting from a file in the place of the object itself."
    )
    fixes = [
        advise(f"Load the object first (from_pretrained and the like), and give {inner} that for {what}"),
        advise(f"The release of {inner} for which the program was written, when it took a {kind} there"),
    ]
    return _cause(error, title, because, fixes)


def _explain_wrapped(error: LastError, owner: str, name: str, inner: str) -> MessageCause:
    title = f"Neither {owner} of {inner} nor the model that it wraps is seen to have `{name}`"
    because = (
        f"{owner} passes on to the model inside what it does not have itself, so {name} is of another object: of what "
        f"the project's code had before {inner} wrapped it, or of a class that the model inside was expected to be."
    )
    fixes = [
        advise(
            f"Call {name} on the object that has it: print(type(model.get_base_model())) shows the model inside "
            "(model.module in DeepSpeed and DDP); keep the project's own object beside the wrapped one"
        ),
        advise(f"Wrap only the part that is to be trained, such as the language model, and not what has {name}"),
        advise(f"The {inner} that the project's requirements name, and a newer commit of the project"),
    ]
    return _cause(error, title, because, fixes)


def _explain_dimensions(error: LastError, inner: str, frame: CodeFrame, unpacked: re.Match[str]) -> MessageCause:
    got = unpacked["got"] or "more"
    title = (
        f"{inner}'s {frame.function} takes a tensor of {unpacked['expected']} dimensions, and was given one of {got}"
    )
    because = (
        f"Line {frame.line} of {'/'.join(frame.installed or frame.parts[-2:])}.py ({shorten_text(frame.code, _SHOWN)}) "
        "takes the shape of its input apart. What the program passes is of another kind: token ids without the "
        "dimension of the batch, or labels with one number for each row (those of a classification) for a model whose "
        "decoder takes a sequence of tokens."
    )
    fixes = [
        advise("Print the shape of each field of the batch: input_ids and labels must be (batch, length) here"),
        advise(
            "Labels as tokenized text for a model with a decoder, or a class for the task (ForSequenceClassification)"
        ),
        advise("return_tensors='pt' or unsqueeze(0), when one row was passed without a batch"),
    ]
    return _cause(error, title, because, fixes)


def _cause(error: LastError, title: str, because: str, fixes: Sequence[Fix]) -> MessageCause:
    incident = describe_traceback(
        "handed-in", IncidentKind.CONFIG, OwnComponent.YOUR_CODE, title=title, because=because, fixes=fixes
    )
    return MessageCause(incident=incident, line=error.line, package="")


_UNSET = lazy_pattern(
    r"(?:cannot access )?(?:local|free) variable '(?P<name>\w+)' "
    r"(?:referenced before assignment|where it is not associated with a value)"
)
_LOOPED = frozenset(
    (
        "batch",
        "batch_idx",
        "data",
        "epoch",
        "i",
        "images",
        "input",
        "inputs",
        "labels",
        "logits",
        "loss",
        "output",
        "outputs",
        "step",
        "target",
        "targets",
    )
)
"""Names that the body of a loop over the data mostly sets."""


@dataclass(frozen=True, kw_only=True)
class UnsetLocal:
    """What is known of a variable that was never set."""

    title: str
    because: str
    fixes: tuple[Fix, ...]


def find_unset_local(text: str, frame: CodeFrame, package: str) -> UnsetLocal | None:
    """Return which variable was not set, and what sets it; `None` for other errors.

    Args:
        text: the message of the error, without its class.
        frame: the code in which it arises.
        package: the package whose code that is; empty for the program's own.
    """
    stated = _UNSET.match(text)
    if stated is None:
        return None
    name, file = stated["name"], "/".join(frame.installed or frame.parts[-2:])
    function = frame.function if frame.function.isidentifier() else "the script"
    because = (
        f"Line {frame.line} of {file}.py uses {name}, which {function} sets in one branch only (an if, a try, a loop): "
        "an option, a kind of model or a file for which that branch is meant was not the case, and no other sets it."
    )
    fixes = [
        advise(
            f"Look in {file}.py above line {frame.line} for where {name} is set, and under which condition: choose the "
            "option that meets it, or set it before (None or a default)"
        )
    ]
    if name in _LOOPED:
        because += f" When it is the body of a loop over the data that sets {name}, the loop had not one turn."
        fixes.append(advise("Print the length of the loader: too few rows for one batch (drop_last), or an empty file"))
    newer = f"a newer {package}, where that branch may be mended" if package else ""
    fixes.append(upgrade_package(package, newer) if package else advise("A newer commit of the project (git pull)"))
    title = f"`{name}` is used and was never set: the branch of {function} that sets it was not taken"
    if name in _LOOPED:
        title = f"`{name}` is used and was never set: the loop or branch of {function} that sets it did not run"
    return UnsetLocal(title=title, because=because, fixes=tuple(fixes))
