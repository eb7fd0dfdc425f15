"""The causes of a name that is not defined, or was moved. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import FaultKind
from knowngood_diagnose.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood_diagnose.failures.names.name_situation import (
    NameCaller,
    NameCause,
    NameSituation,
    advise,
    component_of,
    describe_failure,
    find_caller,
)
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.logged_errors import LoggedError
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

_COMPILED = lazy_pattern(r"^(?!(?:is|has|use|no|with|on|to|of|have|want|need)_)[a-z]\w*_cuda(?:_[a-z]\w*)?$")
"""Names of the compiled modules that projects build, and not those of switches such as use_cuda."""


def explain_undefined_name(
    error: LoggedError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause | None:
    """A `NameError`: in a package, mostly an import that it leaves out where another package is not installed.

    Without a traceback, which alone says whose file it is, only a compiled module is known by its name.
    """
    caller, name = find_caller(error, shelf), error.fault.name
    if caller is None:
        return None if error.frames else _explain_unbuilt(error)
    missing = _find_left_out(error, caller, shelf) if caller.lookup is not None and not caller.is_remote_code else ""
    running = {shelf.owner(frame.installed[0]) for frame in error.frames if frame.installed}
    if missing and not (missing in versions or missing in running or missing == "transformers"):
        return _cause(
            error,
            title=f"{missing} is not installed, or cannot be imported",
            kind=IncidentKind.NOT_INSTALLED,
            component=missing,
            because=f"{caller.file} imports {name} from {missing} only where that can be imported, and uses it here.",
            fixes=[
                Fix(change={missing: "*"}, note=f"install it: pip install {missing}"),
                advise(
                    f"When it is installed: python -c 'import {missing.replace('-', '_')}' shows why its import fails"
                ),
            ],
        )
    where = f"{caller.file}, line {caller.frame.line}"
    if caller.is_remote_code or not caller.package:
        return _explain_unbuilt(error) or _cause(
            error,
            title=f"{where}, uses the name {name} and does not define it",
            kind=IncidentKind.API_UNKNOWN,
            component=component_of(caller),
            because=f"{where}, uses {name}, which it neither defines nor imports by then.",
            fixes=[advise(f"Import or define {name} there; mind its spelling, and branches that leave an import out")],
        )
    whose = f" An import of {missing} left it out: this {missing} does not have it." if missing else ""
    return _cause(
        error,
        title=f"{caller.file} of {caller.package} uses the name {name} and does not define it",
        kind=IncidentKind.FAILS_INSIDE,
        component=caller.package,
        because=f"{where}, uses {name}: an import above it was left out or failed.{whose}",
        fixes=[
            advise(f"A newer {caller.package}, or the packages that it asks for (pip check)"),
            advise("Warnings above in the log may name the import that failed"),
        ],
    )


def _explain_unbuilt(error: LoggedError) -> NameCause | None:
    """The module of a project's own CUDA extension, by its name; `None` for another name."""
    name = error.fault.name
    if not _COMPILED.match(name):
        return None
    cause = _cause(
        error,
        title=f"The CUDA extension {name} was not built, or cannot be imported",
        kind=IncidentKind.NOT_INSTALLED,
        component=OwnComponent.EXTENSION,
        because=f"By its name {name} is the compiled part of a project, whose code imports it in a try and goes on "
        "without it until it is called.",
        fixes=[
            advise(
                "Build it in this environment: the folder of the project with a setup.py that names it (often "
                "kernels/, ops/ or csrc/): pip install --no-build-isolation ./FOLDER, with the toolkit of torch's CUDA"
            ),
            advise(f"When it was built: python -c 'import torch, {name}' shows why its import fails"),
        ],
    )
    return replace(cause, is_likely=True)


def _find_left_out(error: LoggedError, caller: NameCaller, shelf: AtlasShelf) -> str:
    """The package from which a package's file imports a name where it is installed; empty for none."""
    rows = caller.lookup.file.rows(caller.module) if caller.lookup else []
    named = (row for row in rows if row[0] == error.fault.name and row[1] == RowKind.IMPORT and row[2])
    modules = [detail.rstrip("?").partition(":")[0] for _, _, detail, _ in named]
    # Its own module may be called as the package which it wraps.
    tops = [*(module.partition(".")[0] for module in modules), *(module.rpartition(".")[2] for module in modules)]
    packages = (shelf.owner(top) or shelf.distribution_of(top) for top in tops)
    return next((package for package in packages if package and package != caller.package), "")


def _cause(  # noqa: PLR0913 - the fields of an incident
    error: LoggedError, *, title: str, kind: IncidentKind, component: str, because: str, fixes: Sequence[Fix]
) -> NameCause:
    incident = describe_failure(
        f"name:{error.fault.text}",
        kind,
        component,
        title=title,
        because=because,
        fixes=fixes,
        source="the message and its traceback",
        confidence="artefact",
    )
    return NameCause(error=error, incident=incident, package=component)


_MOST_PLACES = 2
"""Of a name that is in more places, none is known to be the one."""


def explain_moved_name(situation: NameSituation) -> NameCause | None:
    """Return where a name is now that no release has in its old place; `None` where nothing of that name is there."""
    place, fault, package = situation.place, situation.error.fault, situation.package
    last = (fault.owner if fault.kind is FaultKind.MODULE else fault.name).rpartition(".")[2]
    homes = [home for home in place.elsewhere if not home.endswith(f".{fault.owner}")]
    if place.present or not 0 < len(homes) <= _MOST_PLACES or last in FOLDERS_OF_PROJECTS:
        return None
    home, oldest = homes[0], situation.releases[0]
    has = place.lookup.find_name(home).present
    if not has:
        return None
    asker = situation.caller_package
    whose = situation.caller.file if situation.caller else "the code"
    spans = situation.describe_releases(has)
    because = (
        f"{package} has {last} as {home} ({spans}), and in no release since {oldest} as {fault.owner}: it was moved "
        f"before {oldest}, and {whose} asks in the old place."
    )
    is_gone = not has >> (len(situation.releases) - 1) & 1
    own = advise(f"In that file: {home} in place of {_name_old_place(situation)}")
    older = advise(
        f"An older {package}, which has it in the old place: the one that the instructions of that code "
        f"name, from before {oldest} (the last of these may have moved it already)"
    )
    fixes = [older, own] if asker and asker != package else [own, older]
    if asker and asker != package:
        newer = f"a newer {asker}, which asks in the new place: pip install -U {asker}"
        fixes.insert(0, Fix(change={asker: "*"}, note=newer))
    if is_gone:
        newest = situation.releases[has.bit_length() - 1]
        because += f" After {newest} it is gone from there too."
        fixes.append(Fix(change={package: f"<={newest}"}, note=f"the last that has {home}", cost="a pin"))
    title = f"{place.what} was moved in {package}, to {home}, before {oldest}"
    component = asker or (package if situation.caller is None else OwnComponent.YOUR_CODE)
    return situation.explain(IncidentKind.API_REMOVED, title, because, fixes, component=component)


def _name_old_place(situation: NameSituation) -> str:
    fault = situation.error.fault
    return fault.owner if fault.kind is FaultKind.MODULE else f"{fault.owner}.{fault.name}"


RESTART = (
    "Restart the notebook's kernel (the runtime), or the process, and run it again from its first cell: pip changes "
    "files, and not what is imported already"
)
