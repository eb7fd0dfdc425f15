"""The causes of a name that is not defined, was moved, or is still that of a release that was loaded before. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood_diagnose.failures.logs.logged_errors import FaultKind
from knowngood_diagnose.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood_diagnose.failures.names.name_situation import (
    NameCaller,
    NameCause,
    NameSituation,
    advise,
    describe_failure,
    find_caller,
)
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import LoggedError
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

_ALWAYS_THERE = frozenset(("numpy", "torch", "transformers"))
"""Packages without which no training runs: a name of theirs that is not defined was forgotten."""
_COMPILED = lazy_pattern(r"^(?!(?:is|has|use|no|with|on|to|of|have|want|need)_)[a-z]\w*_cuda(?:_[a-z]\w*)?$")
"""Names of the compiled modules that projects build, and not those of switches such as use_cuda."""
_IMPORTERS = 3
"""The most packages that are named as those that import a name."""


def explain_undefined_name(
    error: LoggedError, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause | None:
    """A `NameError`: in a package, mostly an import that it leaves out where another package is not installed.

    Without a traceback, which alone says whose file it is, it is likely such an import if packages have one.
    """
    caller, name = find_caller(error, shelf), error.fault.name
    if caller is None:
        return None if error.frames else _explain_optional_import(error, shelf) or _explain_unbuilt(error)
    if caller.lookup is not None and not caller.is_remote_code:
        return _explain_left_out(error, caller, versions, shelf)
    if (left_out := _explain_optional_import(error, shelf)) is not None and left_out.package not in _ALWAYS_THERE:
        return left_out
    if caller.package and not caller.is_remote_code:
        return _explain_left_out(error, caller, versions, shelf)
    if (unbuilt := _explain_unbuilt(error)) is not None:
        return unbuilt
    component = OwnComponent.MODEL if caller.is_remote_code else OwnComponent.YOUR_CODE
    return _cause(
        error,
        title=f"{caller.file} uses the name {name} and does not define it",
        kind=IncidentKind.API_UNKNOWN,
        component=component,
        because=f"Line {caller.frame.line} of {caller.file} uses {name}, which it neither defines nor imports by then.",
        fixes=[advise(f"Import or define {name} there; mind its spelling, and branches that leave an import out")],
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


def _explain_left_out(
    error: LoggedError, caller: NameCaller, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> NameCause:
    """A package's own file lacks a name: say which import it leaves out, where the atlas has it."""
    name = error.fault.name
    rows = caller.lookup.file.rows(caller.module) if caller.lookup else []
    targets = [detail.rstrip("?") for path, kind, detail, _ in rows if path == name and kind == RowKind.IMPORT]
    tops = dict.fromkeys(target.partition(":")[0].partition(".")[0] for target in targets)
    packages = [_package_of(top, shelf) for top in tops]
    missing = next((package for package in packages if package != caller.package), "")
    if not missing:  # its own module that is called as the package which it wraps
        parts = [target.partition(":")[0].rpartition(".")[2] for target in targets]
        wrapped = (shelf.distribution_of(part) for part in parts if "_" in part)
        missing = next((package for package in wrapped if package and package != caller.package), "")
        tops = {missing.replace("-", "_"): None} if missing else tops
    running = {shelf.owner(frame.installed[0]) for frame in error.frames if frame.installed}
    if missing in versions or missing in running or missing == "transformers":  # no trainer runs without it
        return _cause(
            error,
            title=f"{caller.file} of {caller.package} does not get the name {name} from this {missing}",
            kind=IncidentKind.API_UNKNOWN,
            component=caller.package,
            because=f"{caller.file} imports {name} from {missing} where that has it; this release does not.",
            fixes=[
                advise(f"A newer {caller.package}, written for the {missing} that is there"),
                advise(f"The {missing} that {caller.package} asks for (pip check)"),
            ],
        )
    if missing:
        return _cause(
            error,
            title=f"{missing} is not installed, or cannot be imported",
            kind=IncidentKind.NOT_INSTALLED,
            component=missing,
            because=f"{caller.file} imports {name} from {missing} only where that can be imported, and uses it here.",
            fixes=[
                Fix(change={missing: "*"}, note=f"install it: pip install {missing}"),
                advise(f"When it is installed: python -c 'import {next(iter(tops))}' shows why its import fails"),
            ],
        )
    return _cause(
        error,
        title=f"{caller.file} of {caller.package} uses the name {name} and does not define it",
        kind=IncidentKind.FAILS_INSIDE,
        component=caller.package,
        because=f"Line {caller.frame.line} of {caller.file} uses {name}: an import above it was left out or failed.",
        fixes=[
            advise(f"Another release of {caller.package}; warnings above in the log may name the import that failed")
        ],
    )


