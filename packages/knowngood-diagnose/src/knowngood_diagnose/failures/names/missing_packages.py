"""The causes of modules that are not installed, are a file of the project, or are of a package without an atlas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood_diagnose.failures.logs.logged_errors import FaultKind, LoggedError, NameFault
from knowngood_diagnose.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS, FROM_REPOSITORIES, upgrade_package
from knowngood_diagnose.failures.names.name_situation import (
    NameCaller,
    NameCause,
    advise,
    describe_failure,
    find_caller,
    ranges_of_mask,
)
from knowngood_diagnose.failures.names.own_names import advise_build, is_compiled_part
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

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
        fixes += [
            advise(f"When {top} is a folder of the project: PYTHONPATH=$PWD:$PYTHONPATH, from the project's root"),
            advise(
                f"When the project compiles {top}: pip install --no-build-isolation ./FOLDER, whose setup.py has it"
            ),
        ]
    install = _advise_install(name, top, is_known=bool(package))
    near = "" if package or asks else find_nearest_name(top, [*shelf.packages, *shelf.distributions]) or ""
    if near:
        because += f" There is a package {near}, of nearly the same name."
        fixes.insert(0, Fix(change={}, note=f"When {near} is meant: write import {near.replace('-', '_')}"))
    if name in FROM_REPOSITORIES:
        because += f" The package index has no {name} that is meant here, or another project of that name."
    is_own = top in FOLDERS_OF_PROJECTS or any(top in frame.parts[:-1] for frame in error.frames if not frame.installed)
    fixes.insert(len(fixes) if is_own or package or near else 0, install)
    title = f"{name} is not installed{f', or a wrong name for {near}' if near else ''}"
    if is_own and not package and not near:
        title = f"The project's own {top} is not found: its folder is not on Python's path"
    component = OwnComponent.YOUR_CODE if near or (is_own and not package) else name
    incident = describe_missing_module(top, title, because, fixes, component)
    is_unknown = not package and name not in FROM_REPOSITORIES
    return NameCause(error=error, incident=incident, package=name, is_likely=is_unknown)


def _advise_install(name: str, top: str, *, is_known: bool) -> Fix:
    """How to install what is missing: from the index, from its repository, or by the name of the module."""
    if (place := FROM_REPOSITORIES.get(name)) is not None:
        note = f"pip install --no-build-isolation git+https://github.com/{place} (not pip install {name})"
        return advise(f"Install it from its repository: {note}; or take an image that has it")
    if not is_known:
        name = top.replace("_", "-")
        return advise(f"pip install {name}, after pip index versions {name} shows that it is what the project means")
    note = "install it, for the torch, CUDA and Python that are there" if name in _COMPILED else "install it"
    return Fix(change={name: "*"}, note=f"{note}: pip install {name}")


def describe_missing_module(top: str, title: str, because: str, fixes: Sequence[Fix], component: str) -> Incident:
    """Return a failure of which the message says that a top-level module is not there."""
    return describe_failure(
        f"name:{top}",
        IncidentKind.NOT_INSTALLED,
        component,
        title=title,
        because=because,
        fixes=fixes,
        source="the message",
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
    if is_compiled_part(error):
        because = f"{what} is compiled when {package} is built, and this {package} is without it."
        fixes.insert(0, advise_build(error, package))
    if asks and asks != package:
        fixes.append(Fix(change={}, note=f"A newer {asks}, written for the {package} that is there"))
    if caller is not None and (request := _find_request(fault, caller)) is not None:
        because += f" {request.words}"
        fixes = [*request.fixes, *fixes[:1]]
    incident = describe_failure(
        f"name:{fault.text}",
        IncidentKind.API_UNKNOWN,
        package,
        title=f"The {package} that is installed has not {what}",
        because=because,
        fixes=fixes,
        source="the message",
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


def mask_of_refused(pythons: Sequence[str], releases: Sequence[str], bounds: Mapping[str, str]) -> int:
    """Return the releases that the Pythons of a log cannot have installed, as bits; 0 where the log states none.

    Args:
        pythons: the Pythons in the log.
        releases: the releases of a package, oldest first.
        bounds: release -> the Pythons that it takes.
    """
    refused: dict[str, bool] = {}
    mask = 0
    for place, release in enumerate(releases):
        text = bounds.get(release, "")
        if text not in refused:
            refused[text] = bool(pythons) and not any(_takes(text, python) for python in pythons)
        mask |= refused[text] << place
    return mask


_LOWER = frozenset((">=", ">", "~=", "=="))
"""What bounds a Python from below: what a release says of newer Pythons is often passed over."""


def _takes(bound: str, python: str) -> bool:
    """Whether a release takes a Python, of which the log may state only the first two numbers."""
    try:
        specifier = SpecifierSet(bound)
    except InvalidSpecifier:
        return True
    low = SpecifierSet(",".join(str(part) for part in specifier if part.operator in _LOWER))
    whole = python if python.count(".") > 1 else f"{python}.99"
    return low.contains(whole, prereleases=True) or low.contains(python, prereleases=True)
