"""The causes of errors about names, computed from the atlas and the versions in the log. Pure.

A release that lacks a name is too old or too new (`wrong_releases`). Otherwise no release has it (a typo, a fork), a
local file has the package's name, or the release has it and something else failed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError
from knowngood_diagnose.failures.names.missing_packages import (
    explain_missing_package,
    explain_unread_package,
    mask_of_refused,
)
from knowngood_diagnose.failures.names.name_places import NameFinder, is_asked_for_model_type, list_likely_bases
from knowngood_diagnose.failures.names.name_situation import NameCause, NameSituation, advise, ranges_of_mask
from knowngood_diagnose.failures.names.overridden_methods import explain_overridden_method, explain_replaced_forward
from knowngood_diagnose.failures.names.own_names import explain_own_name
from knowngood_diagnose.failures.names.undefined_names import (
    RESTART,
    explain_moved_name,
    explain_other_python,
    explain_undefined_name,
)
from knowngood_diagnose.failures.names.wrong_releases import (
    explain_class_of_caller,
    explain_guarded_export,
    explain_older_release,
    explain_override,
    explain_unset_attribute,
    explain_wrong_release,
)
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, NamePlace

_IMPORTS = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))
"""The errors for which a name that is there can fail all the same."""
_OF_MODELS = frozenset((FaultKind.MODEL_TYPE, FaultKind.CONFIGURATION, FaultKind.TOKENIZER))
"""The errors whose name comes from a model."""
_WITHOUT_PLACE = frozenset((FaultKind.DISTRIBUTION, FaultKind.GLOBAL))
"""The errors whose name is in no module of the atlas."""
_STUBBED = frozenset(("apex", "flash_attn", "transformer_engine"))
"""Modules of extensions for CUDA, in whose place packages for other processors put an empty one."""
_IMPORTS_MODULE = lazy_pattern(r"(?:import|from) (?P<top>[A-Za-z_]\w*)\b")
_GUESSES = frozenset((FaultKind.KEY, FaultKind.KEYWORD, FaultKind.ARGUMENT))
"""The errors of which only a typo is certain when no release has the name: else a user's own data may have it."""


@dataclass(frozen=True, kw_only=True)
class _Repository:
    """A repository of which the package installs one part."""

    name: str
    installs: str
    """The module that the package has for certain."""
    moved: str
    """Where the repository keeps what it moved away."""


_REPOSITORIES = {
    "megatron-core": _Repository(name="NVIDIA/Megatron-LM", installs="megatron.core", moved="megatron.legacy")
}


def explain_names(
    errors: Sequence[LoggedError], versions: Mapping[str, Sequence[str]], shelf: AtlasShelf
) -> list[NameCause]:
    """Return the causes of those errors that can be explained, in the order of the log, each name once."""
    finder = NameFinder(shelf=shelf, versions=versions)
    causes: dict[str, NameCause] = {}
    for error in _drop_repeated(errors):
        place = finder.find_place(error) if error.fault.kind not in _WITHOUT_PLACE else None
        cause = None
        if error.fault.speaker:
            cause = explain_other_python(error, shelf)
        elif error.fault.kind is FaultKind.GLOBAL:
            cause = explain_undefined_name(error, versions, shelf)
        elif (place is None or "." not in error.fault.owner) and (
            overridden := explain_overridden_method(error, shelf) or explain_replaced_forward(error, shelf)
        ) is not None:
            cause = overridden
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


def _explain(situation: NameSituation) -> NameCause | None:  # noqa: C901, PLR0911 - for each state of the name
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
    if not place.present and situation.caller_package == situation.package and situation.error.fault.kind in _IMPORTS:
        return _explain_absent_part(situation)
    if not place.present:
        return _explain_unknown_name(situation)
    if _asks_private_part(situation):
        return _explain_absent_part(situation)
    is_there = situation.has_name(at) if at is not None else not place.possible
    if not is_there and _asks_itself(situation):
        return _explain_mixed_release(situation)
    if not is_there:
        return explain_override(situation) or explain_class_of_caller(situation) or explain_wrong_release(situation)
    if situation.is_older_than_read and (base := _find_lost_base(situation)) is not None:
        return replace(explain_wrong_release(base), is_likely=True)
    if situation.is_older_than_read:
        return explain_unset_attribute(situation) or explain_older_release(situation)
    if situation.error.fault.kind in _IMPORTS:
        return explain_guarded_export(situation) or _explain_missing_part(situation) or _explain_inside(situation)
    return _explain_stale(situation) if situation.version and _is_settled(situation) else None


