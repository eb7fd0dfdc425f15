"""The cause of a top-level module that is not there: its package is not installed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity
from knowngood.failures.atlas_shelf import AtlasShelf
from knowngood.failures.logged_errors import LoggedError
from knowngood.failures.name_callers import find_caller
from knowngood.failures.name_situation import NameCause

_COMPILED = frozenset(
    ("flash-attn", "xformers", "transformer-engine", "transformer-engine-torch", "bitsandbytes", "deepspeed")
)
"""Packages whose wheels must fit torch, CUDA and Python, or that compile against them."""


def explain_missing_package(
    error: LoggedError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause | None:
    """A top-level module that is not installed, of a package that the atlas has, or that a package asks for."""
    fault = error.fault
    top = fault.owner.partition(".")[0]
    package = shelf.owner(top)
    caller = find_caller(error, shelf)
    if package is None and not (caller and caller.package and not caller.is_remote_code):
        return None
    if package is None and "." in fault.owner:
        return None
    name = package or top
    fixes: list[Fix] = []
    if package and caller and not caller.frame.installed and caller.package == package:
        because = f"The code of {package} runs from a checkout, and its package is not installed in this Python."
        fixes.append(Fix(note="pip install -e . in the checkout, or PYTHONPATH to the folder that has it", change={}))
    else:
        whose = caller.file if caller and caller.package else "The program"
        because = f"{whose} imports {top}, which is not installed in the Python that runs."
        if package and package in versions:
            because += f" The log shows {package} {versions[package][-1]}: it was installed for another Python."
            fixes.append(Fix(note=f"python -m pip install {package}, with the very python that runs", change={}))
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
    incident = Incident(
        id=f"name:{top}",
        title=f"{name} is not installed",
        kind=IncidentKind.NOT_INSTALLED,
        severity=IncidentSeverity.FAILURE,
        component=name,
        because=because,
        fix=tuple(fixes),
        source=("the message",),
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=name)
