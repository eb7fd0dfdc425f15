"""An attribute that a plain value of Python lacks: what made the value gave another one than meant. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from knowngood.failures.names.name_situation import (
    NameCaller,
    NameCause,
    advise,
    build_own_cause,
    component_of,
    describe_caller,
)
from knowngood.failures.names.none_values import explain_empty_value, find_empty_value

if TYPE_CHECKING:
    from knowngood.failures.logs.logged_errors import LoggedError
    from knowngood.failures.names.atlas_shelf import AtlasShelf

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
