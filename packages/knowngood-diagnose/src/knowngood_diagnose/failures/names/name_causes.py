"""The causes of errors about names, computed from the atlas and the versions in the log. Pure.

A release that lacks a name is too old or too new (`wrong_releases`). Otherwise no release has it (a typo, a fork), a
local file has the package's name, or the release has it and something else failed.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError
from knowngood_diagnose.failures.names.missing_packages import (
    explain_missing_package,
    explain_unread_package,
    mask_of_refused,
)
from knowngood_diagnose.failures.names.name_places import NameFinder, is_asked_for_model_type
from knowngood_diagnose.failures.names.name_situation import NameCause, NameSituation, advise
from knowngood_diagnose.failures.names.own_names import explain_own_name
from knowngood_diagnose.failures.names.undefined_names import RESTART, explain_moved_name, explain_undefined_name
from knowngood_diagnose.failures.names.wrong_releases import (
    explain_guarded_export,
    explain_older_release,
    explain_wrong_release,
)
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, NamePlace

_IMPORTS = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))
"""The errors for which a name that is there can fail all the same."""
_OF_MODELS = frozenset((FaultKind.MODEL_TYPE, FaultKind.TOKENIZER))
"""The errors whose name comes from a model."""
_WITHOUT_PLACE = frozenset((FaultKind.DISTRIBUTION, FaultKind.GLOBAL))
"""The errors whose name is in no module of the atlas."""
_STUBBED = frozenset(("apex", "flash_attn", "transformer_engine"))
"""Modules of extensions for CUDA, in whose place packages for other processors put an empty one."""
_IMPORTS_MODULE = lazy_pattern(r"(?:import|from) (?P<top>[A-Za-z_]\w*)\b")
_GUESSES = frozenset((FaultKind.KEY, FaultKind.KEYWORD))
"""The errors of which only a typo is certain when no release has the name: else a user's own data may have it."""


_INSTALLS = {"megatron-core": "megatron.core"}
"""A package -> the one module of its repository that it installs."""


