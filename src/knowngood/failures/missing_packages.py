"""The causes of modules that are not installed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.atlas_shelf import AtlasShelf
from knowngood.failures.logged_errors import LoggedError
from knowngood.failures.module_packages import FOLDERS_OF_PROJECTS, FROM_REPOSITORIES
from knowngood.failures.name_callers import find_caller
from knowngood.failures.name_faults import FaultKind
from knowngood.failures.name_situation import NameCause, advise
from knowngood.failures.own_files import find_own_file

_COMPILED = frozenset(
    ("flash-attn", "xformers", "transformer-engine", "transformer-engine-torch", "bitsandbytes", "deepspeed")
)
"""Packages whose wheels must fit torch, CUDA and Python, or that compile against them."""


_IMPORTS = re.compile(r"\b(?:from|import) (?P<module>[A-Za-z_][\w.]*)")


def explain_missing_package(
    error: LoggedError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause | None:
    """A top-level module that is not installed, of a package that the atlas has, or that a package asks for."""
    fault = error.fault
    top = fault.owner.partition(".")[0]
    package = shelf.owner(top) or _find_distribution(error, shelf)
    if fault.kind is FaultKind.DISTRIBUTION:
        package = fault.owner.replace("_", "-").lower()
    caller = find_caller(error, shelf)
    asks = bool(caller and caller.package and not caller.is_remote_code)
    name = package or top
    fixes: list[Fix] = []
    is_module = fault.kind is FaultKind.MODULE
    if is_module and not package and (own := find_own_file(error, caller)) is not None:
        incident = describe_missing_module(top, own.title, own.because, own.fixes, own.component)
        return NameCause(error=error, incident=incident, package=own.component, is_likely=True)
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
    if not package and not asks and name not in FROM_REPOSITORIES:
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
    if is_module and _is_ray_worker(error):
        because += (
            " It is a process that ray started: its environment is that of the ray node and of the job's runtime_env, "
            "and not the one of the shell that submitted the job."
        )
        fixes += [
            advise(
                f"Install {name} on every node of the cluster, for the Python with which ray start ran (its image), "
                "and start ray again"
            ),
            advise(f'Or for this job: ray job submit --runtime-env-json=\'{{"pip": ["{name}"]}}\' ...'),
        ]
    if (place := FROM_REPOSITORIES.get(name)) is not None:
        because += f" The package index has no {name} that is meant here, or another project of that name."
        note = f"pip install --no-build-isolation git+https://github.com/{place} (not pip install {name})"
        fixes.append(advise(f"Install it from its repository: {note}; or take an image that has it"))
    elif package:
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
    title = (
        f"The project's own {top} is not found"
        if is_own
        else f"{name} is not installed{f', or a wrong name for {near}' if near else ''}"
    )
    component = OwnComponent.YOUR_CODE if is_own or near else name
    incident = describe_missing_module(top, title, because, fixes, component)
    is_unknown = not package and name not in FROM_REPOSITORIES and not is_own
    return NameCause(error=error, incident=incident, package=name, is_likely=is_unknown)


def describe_missing_module(top: str, title: str, because: str, fixes: Sequence[Fix], component: str) -> Incident:
    """Return a failure of which the message says that a top-level module is not there."""
    return Incident(
        id=f"name:{top}",
        title=title,
        kind=IncidentKind.NOT_INSTALLED,
        severity=IncidentSeverity.FAILURE,
        component=component,
        because=because,
        fix=tuple(fixes),
        source=("the message",),
        confidence="artefact",
    )


def _find_distribution(error: LoggedError, shelf: AtlasShelf) -> str | None:
    """The distribution of the module; in a folder that several share, that of the part which the line imports."""
    owner = error.fault.owner
    top = owner.partition(".")[0]
    if (found := shelf.distribution_of(owner) or shelf.distribution_of(top)) is not None or not error.frames:
        return found
    statement = _IMPORTS.search(error.frames[-1].code)
    parts = statement["module"].split(".") if statement else []
    names = (".".join(parts[:count]) for count in range(2, len(parts) + 1) if parts[0] == top)
    return next((package for name in names if (package := shelf.distribution_of(name))), None)


def _is_ray_worker(error: LoggedError) -> bool:
    """Whether the error comes from a process that ray started."""
    return any(frame.installed[:2] == ("ray", "_private") for frame in error.frames)
