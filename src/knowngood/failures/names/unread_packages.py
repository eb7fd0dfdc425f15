"""The causes of names that an installed package without an atlas lacks: another release of it runs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood.facts.atlas_rows import RowKind
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError, NameFault
from knowngood.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS, upgrade_package
from knowngood.failures.names.name_situation import NameCaller, NameCause, find_caller, ranges_of_mask

if TYPE_CHECKING:
    from knowngood.failures.names.atlas_shelf import AtlasShelf


def explain_unread_package(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A name that an installed package without an atlas lacks; `None` when it may be a module of the user's own."""
    fault = error.fault
    top = fault.owner.partition(".")[0]
    caller = find_caller(error, shelf)
    path = fault.path.replace("\\", "/")
    is_installed = "site-packages/" in path or "dist-packages/" in path
    asks = caller.package if caller and not caller.is_remote_code else ""
    is_known = is_installed or bool(shelf.distribution_of(top))
    is_project = fault.kind is FaultKind.MODULE and not fault.not_a_package and top not in FOLDERS_OF_PROJECTS
    if fault.circular or asks == top or not (is_known or is_project):
        return None
    package = shelf.owner(top) or shelf.distribution_of(top) or top
    what = f"the module {fault.owner}" if fault.kind is FaultKind.MODULE else f"`{fault.name}` in {fault.owner}"
    whose = f"{caller.file} of {asks}" if caller and asks else "the code that asks for it"
    if (submodule := _explain_unimported_submodule(error, top, caller.file if caller else "", asks)) is not None:
        return submodule
    because = f"The {package} that is installed is older or newer than the one for which {whose} was written."
    fixes = [
        Fix(change={}, note=f"The release of {package} that its caller asks for; pip check names what does not fit"),
        upgrade_package(package, f"when the {package} that runs is the older one, a newer release"),
    ]
    if not is_known:
        fixes = [
            Fix(
                change={},
                note=f"The commit of {package} that its caller was written for, or a newer caller; the module may have "
                f"moved: python -c 'import {top}; print({top}.__path__)' shows which {top} is imported",
            )
        ]
    if asks and asks != package:
        fixes.append(Fix(change={}, note=f"A newer {asks}, written for the {package} that is there"))
    if caller is not None and (request := _find_request(fault, caller)) is not None:
        because += f" {request.words}"
        fixes = [*request.fixes, *fixes[:1]]
    incident = Incident(
        id=f"name:{fault.text}",
        title=f"The {package} that is installed has not {what}",
        kind=IncidentKind.API_UNKNOWN,
        severity=IncidentSeverity.FAILURE,
        component=package,
        because=because,
        fix=tuple(fixes),
        source=("the message",),
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=package, is_likely=not is_known)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Which releases of a package of the atlas import a name of another package."""

    words: str
    fixes: tuple[Fix, ...]


def _find_request(fault: NameFault, caller: NameCaller) -> _Request | None:
    """Return which releases of the caller import the name, and whether only where the other package is installed."""
    if caller.lookup is None or fault.kind is FaultKind.MODULE_ATTRIBUTE:
        return None
    asks, lookup = caller.package, caller.lookup
    target = f"{fault.owner}:{fault.name}" if fault.kind is FaultKind.IMPORT else fault.owner
    rows = [
        row for _, row in lookup.file.search_rows(target) if row[1] == RowKind.IMPORT and _is_target(row[2], target)
    ]
    using = 0
    for row in rows:
        using |= row[3]
    free = ranges_of_mask(lookup.every & ~using, lookup.file.releases)
    if not using:
        return None
    spans = describe_spans(spans_of_mask(using, lookup.file.releases))
    words = f"{asks} imports it {spans}."
    fixes = [Fix(change={asks: free[-1]}, note=f"these releases of {asks} do not ask for it")] if free else []
    if all(row[2].endswith("?") for row in rows):
        top = fault.owner.partition(".")[0]
        words += f" It does so only where {top} is installed."
        fixes.append(Fix(change={}, note=f"pip uninstall {top}, when nothing else needs it: {asks} goes on without it"))
    return _Request(words=words, fixes=tuple(fixes))


def _is_target(detail: str, target: str) -> bool:
    plain = detail.removesuffix("?")
    return plain == target or plain.startswith((f"{target}:", f"{target}."))


def _explain_unimported_submodule(error: LoggedError, top: str, file: str, asks: str) -> NameCause | None:
    """A name that code uses as a module of its package, which `import` of the package alone does not load."""
    fault = error.fault
    code = error.frames[-1].code if error.frames else ""
    whole = f"{fault.owner}.{fault.name}"
    if fault.kind is not FaultKind.MODULE_ATTRIBUTE or not re.search(rf"\b{re.escape(whole)}\.\w", code):
        return None
    fixes = [
        Fix(
            change={},
            note=f"Write `import {whole}` where {file or 'the code'} has `import {fault.owner}`, or before it",
        ),
        Fix(change={}, note=f"python -c 'import {whole}' must work: when it does not, pip install -U {top}"),
    ]
    if asks:
        fixes.insert(0, upgrade_package(asks, f"a newer {asks}, which imports {whole} itself"))
    incident = Incident(
        id=f"name:{whole}",
        title=f"`import {fault.owner}` alone does not load its module {fault.name}",
        kind=IncidentKind.CONFIG,
        severity=IncidentSeverity.FAILURE,
        component=asks or OwnComponent.YOUR_CODE,
        because=(
            f"The line uses {whole} as a module. It is there only after somebody has imported it: {file or 'the code'} "
            "counted on another package that did."
        ),
        fix=tuple(fixes),
        source=("the traceback",),
        confidence="reported",
    )
    return NameCause(error=error, incident=incident, package=asks, is_likely=True)