def _find_lost_base(situation: NameSituation) -> NameSituation | None:
    """The situation of a class with a known name that is a model's own: its base class has lost the attribute.

    `None` where the base class that such classes have still has it, or never had it.
    """
    fault, place = situation.error.fault, situation.place
    if fault.kind is not FaultKind.OBJECT_ATTRIBUTE:
        return None
    for lookup, base in list_likely_bases(fault.owner, situation.shelf):
        present = lookup.find_name(f"{base}.{fault.name}").present
        lacking = lookup.find_name(base).present & ~present
        if present and lacking.bit_length() > present.bit_length() and lookup is place.lookup:
            what = f"`{fault.name}` of {base.rpartition('.')[2]}, from which the model's own {fault.owner} derives"
            own = replace(place, dotted=f"{base}.{fault.name}", present=present, possible=lacking, what=what)
            return replace(situation, place=replace(own, derived=True))
    return None


def _explain_repository(situation: NameSituation) -> NameCause | None:
    """A module of a repository that the package's own releases mostly do not have, or a checkout's file without a name.

    `None` where the name is one of what the package installs.
    """
    fault, package = situation.error.fault, situation.package
    path = fault.path.replace("\\", "/")
    is_checkout = bool(path) and "/" in path and not _is_installed(path) and path.endswith(".py")
    repository = _REPOSITORIES.get(package)
    module_name = fault.owner if fault.kind in {FaultKind.MODULE, FaultKind.IMPORT} else ""
    is_outside = (
        repository is not None
        and module_name.startswith(f"{situation.top}.")
        and not (module_name == repository.installs or module_name.startswith(f"{repository.installs}."))
    )
    if is_outside and repository is not None and fault.kind is FaultKind.MODULE:
        because = (
            f"{module_name} is a folder of the repository {repository.name}. The package {package} installs "
            f"{repository.installs}; what else it has of the repository differs from release to release "
            f"({situation.describe_releases(situation.place.present) or 'none that was read has this'})."
        )
        fixes = [
            advise(
                f"Clone {repository.name} at the tag of the installed {package}, and put it on the path: "
                "PYTHONPATH=/path/to/the/clone, or pip install -e . in it"
            ),
            advise(f"The {package} that the script's own repository is of: a release and a checkout do not mix"),
        ]
        title = f"{module_name} belongs to the repository {repository.name}, which is not on Python's path"
        if not situation.place.present:
            because += " Or the checkout that is on the path is of another commit, in which that module was moved."
            fixes.insert(
                1, advise(f"grep -rn '{module_name.rpartition('.')[2]}' in the checkout shows where it is now")
            )
        cause = situation.explain(IncidentKind.NOT_INSTALLED, title, because, fixes, component=package)
        return replace(cause, is_likely=not situation.place.present)
    if not is_checkout or fault.kind is not FaultKind.IMPORT or situation.place.present or fault.circular:
        return None
    near = situation.mistyped_name()
    if near:
        return None
    where = f" (older code of it went to {repository.moved})" if repository is not None else ""
    because = (
        f"Python imports {fault.owner} from a checkout ({path}), and no release of {package} has {fault.name} there. "
        f"So the file that asks for it and the checkout are of two commits: {fault.name} was moved or removed in one "
        f"of them{where}. A pin of the package changes nothing, since the checkout stands first on the path."
    )
    fixes = [
        advise(
            f"grep -rn '{fault.name}' in the checkout shows where it is now"
            + (f": {repository.moved}" if repository is not None else "")
            + "; change the import to that"
        ),
        advise("A newer commit of the checkout, in which the scripts follow; or the tag that the instructions name"),
    ]
    title = f"{fault.name} is not in this checkout's {fault.owner}: it was moved, or the script is of another commit"
    return situation.explain(IncidentKind.API_UNKNOWN, title, because, fixes, component=package)


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


