"""The causes of names of packages that the atlas does not have: not installed, or another release. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.atlas_shelf import AtlasShelf
from knowngood.failures.logged_errors import LoggedError
from knowngood.failures.module_packages import FOLDERS_OF_PROJECTS, find_distribution
from knowngood.failures.name_callers import find_caller
from knowngood.failures.name_faults import FaultKind
from knowngood.failures.name_situation import NameCause
from knowngood.failures.newest_releases import upgrade_package

_COMPILED = frozenset(
    ("flash-attn", "xformers", "transformer-engine", "transformer-engine-torch", "bitsandbytes", "deepspeed")
)
"""Packages whose wheels must fit torch, CUDA and Python, or that compile against them."""


def explain_unread_package(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """A name that an installed package without an atlas lacks; `None` when it may be a module of the user's own."""
    fault = error.fault
    top = fault.owner.partition(".")[0]
    caller = find_caller(error, shelf)
    path = fault.path.replace("\\", "/")
    is_installed = "site-packages/" in path or "dist-packages/" in path
    asks = caller.package if caller and not caller.is_remote_code else ""
    is_known = is_installed or bool(find_distribution(top, shelf.distributions))
    is_project = fault.kind is FaultKind.MODULE and not fault.not_a_package and top not in FOLDERS_OF_PROJECTS
    if fault.circular or asks == top or not (is_known or is_project):
        return None
    package = shelf.owner(top) or find_distribution(top, shelf.distributions) or top
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


def explain_missing_package(
    error: LoggedError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause | None:
    """A top-level module that is not installed, of a package that the atlas has, or that a package asks for."""
    fault = error.fault
    top = fault.owner.partition(".")[0]
    package = shelf.owner(top) or find_distribution(top, shelf.distributions)
    if fault.kind is FaultKind.DISTRIBUTION:
        package = fault.owner.replace("_", "-").lower()
    caller = find_caller(error, shelf)
    asks = bool(caller and caller.package and not caller.is_remote_code)
    name = package or top
    fixes: list[Fix] = []
    if package and caller and not caller.frame.installed and caller.package == package:
        because = f"The code of {package} runs from a checkout, and its package is not installed in this Python."
        fixes.append(Fix(note="pip install -e . in the checkout, or PYTHONPATH to the folder that has it", change={}))
    else:
        whose = caller.file if caller and asks else "The program"
        verb = "asks for the version of" if fault.kind is FaultKind.DISTRIBUTION else "imports"
        because = f"{whose} {verb} {fault.owner}, which is not installed in the Python that runs."
        if package and package in versions:
            because += f" The log shows {package} {versions[package][-1]}: it was installed for another Python."
            fixes.append(Fix(note=f"python -m pip install {package}, with the very python that runs", change={}))
    if not package and not asks:
        because += f" Nor is there a file {top}.py or a folder {top} beside the program, or on PYTHONPATH."
        fixes.append(
            Fix(
                note=f"When {top} is a folder of the project: start from its root, or add that to PYTHONPATH", change={}
            )
        )
    near = "" if package or asks else find_nearest_name(top, [*shelf.packages, *shelf.distributions]) or ""
    if near:
        because += f" There is a package {near}, of nearly the same name."
        fixes.insert(0, Fix(change={}, note=f"When {near} is meant: write import {near.replace('-', '_')}"))
    if package:
        note = "install it, for the torch, CUDA and Python that are there" if package in _COMPILED else "install it"
        fixes.append(Fix(change={package: "*"}, note=f"{note}: pip install {package}"))
    else:
        fixes.append(
            Fix(
                change={},
                note=f"install the package that has the module {top} (mostly pip install {top.replace('_', '-')})",
            )
        )
    is_own = not asks and top in FOLDERS_OF_PROJECTS
    incident = Incident(
        id=f"name:{top}",
        title=f"The project's own {top} is not found"
        if is_own
        else f"{name} is not installed{f', or a wrong name for {near}' if near else ''}",
        kind=IncidentKind.NOT_INSTALLED,
        severity=IncidentSeverity.FAILURE,
        component=OwnComponent.YOUR_CODE if is_own or near else name,
        because=because,
        fix=tuple(fixes),
        source=("the message",),
        confidence="artefact",
    )
    is_unknown = not package and not asks and not is_own
    return NameCause(error=error, incident=incident, package=name, is_likely=is_unknown)
