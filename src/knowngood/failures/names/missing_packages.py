"""The causes of modules that are not installed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.atlas_shelf import FROM_REPOSITORIES
from knowngood.failures.names.name_situation import NameCause, advise, find_caller
from knowngood.failures.names.own_files import OwnFile, find_own_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.failures.names.atlas_shelf import AtlasShelf

_COMPILED = frozenset(
    ("flash-attn", "xformers", "transformer-engine", "transformer-engine-torch", "bitsandbytes", "deepspeed")
)
"""Packages whose wheels must fit torch, CUDA and Python, or that compile against them."""


_IMPORTS = lazy_pattern(r"\b(?:from|import) (?P<module>[A-Za-z_][\w.]*)")


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
        return _explain_own_file(error, top, own)
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
        fixes += _advise_workers(name)
    if name in FROM_REPOSITORIES:
        because += f" The package index has no {name} that is meant here, or another project of that name."
    fixes.append(_advise_install(name, top, is_known=bool(package)))
    title = f"{name} is not installed{f', or a wrong name for {near}' if near else ''}"
    component = OwnComponent.YOUR_CODE if near else name
    incident = describe_missing_module(top, title, because, fixes, component)
    is_unknown = not package and name not in FROM_REPOSITORIES
    return NameCause(error=error, incident=incident, package=name, is_likely=is_unknown)


def _explain_own_file(error: LoggedError, top: str, own: OwnFile) -> NameCause:
    because, fixes = own.because, list(own.fixes)
    if _is_ray_worker(error):
        because += " It is a worker of ray, which runs in a folder of its own, perhaps on another machine."
        note = 'The project\'s files go to the workers with ray.init(runtime_env={"working_dir": "."})'
        fixes.insert(0, advise(f"{note}, or PYTHONPATH in its env_vars"))
    incident = describe_missing_module(top, own.title, because, fixes, own.component)
    return NameCause(error=error, incident=incident, package=own.component, is_likely=own.is_likely)


def _advise_workers(name: str) -> list[Fix]:
    return [
        advise(
            f"Install {name} on every node of the cluster, for the Python with which ray start ran (its image), and "
            "start ray again"
        ),
        advise(f'Or for this job: ray job submit --runtime-env-json=\'{{"pip": ["{name}"]}}\' ...'),
    ]


def _advise_install(name: str, top: str, *, is_known: bool) -> Fix:
    """How to install what is missing: from the index, from its repository, or by the name of the module."""
    if (place := FROM_REPOSITORIES.get(name)) is not None:
        note = f"pip install --no-build-isolation git+https://github.com/{place} (not pip install {name})"
        return advise(f"Install it from its repository: {note}; or take an image that has it")
    if not is_known:
        return advise(f"install the package that has the module {top} (mostly pip install {top.replace('_', '-')})")
    note = "install it, for the torch, CUDA and Python that are there" if name in _COMPILED else "install it"
    return Fix(change={name: "*"}, note=f"{note}: pip install {name}")


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
    if (package := shelf.distribution_of(owner) or shelf.distribution_of(top)) is not None or not error.frames:
        return package
    statement = _IMPORTS.search(error.frames[-1].code)
    parts = statement["module"].split(".") if statement else []
    names = (".".join(parts[:count]) for count in range(2, len(parts) + 1) if parts[0] == top)
    return next(filter(None, map(shelf.distribution_of, names)), None)


def _is_ray_worker(error: LoggedError) -> bool:
    """Whether the error comes from a process that ray started."""
    return any(frame.installed[:2] == ("ray", "_private") for frame in error.frames)
