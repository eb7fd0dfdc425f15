"""Which expression is None or a plain value of Python, what left it so, and the attribute that it lacks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.message_causes import shorten_text
from knowngood_diagnose.failures.names.name_situation import (
    REMOTE_CODE,
    NameCaller,
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
)
from knowngood_facts.compat.incident import Fix, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, LoggedError
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

_EXPRESSION = r"[A-Za-z_][\w.]*(?:\[[^\]\n]{1,40}\])*"
_LACKS = lazy_pattern(r"^'(?P<kind>NoneType|dict|list|str)' object has no attribute '(?P<name>\w+)'")
_USES: tuple[tuple[re.Pattern[str], str], ...] = (
    (lazy_pattern(r"^'NoneType' object is not subscriptable"), rf"(?P<what>{_EXPRESSION})\["),
    (
        lazy_pattern(r"^(?:'NoneType' object is not iterable|argument of type 'NoneType' is not iterable)"),
        (
            rf"\bin (?P<what>{_EXPRESSION})|(?:list|tuple|set|enumerate|sorted|zip)\((?P<inside>{_EXPRESSION})\)"
            rf"|^[\w, ]+,[\w, ]+= ?(?P<unpacked>{_EXPRESSION})$"
        ),
    ),
    (lazy_pattern(r"^object of type 'NoneType' has no len"), rf"\blen\((?P<what>{_EXPRESSION})\)"),
    (
        lazy_pattern(r"^(?:int|float)\(\) argument must be a .{1,80} not 'NoneType'"),
        rf"\b(?:int|float)\((?P<what>{_EXPRESSION})\)",
    ),
)
"""How Python refuses None -> how the line of code names it."""
_CONFIGURATIONS = frozenset(
    ("args", "cfg", "conf", "config", "configs", "configuration", "hparams", "opt", "options", "opts", "params", "yaml")
)
_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class EmptyValue:
    """An expression of a line of code whose value is None or a plain value."""

    what: str
    """The expression as the line of code has it, such as `self.tokenizer`."""
    kind: str = "NoneType"
    """The class of its value, as the message of Python names it: `NoneType`, `str`."""

    @property
    def parts(self) -> list[str]:
        """Its names, without `self` and what is in brackets."""
        return [part for part in re.sub(r"\[.*?\]", "", self.what).split(".") if part and part != "self"]

    @property
    def is_configuration(self) -> bool:
        """Whether the whole expression is a configuration, by its name."""
        return len(self.parts) == 1 and _is_configuration(self.parts[0])

    @property
    def section(self) -> str:
        """The part of a configuration that it is; empty for something else."""
        at = next((at for at, part in enumerate(self.parts[:-1]) if _is_configuration(part)), None)
        return ".".join(self.parts[at + 1 :]) if at is not None else ""


def find_empty_value(text: str, code: str) -> EmptyValue | None:
    """Return the expression of a line of code that Python refuses for its value; `None` where it is not certain.

    Args:
        text: the message of the error, without its class.
        code: the line of code below the frame.
    """
    if (lacks := _LACKS.match(text)) is not None:
        named = re.findall(rf"({_EXPRESSION})\.{lacks['name']}\b", code)
        whole = [what for what in dict.fromkeys(named) if what]
        return EmptyValue(what=whole[0], kind=lacks["kind"]) if len(whole) == 1 else None
    for words, use in _USES:
        if words.match(text):
            places = [next(filter(None, match.groups()), "") for match in re.finditer(use, code)]
            whole = list(dict.fromkeys(filter(None, places)))
            return EmptyValue(what=whole[0]) if len(whole) == 1 else None
    return None


@dataclass(frozen=True, kw_only=True)
class EmptyReason:
    """Why an expression is None, as far as its name tells."""

    title: str
    because: str
    fixes: tuple[Fix, ...]
    component: str


def explain_empty_value(text: str, frame: CodeFrame, package: str) -> EmptyReason | None:
    """Return what left a value None, or a plain dict; `None` where its name does not tell.

    Args:
        text: the message of the error, without its class.
        frame: the code in which it arises.
        package: the package whose code that is; empty for the program's own.
    """
    value = find_empty_value(text, frame.code)
    if value is None:
        return None
    file = "/".join(frame.installed or frame.parts[-2:]) + ".py"
    place = f"In line {frame.line} of {file} ({shorten_text(frame.code, _SHOWN)}) {value.what} is "
    of_model = package == "transformers" or REMOTE_CODE in frame.parts
    if value.kind != "NoneType":
        return _explain_plain_part(value, place, package) if value.section else None
    if value.is_configuration:
        return EmptyReason(
            title=f"The configuration was not loaded: {value.what} is None",
            because=f"{place}None: what reads it found no file at the path that it was given, or returned nothing.",
            fixes=(
                advise(
                    "Check the path that the program is started with (--config and the like), from the folder in which "
                    "it runs: ls the file; print what the function returns that loads it"
                ),
                advise("The file of configuration that the project's README names for this very script"),
            ),
            component=OwnComponent.YOUR_CODE,
        )
    if not value.section:
        return _explain_attribute(value, place) if value.what.startswith("self.") and not package else None
    whose = "The model's configuration (config.json)" if of_model else "The configuration"
    return EmptyReason(
        title=f"{whose} has no {value.section}: it is None where the code asks for it",
        because=(
            f"{place}None: the section or option {value.section} is not in the configuration that was given, which is "
            "one for another model, task or release"
            + (f" of {package}." if package and not of_model else " than the code was written for.")
        ),
        fixes=(
            advise(
                f"Set {value.section}: in the command line, the code or the file of configuration; compare it with the "
                f"example that {package or 'the project'} has for this very class or task"
            ),
            advise(
                "A checkpoint whose config.json has it, or the transformers that the checkpoint names"
                if of_model
                else "A print of the configuration just before that line shows what was read"
            ),
        ),
        component=OwnComponent.MODEL if of_model else OwnComponent.YOUR_CODE,
    )


def _explain_attribute(value: EmptyValue, place: str) -> EmptyReason:
    name = value.parts[-1]
    return EmptyReason(
        title=f"{name} was never made: self.{name} is None",
        because=(
            f"{place}None: the object keeps a place for {name}, and fills it only with some section or option of the "
            "configuration, or after another step has run."
        ),
        fixes=(
            advise(f"Look where self.{name} is set, and which option or section of the configuration does it ({name})"),
            advise("The file of configuration that the project's README names for this very script"),
        ),
        component=OwnComponent.YOUR_CODE,
    )


def _explain_plain_part(value: EmptyValue, place: str, package: str) -> EmptyReason:
    kind = {"dict": "a plain dict", "list": "a list", "str": "a text"}[value.kind]
    return EmptyReason(
        title=f"{value.section} of the configuration is {kind}, where {package or 'the code'} takes an object",
        because=(
            f"{place}{kind}: the class of this configuration, which the project or the model brought along, does not "
            f"make an object of that part, as {'this ' + package if package else 'the code'} expects it to."
        ),
        fixes=(
            advise(
                f"The {package or 'release of the package'} that the project's own requirements (or config.json: "
                "transformers_version) name, which is mostly an older one: pip install transformers==..."
            ),
            advise("A newer release or commit of the project, or the model's class in transformers itself"),
        ),
        component=OwnComponent.MODEL,
    )


def _is_configuration(name: str) -> bool:
    plain = name.lower().lstrip("_")
    return plain in _CONFIGURATIONS or plain.endswith(("_cfg", "_config", "_args", "_conf"))


_HAVE_FIELDS = ("peft", "transformers", "accelerate", "datasets", "trl")
"""Packages whose objects scripts take apart, in the order in which they wrap each other."""


def explain_value(error: LoggedError, caller: NameCaller, shelf: AtlasShelf) -> NameCause:
    """An attribute of a plain Python value, such as None: what made the value gave another one than meant."""
    fault = error.fault
    refused = f"'{fault.owner}' object has no attribute '{fault.name}'"
    if (reason := explain_empty_value(refused, caller.frame, "")) is not None:
        return build_own_cause(
            error, title=reason.title, because=reason.because, fixes=reason.fixes, component=reason.component
        )
    if (field := _find_field_of_package(error, caller, shelf)) is not None:
        return field
    what = "None" if fault.owner == "NoneType" else f"a {fault.owner}"
    value = find_empty_value(refused, caller.frame.code)
    subject = f"`{value.what}`" if value is not None else "A value"
    return build_own_cause(
        error,
        title=f"{subject} is {what} where your code asks for `{fault.name}` of it",
        because=f"What gave {subject if value else 'the value'} returned {what}, which has no "
        f"{fault.name}.{describe_caller(caller)}",
        fixes=[
            advise(f"Look where that value is set: a file, an option or a function there gives {what}; test for it"),
        ],
        component=component_of(caller),
    )


def _find_field_of_package(error: LoggedError, caller: NameCaller, shelf: AtlasShelf) -> NameCause | None:
    """An attribute of a package's class that holds another kind of value than the script expects."""
    fault = error.fault
    expression = re.search(rf"\.(?P<field>[a-z]\w*_\w+)\.{re.escape(fault.name)}\b", caller.frame.code)
    if expression is None or fault.owner not in {"dict", "list", "tuple", "str"}:
        return None
    field = expression["field"]
    for package in _HAVE_FIELDS:
        lookup = shelf.open(package)
        rows = lookup.file.search_rows(field) if lookup else ()
        classes = [path.removesuffix(f".{field}") for _, (path, _, _, _) in rows if path.endswith(f".{field}")]
        owner = min((name for name in classes if name[:1].isupper()), key=len, default="")
        if owner:
            return _describe_field(error, caller, package, owner, field)
    return None


def _describe_field(error: LoggedError, caller: NameCaller, package: str, owner: str, field: str) -> NameCause:
    kind, name = error.fault.owner, error.fault.name
    because = (
        f"{field} is an attribute of {package}'s {owner}. In the {package} that runs it is a {kind}, and the script "
        f"asks it for {name}, as of an object: it was written for another release (or commit) of {package}."
        f"{describe_caller(caller)}"
    )
    fixes = [
        advise(f"The {package} that the project's requirements or instructions name (a release or a commit)"),
        advise(f"A newer commit of the project, written for this {package}"),
    ]
    if kind == "dict":
        entry = f"{field}['default'], or next(iter({field}.values())), is the object: write it in that line"
        fixes.insert(1, advise(entry))
    title = f"{field} of {package}'s {owner} is a {kind} in this release: the script is for another {package}"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=package)