def _explain_optional_import(error: LoggedError, shelf: AtlasShelf) -> NameCause | None:
    """The package from which others import a name where it is installed, for an error without a place."""
    name = error.fault.name
    homes: Counter[str] = Counter()
    importers = set()
    for package in shelf.packages:
        lookup = shelf.open(package)
        for _, (_, _, target, _) in lookup.file.find_rows(f"{name}\t{RowKind.IMPORT}\t") if lookup else ():
            home = _package_of(target.removesuffix("?").partition(":")[0].partition(".")[0], shelf)
            if target.endswith("?") and home != package and (home in shelf.packages or home in shelf.distributions):
                homes[home] += 1
                importers.add(package)
    if not homes:
        return None
    home = homes.most_common(1)[0][0]
    cause = _cause(
        error,
        title=f"{name} is used and was not imported: {home} is missing, fails, or is another release",
        kind=IncidentKind.NOT_INSTALLED,
        component=home,
        because=f"{', '.join(sorted(importers)[:_IMPORTERS])} import {name} from {home} only where that is installed.",
        fixes=[
            Fix(change={home: "*"}, note=f"install it, or a newer release: pip install -U {home}"),
            advise("Warnings above the error may name the import that failed; pip check names what does not fit"),
            advise(f"When your own file uses {name}: import it there"),
        ],
    )
    return replace(cause, is_fallback=True, is_likely=True)


def _package_of(top: str, shelf: AtlasShelf) -> str:
    return shelf.owner(top) or shelf.distribution_of(top) or top


def explain_other_python(error: LoggedError, shelf: AtlasShelf) -> NameCause:
    """A module's name without quotes: Python 2 runs, or `python -m` was started with a Python that lacks it."""
    owner = error.fault.owner
    top = owner.partition(".")[0]
    package = _package_of(top, shelf)
    if error.fault.speaker == "ImportError":
        return _cause(
            error,
            title="Python 2 runs",
            kind=IncidentKind.PYTHON,
            component=OwnComponent.PYTHON,
            because=f"Python 3 writes the name of a module in quotes; this one ({owner}) has none.",
            fixes=[
                advise(
                    "python3 in place of python; or activate the environment first (which python shows which one runs)"
                ),
                Fix(change={package: "*"}, note=f"install it for that Python: python3 -m pip install {package}"),
            ],
        )
    return _cause(
        error,
        title=f"The Python that was started lacks the module {owner}",
        kind=IncidentKind.NOT_INSTALLED,
        component=package,
        because=f"python -m {owner} says so: {package} is not installed for this Python, or too old to have it.",
        fixes=[
            advise("Start it with the Python of the environment in which it is installed (which -a python)"),
            Fix(change={package: "*"}, note=f"install it for this one: {error.fault.speaker} -m pip install {package}"),
        ],
    )


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


_DEMAND = lazy_pattern(
    r"(?:requires?|needs?|please (?:install|upgrade|update)(?: to)?) "
    r"[`'\"]?(?P<name>[A-Za-z][\w.-]*?)(?:\[\w+\])?[`'\"]? ?(?:version )?(?P<range>>=? ?\d[\w.]*\w)",
    re.IGNORECASE,
)
RESTART = (
    "Restart the notebook's kernel (the runtime), or the process, and run it again from its first cell: pip changes "
    "files, and not what is imported already"
)


def note_installed_release(
    incident: Incident, error: LastError | None, versions: Mapping[str, Sequence[str]]
) -> Incident:
    """Return a failure whose message demands a release, with the restart first where the log has that release.

    Args:
        incident: a known failure whose signature is in the log.
        error: the last error of the log.
        versions: package -> the versions in the log.
    """
    stated = _DEMAND.search(error.message) if error is not None else None
    name = canonical_name(stated["name"]) if stated else ""
    if stated is None or name != incident.component or not versions.get(name):
        return incident
    wanted = stated["range"].replace(" ", "")
    try:
        is_enough = all(SpecifierSet(wanted).contains(Version(text), prereleases=True) for text in versions[name])
    except (InvalidSpecifier, InvalidVersion):
        return incident
    if not is_enough:
        return incident
    installed = versions[name][-1]
    module = name.replace("-", "_")
    return replace(
        incident,
        title=f"{name} {installed} is installed and new enough ({wanted}): the process runs what it imported before",
        because=(
            f"The message demands {name}{wanted}, and the log states {installed}. So the Python that runs looked at "
            "another one: a notebook that imported the packages before pip installed this release, or a program of "
            "another environment than the one that was listed."
        ),
        fix=(
            advise(RESTART),
            advise(
                f"After that, python -c 'import {module}, sys; print({module}.__version__, sys.executable)' shows "
                "which release and which Python run; python -m pip install for that very Python, when it is another"
            ),
        ),
    )