def explain_names(
    errors: Sequence[LoggedError], versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> list[NameCause]:
    """Return the causes of those errors that can be explained, in the order of the log, each name once."""
    finder = NameFinder(shelf=shelf, versions=versions)
    causes: dict[str, NameCause] = {}
    for error in _drop_repeated(errors):
        place = finder.find_place(error) if error.fault.kind not in _WITHOUT_PLACE else None
        cause = None
        if error.fault.kind is FaultKind.GLOBAL:
            cause = explain_undefined_name(error, versions, shelf)
        elif place is not None:
            possible = _drop_refused_releases(place, versions, shelf)
            cause = _explain(NameSituation(error=error, place=possible, versions=versions, shelf=shelf))
        elif error.fault.kind is FaultKind.DISTRIBUTION or (
            error.fault.kind is FaultKind.MODULE
            and ("." not in error.fault.owner or error.fault.owner in shelf.installed())
        ):
            cause = explain_missing_package(error, versions, shelf)
        elif error.fault.kind in _IMPORTS and not shelf.lookup_of(error.fault.owner):
            cause = explain_unread_package(error, shelf)
        if cause is None:
            cause = explain_own_name(error, place, shelf)
        if cause is not None:
            causes.setdefault(cause.incident.id, cause)
    return list(causes.values())


def _drop_repeated(errors: Sequence[LoggedError]) -> list[LoggedError]:
    """The errors without those that are only repeated, and have their traceback elsewhere in the log."""
    framed = {error.fault for error in errors if error.frames}
    return [error for error in errors if error.frames or error.fault not in framed]


def _drop_refused_releases(place: NamePlace, versions: Mapping[str, Sequence[str]], shelf: AtlasShelf) -> NamePlace:
    """The place without those releases as possible causes that the Python of the log cannot have installed."""
    file, pythons = place.lookup.file, versions.get("python", ())
    if not (place.present and place.possible and pythons) or file.package in versions:
        return place
    refused = mask_of_refused(pythons, file.releases, shelf.pythons(file.package))
    return replace(place, possible=place.possible & ~refused, refused=place.possible & refused)


def _explain(situation: NameSituation) -> NameCause | None:  # noqa: PLR0911 - for each state of the name
    """Return the cause, or `None` when nothing certain can be said."""
    place, at = situation.place, situation.at
    if _is_shadowed(situation):
        return _explain_shadow(situation, situation.top, situation.package, situation.error.fault.path)
    if _is_own_script(situation):
        script = situation.error.frames[0].path
        return _explain_shadow(situation, situation.top, situation.package, f"the script {script} itself")
    if hidden := _find_hidden_module(situation.error.frames):
        return _explain_shadow(situation, hidden, hidden, f"a file {hidden}.py of yours")
    if (checkout := _explain_repository(situation)) is not None:
        return checkout
    if _asks_itself(situation):
        return _explain_mixed_files(situation)
    if not place.present:
        return _explain_unknown_name(situation)
    is_there = situation.has_name(at) if at is not None else not place.possible
    if not is_there:
        return explain_wrong_release(situation)
    if situation.is_older_than_read:
        return explain_older_release(situation)
    if situation.error.fault.kind in _IMPORTS:
        return explain_guarded_export(situation) or _explain_failed_part(situation) or _explain_inside(situation)
    return None


def _explain_repository(situation: NameSituation) -> NameCause | None:
    """A module of a repository of which the package installs a part only, or of a checkout; `None` for other names."""
    fault, package = situation.error.fault, situation.package
    path = fault.path.replace("\\", "/")
    installs = _INSTALLS.get(package, "")
    is_outside = bool(installs) and fault.kind is FaultKind.MODULE and f"{fault.owner}.".startswith(f"{situation.top}.")
    is_outside = is_outside and not f"{fault.owner}.".startswith(f"{installs}.")
    is_checkout = "/" in path and not _is_installed(path) and path.endswith(".py") and fault.kind is FaultKind.IMPORT
    is_checkout = is_checkout and not (situation.place.present or fault.circular or situation.mistyped_name())
    if not is_outside and not is_checkout:
        return None
    what = fault.owner if is_outside else f"{fault.name} of {fault.owner}"
    because = f"{package} installs {installs} only, and {what} is of its repository, which is not on Python's path."
    if is_checkout:
        because = (
            f"Python imports {fault.owner} from a checkout ({path}), and no release of {package} has {fault.name}."
        )
    fixes = [
        advise(f"A checkout of {package}'s repository at the tag of the script, on PYTHONPATH or by pip install -e ."),
        advise(f"grep -rn '{(fault.name or fault.owner).rpartition('.')[2]}' in the checkout shows where it is now"),
    ]
    title = f"{what} is not there: the script, the checkout and the installed {package} are of different commits"
    kind = IncidentKind.NOT_INSTALLED if is_outside else IncidentKind.API_UNKNOWN
    cause = situation.explain(kind, title, because, fixes, component=package)
    return replace(cause, is_likely=not situation.place.present)


def _asks_itself(situation: NameSituation) -> bool:
    """Whether a package's own file asks another part of it for what the release that runs lacks: no release does."""
    fault, frames, place = situation.error.fault, situation.error.frames, situation.place
    is_own = situation.caller_package == situation.package or (
        bool(frames) and frames[-1].installed[:1] == (situation.top,)
    )
    is_private = situation.caller is None and fault.name.startswith("_") and "._" in fault.owner
    if is_private and fault.kind is FaultKind.IMPORT and not fault.circular:
        return True  # only the package itself asks for it
    if not is_own or fault.kind not in _IMPORTS or fault.circular or not place.present:
        return is_own and fault.kind in _IMPORTS and not place.present
    is_absent = situation.at is not None and not situation.has_name(situation.at) and fault.kind is FaultKind.IMPORT
    return fault.kind is not FaultKind.MODULE and "." in fault.owner and (is_absent or not place.possible)


def _explain_mixed_files(situation: NameSituation) -> NameCause:
    """Files of two releases of a package lie in its folder."""
    fault, package = situation.error.fault, situation.package
    asker = situation.caller.file if situation.caller else f"a file of {package}"
    what = fault.owner if fault.kind is FaultKind.MODULE else f"{fault.owner}.{fault.name}"
    because = (
        f"{asker} and {what} are both parts of {package}, and no release asks itself for what it lacks. So files of "
        "two releases are there (an installation over another one, a cache of compiled files), or the process goes "
        "on with modules that it imported before an upgrade."
    )
    fixes = [
        advise(
            f"Reinstall it whole: pip uninstall -y {package} (again, until it is gone), delete what remains of its "
            f"folder, and pip install {package}"
        ),
        advise(RESTART),
    ]
    title = f"{package}'s own file asks for {what}, which is not there: its files are of two releases"
    return situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package)


