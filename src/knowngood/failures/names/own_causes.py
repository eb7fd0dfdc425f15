"""The form of a cause that only the message, its traceback and the atlas give, and whose fault it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.failures.logs.logged_errors import LoggedError
from knowngood.failures.names.atlas_shelf import AtlasShelf
from knowngood.failures.names.name_callers import NameCaller
from knowngood.failures.names.name_situation import NameCause
from knowngood.failures.names.two_checkouts import find_two_checkouts


def list_defining_packages(name: str, shelf: AtlasShelf) -> list[str]:
    """Return the packages of the atlas that define a class of that name, transformers first, from which others copy."""
    packages = sorted(shelf.packages, key=lambda package: package != "transformers")
    lookups = ((package, shelf.open(package)) for package in packages)
    return [package for package, lookup in lookups if lookup and any(True for _ in lookup.definitions_of(name))]


def component_of(caller: NameCaller | None) -> str:
    """Return what is at fault for code of a caller that belongs to no package: the program, or the model."""
    return OwnComponent.MODEL if caller is not None and caller.is_remote_code else OwnComponent.YOUR_CODE


def describe_caller(caller: NameCaller | None, verb: str = "asks for it in") -> str:
    """Return a sentence that says which line asks for the name, with a space before it; empty without a caller."""
    if caller is None:
        return ""
    function = f" {caller.frame.function}" if caller.frame.function.isidentifier() else " its main part"
    return f" {caller.file} {verb}{function}, line {caller.frame.line}."


def build_own_cause(error: LoggedError, *, title: str, because: str, fixes: Sequence[Fix], component: str) -> NameCause:
    """Return a cause that counts only when nothing else explains the last error."""
    if (copies := find_two_checkouts(error.frames)) is not None:
        because, fixes = because + copies.words, [copies.fix, *fixes]
    incident = Incident(
        id=f"name:{error.fault.text}",
        title=title,
        kind=IncidentKind.API_UNKNOWN,
        severity=IncidentSeverity.FAILURE,
        component=component,
        because=because,
        fix=tuple(fixes),
        source=("the message, its traceback and the atlas",),
        confidence="reported",
    )
    return NameCause(error=error, incident=incident, package=component, is_fallback=True)