def _is_mixed(situation: NameSituation) -> bool:
    """Whether a file of a package asks another file of the same package for what every release has there."""
    fault = situation.error.fault
    last = situation.error.frames[-1] if situation.error.frames else None
    asks_itself = last is not None and last.installed[:1] == (situation.top,)
    return asks_itself and not fault.circular and not situation.place.possible and "." in fault.owner


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
    if _is_mixed(situation):
        return _explain_mixed_files(situation)
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


def _explain_missing_part(situation: NameSituation) -> NameCause | None:
    """What a package's module has in every release, and is no name of a release: a part, or what all packages have."""
    fault = situation.error.fault
    if fault.kind is not FaultKind.MODULE_ATTRIBUTE or fault.circular:
        return None
    if fault.name.startswith("__"):
        return _explain_bare_folder(situation)
    return _explain_failed_part(situation) if _is_part(situation) else None


def _explain_bare_folder(situation: NameSituation) -> NameCause:
    """What every package has, such as `__version__`, is not there: a folder without its files is imported."""
    top, package, name = situation.top, situation.package, situation.error.fault.name
    because = (
        f"Every {package} has {name}, so what is imported as {top} is not the package: a folder {top} that stands "
        "first in sys.path (the working directory, with a checkout or data in it), or what is left of an installation. "
        "Python takes a folder without __init__.py for a package that is empty."
    )
    fixes = [
        advise(
            f"Start from another folder: python -c 'import {top}; print({top}.__path__)' shows which one is imported"
        ),
        advise(f"Rename that folder; or pip install -e . in it, when it is {package}'s own checkout"),
        advise(f"pip uninstall {package}, delete what remains of its folder in site-packages, and install it again"),
    ]
    title = f"A bare folder {top} is imported in the place of {package}: it has no `{name}`"
    cause = situation.explain(IncidentKind.SHADOWED, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def _is_part(situation: NameSituation) -> bool:
    """Whether the missing attribute is a module of the package, which its `__init__` imports."""
    dotted = situation.place.dotted
    return any(name == dotted for name in situation.place.lookup.file.modules())


def _explain_failed_part(situation: NameSituation) -> NameCause:
    """A module of a package that its own `__init__` did not import: it failed there, and was passed over."""
    fault, package = situation.error.fault, situation.package
    whole = f"{fault.owner}.{fault.name}"
    because = (
        f"{whole} is a module of {package}, in every release that was read. {fault.owner} is found without it: its "
        "__init__ passes over a part whose import fails (a missing package, an extension that was not built for this "
        f"torch), the part was not installed, or nobody imported it: `import {fault.owner}` alone need not do that."
    )
    fixes = [
        advise(f"python -c 'import {whole}' shows the real error"),
        advise(
            f"Install the part with the package: pip install --no-build-isolation '{package}[{fault.name}]', when "
            f"{package} has that extra, for the torch and CUDA that are there"
        ),
        advise(f"Write `import {whole}` before it is used, when that command shows no error"),
    ]
    title = f"{package} is installed without its part {fault.name}, or the import of that part failed"
    cause = situation.explain(IncidentKind.FAILS_INSIDE, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def _is_settled(situation: NameSituation) -> bool:
    """Whether a keyword is refused by a known class that takes it in the stated release, and not in all others."""
    place, root = situation.place, situation.place.lookup.file.root
    is_named = place.dotted.startswith(f"{root}.") and place.dotted.removeprefix(f"{root}.")[:1].isupper()
    return situation.error.fault.kind is FaultKind.KEYWORD and is_named and bool(place.possible)


def _explain_stale(situation: NameSituation) -> NameCause:
    """The release in the log takes the keyword that is refused: another one runs."""
    package, what, version = situation.package, situation.place.what, situation.version
    because = (
        f"{package} has {what} {situation.describe_releases(situation.place.present)}, and so in {version}, which the "
        "log states. The process runs another one: a notebook that imported it before the upgrade, or another "
        "environment than the one that was listed."
    )
    fixes = [
        advise(RESTART),
        advise(
            f"python -c 'import {situation.place.lookup.file.root} as m; print(m.__version__, m.__file__)' with the "
            "very Python that runs shows which release it is"
        ),
    ]
    title = f"{package} {version} has {what}: the process runs another {package} than the log states"
    cause = situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def _asks_private_part(situation: NameSituation) -> bool:
    """Whether a name is asked of a package's private module, which only the package itself does, by no shown file."""
    fault = situation.error.fault
    is_private = fault.name.startswith("_") and any(part.startswith("_") for part in fault.owner.split("."))
    is_own = situation.caller is None or situation.caller.package == situation.package
    return fault.kind is FaultKind.IMPORT and is_private and is_own and not fault.circular


def _asks_itself(situation: NameSituation) -> bool:
    """Whether a package's installed file imports what the stated release of it lacks: no release does that."""
    fault, frames = situation.error.fault, situation.error.frames
    last = frames[-1].installed if frames else ()
    is_own = last[:1] == (situation.top,) and fault.kind is FaultKind.IMPORT and not fault.circular
    return is_own and situation.at is not None and "." in fault.owner


def _explain_mixed_release(situation: NameSituation) -> NameCause:
    """A file of a package asks another for what the release in the log does not have."""
    fault, package, last = situation.error.fault, situation.package, situation.error.frames[-1]
    because = (
        f"{'/'.join(last.installed)}.py asks {fault.owner} for {fault.name}, and both are files of {package}. "
        f"{situation.version}, which the log states, {'has it not' if situation.at != -1 else 'was not read'}; "
        f"{package} has it {situation.describe_releases(situation.place.present)}. No release asks itself for what it "
        "lacks: the folder has files of two releases (an installation over another one), or the notebook goes on "
        "with modules that it imported before an upgrade."
    )
    fixes = [
        advise("Restart the notebook or the process, when the package was installed after the first import"),
        advise(
            f"Reinstall it whole: pip uninstall -y {package} (again, until it is gone), delete what remains of its "
            f"folder, and pip install {package}"
        ),
        *(
            Fix(change={package: text}, note=f"has {situation.place.what}, after that")
            for text in ranges_of_mask(situation.place.present, situation.releases)[-1:]
        ),
    ]
    title = f"The installation of {package} is mixed: its own files are of two releases"
    return situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package)


def _explain_absent_part(situation: NameSituation) -> NameCause:
    """A package's own file asks for a part of it that no release which was read has: old and new files are mixed."""
    fault, package = situation.error.fault, situation.package
    asker = situation.caller.file if situation.caller else f"A file of {package}"
    what = fault.owner if fault.kind is FaultKind.MODULE else f"{fault.owner}.{fault.name}"
    because = (
        f"{asker} and {what} are both parts of {package}, and no release asks itself for what it has not. So files of "
        "two releases are there: an installation over another one, a notebook that imported the older one before an "
        "upgrade and now loads a part of the newer one, or a cache of compiled files."
    )
    fixes = [
        advise(RESTART),
        advise(
            f"Reinstall it whole: pip uninstall -y {package} (again, until it is gone), delete what remains of its "
            f"folder, and pip install {package}"
        ),
    ]
    title = f"{package}'s own file asks for {what}, which is not there: its files are of two releases"
    return situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package)


def _explain_mixed_files(situation: NameSituation) -> NameCause:
    """Files of two releases of a package lie in its folder."""
    fault, package, last = situation.error.fault, situation.package, situation.error.frames[-1]
    because = (
        f"{'/'.join(last.installed)}.py asks {fault.owner} for {fault.name}, and both are files of {package}; in "
        f"every release since {situation.releases[0]} the second has it. So they are of two releases (an installation "
        "over an older one, copied files, a cache of a notebook that was mounted), or one of them is empty or broken."
    )
    again = (
        f"Reinstall it whole: pip uninstall -y {package} (again, until it is gone), delete what remains of its folder, "
        f"and pip install {package}"
    )
    fixes = [advise(again), Fix(change={package: f">={situation.releases[0]}"}, note="after that", cost="an upgrade")]
    title = f"The installation of {package} is mixed or broken: its own files do not fit one another"
    return situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package)


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
    if fault.kind is FaultKind.CONFIGURATION:
        others = ", ".join(place.elsewhere)
        because += f"; other auto classes take it: {others}." if others else "."
        fixes = [advise(f"In your code: {place.elsewhere[0]}" if others else "Use the class that the model card names")]
    elif near:
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