def _explain_failed_part(situation: NameSituation) -> NameCause | None:
    """A module of a package, or what all packages have, that is not there: the package is there by halves."""
    fault, package = situation.error.fault, situation.package
    whole = f"{fault.owner}.{fault.name}"
    is_part = any(name == situation.place.dotted for name in situation.place.lookup.file.modules())
    if fault.kind is not FaultKind.MODULE_ATTRIBUTE or fault.circular or not (is_part or fault.name.startswith("__")):
        return None
    because = (
        f"Every release of {package} that was read has {whole}. Its __init__ passed over a part whose import fails (an "
        f"extension that was not built for this torch), or a bare folder {situation.top} stands first in sys.path."
    )
    fixes = [
        advise(
            f"python -c 'import {whole if is_part else situation.top} as m; print(m.__path__)' shows the real error"
        ),
        advise(f"Start from another folder, or rename the folder {situation.top} beside the script"),
        advise(f"pip uninstall {package}, delete what remains of its folder, and install it again for this torch"),
    ]
    title = f"{package} is there by halves: {whole} is not there"
    cause = situation.explain(IncidentKind.FAILS_INSIDE, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def _is_shadowed(situation: NameSituation) -> bool:
    """Whether a file outside of the installed packages was imported under the package's name."""
    fault = situation.error.fault
    if fault.not_a_package and "." not in fault.not_a_package:
        return True
    if not fault.path or fault.kind is not FaultKind.IMPORT:
        return False
    if "unknownlocation" in fault.path:
        return "." not in fault.owner
    path = fault.path.replace("\\", "/")
    if _is_installed(path):
        return False
    if path.endswith(f"/{situation.top}/__init__.py") and not situation.place.possible:
        beside = path.split("/")[-3:-2]  # a checkout has the project's own folder, or src, above the package
        return bool(beside) and beside[0].lower().replace("-", "_") not in {situation.top, "src", "python", "lib"}
    return path.endswith(f"/{situation.top}.py") and f"/{situation.top}/" not in path


def _is_own_script(situation: NameSituation) -> bool:
    """Whether the script that runs has the name of the package from which something is missing."""
    frames, fault = situation.error.frames, situation.error.fault
    if not frames or fault.kind not in _IMPORTS or frames[0].function != "<module>":
        return False
    runs_main = len(frames) > 1 and frames[1].path == frames[0].path  # a cut traceback begins in an imported file
    is_script = not frames[0].installed or (runs_main and frames[0].installed[:1] != (situation.top,))
    return is_script and frames[0].parts[-1:] == (situation.top,)


def _is_installed(path: str) -> bool:
    """Whether a path, with slashes, is one of an installed package."""
    return "site-packages/" in path or "dist-packages/" in path


def _find_hidden_module(frames: Sequence[CodeFrame]) -> str:
    """Return the module that an installed file imports, where Python takes a user's own file of that name for it."""
    files = [frame for frame in frames if not frame.path.startswith("<")]
    for outer, inner in itertools.pairwise(files):
        statement = _IMPORTS_MODULE.match(outer.code)
        if statement and outer.installed and not inner.installed and inner.path.endswith(f"/{statement['top']}.py"):
            return statement["top"]
    return ""


def _explain_shadow(situation: NameSituation, top: str, package: str, path: str) -> NameCause:
    named = path if path.startswith(("/", "a file", "the script")) else f"a file {top}.py, or a folder {top},"
    because = (
        f"Python imports {named} where the package "
        f"{package} is meant: what is called so stands first in sys.path, mostly beside the script."
    )
    fix = advise(
        f"Rename it, and delete its __pycache__; python -c 'import {top}; print({top}.__file__)' shows its place"
    )
    title = f"A local {top} hides the package {package}"
    fixes = [fix]
    if is_stub := top in _STUBBED and bool(situation.error.fault.not_a_package):
        because += (
            f" Or a package put an empty module called {top} in its place, as plugins for other processors than "
            "NVIDIA's may do: what looks whether it is installed then finds it."
        )
        asker = situation.caller_package or "what asks for it"
        fixes.append(
            advise(
                f"Without a file of that name: the plugin for your processor in the release that goes with this "
                f"{asker}, or import {asker} before what puts the empty {top} there"
            )
        )
    cause = situation.explain(IncidentKind.SHADOWED, title, because, fixes, component=OwnComponent.YOUR_CODE)
    return replace(cause, is_likely=is_stub)


def _explain_inside(situation: NameSituation) -> NameCause:
    """The release has the name: what failed is something else."""
    fault, top, package = situation.error.fault, situation.top, situation.package
    if fault.kind is FaultKind.IMPORT and not situation.version and not fault.circular and _is_installed(fault.path):
        return explain_older_release(situation)
    present = situation.place.present
    since = f"Every release of {package} since {situation.releases[(present & -present).bit_length() - 1]}"
    has = f"{f'{package} {situation.version}' if situation.version else since} has {situation.place.what}"
    show = advise(f"python -c 'import {top}; print({top}.__file__)' shows which {top} is imported")
    if fault.circular:
        because = (
            f"{has}. Python was still importing {fault.owner}: a file of yours has the name of a module (the traceback "
            "shows it), or modules import each other in a circle."
        )
        fixes = [advise(f"Rename your file that is called like a module, such as {top}.py"), show]
    elif fault.kind is FaultKind.MODULE_ATTRIBUTE:
        because = (
            f"{has}. So another {top} was imported (a file {top}.py or a folder {top} beside the script), or importing "
            "the real one failed before."
        )
        fixes = [show]
        if not situation.version:
            older = f"when the {package} that is installed is older: it has the name in each of these"
            fixes.insert(0, Fix(change={package: f">={situation.releases[0]}"}, note=older, cost="an upgrade"))
            because = f"{has}: an older one runs. Or another {top} was imported (a file {top}.py or a folder {top})."
    else:
        because = f"{has}. So its import failed inside, and the real error stands further up in the log; or " + (
            "another release runs than the one in the log." if situation.version else "an older release runs."
        )
        fixes = [advise(f"python -c 'import {fault.owner}' shows the first error"), show]
        if situation.version:
            fixes.append(
                advise(f"In a notebook where it was installed a moment ago: {RESTART[0].lower()}{RESTART[1:]}")
            )
    title = f"{package} has {situation.place.what}: the failure lies elsewhere"
    if fault.kind is FaultKind.MODULE_ATTRIBUTE and not fault.circular:
        title = f"{package} has {situation.place.what}: another {top} is imported, or its import failed by halves"
        if not situation.version:
            title = f"{since} has {situation.place.what}: an older one runs, or another {top} is imported"
    if not situation.version and not fault.circular and fault.kind is FaultKind.IMPORT:
        title = f"{since} has {situation.place.what}: an older one runs, or its import failed inside"
        fixes.append(Fix(change={package: f">={situation.releases[0]}"}, note="when an older one is installed"))
    return situation.explain(IncidentKind.FAILS_INSIDE, title, because, fixes, component=package)


def _explain_unknown_name(situation: NameSituation) -> NameCause | None:
    """No release that was read has the name."""
    place, fault, package = situation.place, situation.error.fault, situation.package
    if fault.kind is FaultKind.POSITIONS and not situation.caller_package:
        return None
    is_model_type = fault.kind is FaultKind.MODEL_TYPE or is_asked_for_model_type(
        place, situation.error, situation.shelf
    )
    near = situation.mistyped_name() if fault.kind is not FaultKind.MODEL_TYPE else ""
    if situation.caller_package and fault.kind in _IMPORTS:
        near = ""  # a package that was published has no slip of the pen there
    unclear = place.unclear if fault.kind is FaultKind.MODULE else place.lookup.find_name(place.dotted).unclear
    if unclear or (fault.kind in _GUESSES and not near and not is_model_type) or situation.at == -1:
        return None
    if fault.kind in _IMPORTS and (moved := explain_moved_name(situation)) is not None:
        return moved
    oldest, newest = situation.releases[0], situation.releases[-1]
    because = f"No release of {package} from {oldest} to {newest} has {place.what}"
    if near:
        because += f"; the nearest name there is {near}."
        fixes = [advise(f"Write {near}")]
        if is_model_type and (has := place.names.get(near, 0)):
            first = situation.releases[(has & -has).bit_length() - 1]
            fixes.append(Fix(change={package: f">={first}"}, note=f"has {near}; an older one may lack it"))
    elif is_model_type or fault.kind is FaultKind.TOKENIZER:
        words, fixes = _describe_own_of_model(fault.kind)
        because += words
    else:
        who = situation.caller.file if situation.caller else "the code"
        because += (
            f", and what was before {oldest} was not read: {who} was written for an older one, for a fork or a "
            "development version, or for another package whose module has the same name."
        )
        fixes = list(_fixes_of_lost_name(situation))
    least = _least_without(situation)
    stated = f", nor has {least}, which the log states" if least != oldest else ""
    title = f"No release of {package} since {oldest} has {place.what}{stated}"
    component = situation.caller_package or (package if not near else OwnComponent.YOUR_CODE)
    if fault.kind in _OF_MODELS or (is_model_type and not near):
        component = OwnComponent.MODEL
    return situation.explain(IncidentKind.API_UNKNOWN, title, because, fixes, component=component)


def _describe_own_of_model(kind: FaultKind) -> tuple[str, list[Fix]]:
    """Return what a model type or a tokenizer's class is that no release of transformers has, and what helps."""
    if kind is FaultKind.TOKENIZER:
        return (
            (
                ": tokenizer_config.json names a class of the code that the model brings, which is loaded only with "
                "trust_remote_code=True, or one of a newer transformers."
            ),
            [
                advise(
                    "trust_remote_code=True in the from_pretrained that fails; where a package calls it, load the "
                    "tokenizer yourself and hand over the object"
                ),
                advise("A newer transformers, when the model card asks for it"),
            ],
        )
    return (
        (
            ": a project's own code registers it (AutoConfig.register), or the model brings its own code, or needs a "
            "newer transformers."
        ),
        [
            advise(
                "Import the project's package that registers it before from_pretrained, or load the model with that "
                "package's own class, as its README does"
            ),
            advise("trust_remote_code=True, when the model's repository has code"),
            advise("transformers from its repository (pip install git+...), when the model card asks for it"),
        ],
    )


def _least_without(situation: NameSituation) -> str:
    """Return the oldest release that lacks the name: the log's own, where it is older than all that were read."""
    oldest, stated = situation.releases[0], situation.version
    return stated if stated and Version(stated) < Version(oldest) else oldest


def _fixes_of_lost_name(situation: NameSituation) -> Iterator[Fix]:
    """Yield what helps against a name that no release has that was read."""
    package, caller = situation.package, situation.caller_package
    if caller and caller != package:
        newer = f"A newer {caller}, written for {package} {situation.releases[0]} or newer"
        read = situation.shelf.open(caller) if caller in situation.shelf.packages else None
        yield (
            Fix(change={caller: f">={read.file.releases[0]}"}, note=newer, cost="an upgrade")
            if read is not None
            else advise(newer)  # the index may have another package of that name
        )
        yield advise(f"Or {package} before {_least_without(situation)}, which may have it: these were not read")
        return
    if situation.caller and situation.caller.is_remote_code:
        yield advise("A newer revision of the model's code")
    yield Fix(change={package: f"<{_least_without(situation)}"}, note="may have it; these were not read", cost="a pin")
    yield advise(f"Install the {package} that the code's own instructions name")
