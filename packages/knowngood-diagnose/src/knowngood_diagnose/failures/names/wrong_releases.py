"""The cause of an error about a name that some releases have and others do not, and which releases to take. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.logged_errors import FaultKind
from knowngood_diagnose.failures.names.atlas_shelf import list_optional_imports
from knowngood_diagnose.failures.names.name_situation import (
    NameCause,
    NameSituation,
    advise,
    place_of_version,
    ranges_of_mask,
    releases_without_use,
    runs_around,
)
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood_facts.facts.atlas_answer import describe_spans, spans_of_mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CALL_OTHERS = frozenset(("accelerate", "lightning", "pytorch-lightning", "torch", "transformers"))
"""Packages that call the objects which they are given, and whose frames say nothing of whose they are."""
_MADE_BY_UNSLOTH = frozenset(("unsloth_compiled_cache",))
"""Folders of files that unsloth writes from the source of other packages."""
_EVERYWHERE = frozenset(("torch", "numpy", "packaging", "safetensors", "tokenizers"))
"""Packages without which nothing of these trains: that one of them is missing has other signs."""
_EXAMPLES = frozenset(("examples", "example", "scripts", "recipes"))
"""Folders of a repository with programs that use the package beside them."""
_NAMES_OF_MODELS = frozenset((FaultKind.MODEL_TYPE, FaultKind.KEY, FaultKind.TOKENIZER))
"""The errors whose name comes from a model, which no similar one can replace."""


def explain_wrong_release(situation: NameSituation) -> NameCause:
    """Say whether the release is too old or too new, and offer the package at fault first."""
    place, at = situation.place, situation.at
    if at is None:
        runs = ranges_of_mask(place.present, situation.releases)
        too_old = situation.has_name(len(situation.releases) - 1) and not situation.has_name(0)
        too_old |= 0 < place.possible < place.present & -place.present
        below, above = ("", runs[-1]) if too_old else (runs[0], runs[-1] if len(runs) > 1 else "")
    else:
        below, above = runs_around(place.present, at, situation.releases)
        above = f">={situation.releases[0]}" if at < 0 and above == "*" else above
        too_old = bool(above) and (not below or _is_nearer_above(situation, at))
    if (beside := _explain_import_list(situation)) is not None:
        return beside
    own = f"{situation.package} {situation.version}".rstrip()
    kind, title = IncidentKind.API_REMOVED, f"{own} no longer has {place.what}"
    if is_unknown := at is None and not too_old and (not situation.has_name(0) or place.present & (place.present + 1)):
        title = (
            f"{own} has {place.what} only {situation.describe_releases(place.present)}: an older or a newer one runs"
        )
    if too_old:
        kind, title = IncidentKind.API_NOT_YET, f"{own} does not have {place.what} yet"
    callee = [
        Fix(change={situation.package: text}, note=f"has {place.what}", cost=cost)
        for text, cost in ((above, "an upgrade"), (below, "a pin"))
        if text
    ]
    caller = list(_caller_fixes(situation, too_old=too_old))
    own_code = list(_code_fixes(situation))
    older = _explain_maybe_older(situation) if at is None and not too_old and not is_unknown else None
    if older is not None:
        return older
    if at is None and not too_old and _is_own_example(situation):
        return _explain_example(situation, runs[-1])
    is_older_python = _is_of_older_python(situation) and at is None and not too_old and not is_unknown
    fixes = [*callee, *caller, *own_code] if too_old else [*own_code, *caller, *reversed(callee)]
    if is_unknown and situation.caller_package and situation.caller_package != situation.package and not caller:
        newer = f"a newer {situation.caller_package}, where it may not ask for it any longer"
        fixes.insert(0, Fix(change={situation.caller_package: "*"}, note=newer))
    hidden = list(list_hidden_askers(situation))
    fixes += _hidden_fixes(hidden, too_old=too_old)
    if at is None:
        fixes.append(advise(f"pip show {situation.package} says which release runs; give pip freeze's output with -r"))
    component = situation.package if too_old else situation.caller_package or situation.package
    reason = _reason(situation) + _describe_hidden(hidden)
    if is_older_python:
        oldest = situation.releases[0]
        title = f"{own} has {place.what} {situation.describe_releases(place.present)}: an older or a newer one runs"
        reason += (
            f" Python before 3.10 wrote this message (it names no class), so a release before {oldest}, which was not "
            "read, may run just as well as one that removed it."
        )
        newer = f"has {place.what}, when the one that runs is older"
        fixes.insert(1, Fix(change={situation.package: f">={oldest}"}, note=newer, cost="an upgrade"))
    cause = situation.explain(kind, title, reason, fixes, component=component)
    is_weak = at is None and situation.error.fault.kind is FaultKind.OBJECT_ATTRIBUTE and not situation.error.frames
    is_before_all = at == -1 and not place.possible  # nothing that was read lacks the name
    return replace(cause, is_likely=is_weak or is_older_python or is_before_all)


def _describe_hidden(hidden: Sequence[HiddenAsker]) -> str:
    if not hidden:
        return ""
    shown = ", ".join(asker.words for asker in hidden)
    return (
        " The traceback does not show the file that asks for it. Of the packages that are loaded there, these do: "
        f"{shown}."
    )


def _hidden_fixes(hidden: Sequence[HiddenAsker], *, too_old: bool) -> Iterator[Fix]:
    """Yield the releases of packages that do not ask for a name, where the traceback does not show who asks."""
    for asker in hidden:
        text = asker.older if too_old else asker.newer
        if text:
            note = f"these releases of {asker.package} do not ask for it"
            yield Fix(change={asker.package: text}, note=note, cost="an older release" if too_old else "an upgrade")


def _is_own_example(situation: NameSituation) -> bool:
    """Whether the file that asks is an example in a checkout of the package's own repository."""
    frame = situation.caller.frame if situation.caller else None
    if frame is None or frame.installed:
        return False
    names = {situation.package, situation.package.replace("-", "_"), situation.top}
    parts = frame.parts[:-1]
    place = next((at for at, part in enumerate(parts) if part in _EXAMPLES), 0)
    return any(re.sub(r"-(?:main|master|v?\d[\d.]*)$", "", part) in names for part in parts[max(0, place - 1) : place])


def _explain_example(situation: NameSituation, has: str) -> NameCause:
    """An example of a package's repository, under another release of the package than that of its commit."""
    package, place = situation.package, situation.place
    file = situation.caller.file if situation.caller else "the example"
    because = (
        f"{file} is an example of {package}'s own repository, and asks for {place.what} as that commit of the "
        f"repository has it. The {package} that is imported is another one: an older release (mostly so, when the "
        f"repository was cloned and {package} installed from the index), or a newer one. Of the releases that were "
        f"read, {situation.releases[0]} to {situation.releases[-1]}, these have it: "
        f"{situation.describe_releases(place.present)}."
    )
    fixes = [
        advise(f"Install {package} from the very checkout that has the example: pip install -e . in it"),
        advise(f"Or the example of the release that is installed: pip show {package}, then git checkout of its tag"),
        Fix(
            change={package: f">={situation.releases[0]},{has}" if has[:1] == "<" else has},
            note=f"has {place.what}",
            cost="a pin",
        ),
    ]
    title = f"The {package} that is installed has no {place.what}: it is of another age than its repository's example"
    cause = situation.explain(IncidentKind.API_NOT_YET, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def _is_of_older_python(situation: NameSituation) -> bool:
    """Whether Python before 3.10 wrote of a refused keyword: its message leaves the class out."""
    fault = situation.error.fault
    return fault.kind is FaultKind.KEYWORD and fault.owner in {"__init__", "__new__"}


def _explain_import_list(situation: NameSituation) -> NameCause | None:
    """A line that imports many names, of which no release has all: a file that was generated or mixed.

    `None` where some release has all of those names.
    """
    error, place = situation.error, situation.place
    caller = situation.caller
    made = caller is not None and _MADE_BY_UNSLOTH.intersection(caller.frame.parts)
    if error.fault.kind is not FaultKind.IMPORT or caller is None or not made:
        return None
    because = (
        f"{caller.frame.parts[-1]}.py is no file of the project: unsloth writes it from the source of "
        f"{situation.package}'s trainers and keeps it in {next(iter(made))}. It imports {error.fault.name} from "
        f"{error.fault.owner}, which {situation.package} has {situation.describe_releases(place.present)}"
        + (f", and not in {situation.version}, which the log states" if situation.version else "")
        + ". So the file was written for another release, or this unsloth rewrites that one wrongly."
    )
    fixes = [
        advise("Delete the folder unsloth_compiled_cache, and restart the notebook or the process"),
        Fix(
            change={"unsloth": "*", "unsloth-zoo": "*"},
            note=f"unsloth and unsloth_zoo of the same day, which know this {situation.package}: pip install -U "
            "--force-reinstall --no-deps unsloth unsloth_zoo",
            cost="an upgrade",
        ),
        advise(f"The {situation.package} that this unsloth declares (pip show unsloth, pip check), when it is older"),
    ]
    title = f"unsloth's generated {caller.frame.parts[-1]}.py asks {situation.package} for `{error.fault.name}`"
    title += f", which {situation.version or 'the release that runs'} has not"
    return situation.explain(IncidentKind.API_REMOVED, title, because, fixes, component="unsloth")


def _explain_maybe_older(situation: NameSituation) -> NameCause | None:
    """A keyword that a package passes, which the oldest releases that were read have and the newest lack.

    Python names the first keyword that the function lacks, in the order in which they are passed. The release that
    removed this one removed others too; where such a one stands before it and is not named, it was taken, so that an
    older release runs than all that were read. `None` where no package passes it.
    """
    place, package, asker = situation.place, situation.package, situation.caller_package
    if situation.error.fault.kind is not FaultKind.KEYWORD or not asker or asker == package or not place.keyword:
        return None
    last = place.present.bit_length()
    gone = [name for name, mask in place.names.items() if mask.bit_length() == last]
    before = gone[: gone.index(place.keyword)] if place.keyword in gone else []
    if not before:
        return None
    runs = ranges_of_mask(place.present, situation.releases)
    oldest, newest = situation.releases[0], situation.releases[last - 1]
    because = (
        f"{package} has {place.what} from {oldest} (what was before was not read) to {newest}, and the log does not "
        f"say which one runs. Python names the first keyword that is not taken. The release after {newest} removed "
        f"{', '.join(before)} too, which {situation.caller.file if situation.caller else asker} mostly passes before "
        "it and which is not named: so an older release runs."
    )
    fixes = [
        Fix(
            change={package: f">={oldest}{''.join(f',{text}' for text in runs[0].split(',') if text[:1] == '<')}"},
            note=f"has {place.what}",
            cost="an upgrade",
        ),
        *_caller_fixes(situation, too_old=True),
        Fix(change={asker: "*"}, note=f"a newer {asker}, when the {package} that runs is newer than {newest}"),
        advise(f"pip show {package} says which release runs; give pip freeze's output with -r"),
    ]
    title = f"{package} does not have {place.what} yet, which {asker} passes"
    cause = situation.explain(IncidentKind.API_NOT_YET, title, because, fixes, component=package)
    return replace(cause, is_likely=True)


def explain_class_of_caller(situation: NameSituation) -> NameCause | None:
    """Say whose class lacks what a package asks of its objects: a release does not ask its own class for what it lacks.

    The class is another package's of the same name, or derives from it; `None` where the traceback shows no other.
    """
    error, package = situation.error, situation.package
    is_own_question = error.fault.kind is FaultKind.OBJECT_ATTRIBUTE and situation.caller_package == package
    if not is_own_question or situation.version or situation.place.derived:
        return None
    if (unset := explain_unset_attribute(situation)) is not None:
        return unset
    others = (
        situation.shelf.owner(top) or situation.shelf.distribution_of(top) or top
        for frame in reversed(error.frames)
        if (top := next(iter(frame.installed), ""))
    )
    other = next((name for name in others if name and name not in {package, *_CALL_OTHERS}), "")
    if not other:
        return None
    what = situation.place.what
    free = ranges_of_mask(situation.place.possible, situation.releases)
    because = (
        f"{package} asks for {what}, and so has it in its own class: the object is of a class of {other}, which was "
        f"written for a {package} without it. {package} has it {situation.describe_releases(situation.place.present)}."
    )
    fixes = [Fix(change={other: "*"}, note=f"a newer {other}, written for this {package}")]
    fixes += [Fix(change={package: text}, note=f"does not ask for {what}", cost="a pin") for text in free[-1:]]
    title = f"{other}'s {error.fault.owner} lacks `{error.fault.name}`, for which this {package} asks"
    return situation.explain(IncidentKind.API_REMOVED, title, because, fixes, component=other)


def explain_override(situation: NameSituation) -> NameCause | None:
    """Say that a subclass overrides a method with the arguments of an older release, which its own package calls.

    A package calls its own method as that release has it: where Python refuses the arguments, another class has
    taken the method's place. `None` where the line of code is no call of a method of the object itself.
    """
    error, package, caller = situation.error, situation.package, situation.caller
    method = error.fault.owner.rpartition(".")[2]
    is_call = caller is not None and re.search(rf"\bself\.{re.escape(method)}\(", caller.frame.code)
    if error.fault.kind is not FaultKind.POSITIONS or caller is None or caller.package != package or not is_call:
        return None
    runs = ranges_of_mask(situation.place.possible, situation.releases)
    since = situation.describe_releases(situation.place.present)
    because = (
        f"{caller.file} of {package} calls its own method with {error.fault.name} positional arguments (self among "
        f"them), and so this release's own {method} takes them: {package} does {since}. The object is of a class "
        f"derived from it, which overrides {method} with the arguments of an older {package}."
    )
    older = f"its own {method} takes fewer, as the subclass does"
    fixes = [Fix(change={package: text}, note=older, cost="a pin") for text in runs[-1:]]
    fixes += [
        advise(f"A newer release or commit of what defines the subclass, written for this {package}"),
        advise(f"In your own subclass: def {method}(self, *args, **kwargs), or the parameters that this {package} has"),
    ]
    others = (next(iter(frame.installed), "") for frame in reversed(error.frames))
    tops = (situation.shelf.owner(top) or situation.shelf.distribution_of(top) or top for top in others)
    component = next((top for top in tops if top and top not in {package, *_CALL_OTHERS}), OwnComponent.YOUR_CODE)
    title = f"A subclass of {package}'s class overrides `{method}` with the arguments of an older {package}"
    return situation.explain(IncidentKind.SIGNATURE_CHANGED, title, because, fixes, component=component)


def explain_unset_attribute(situation: NameSituation) -> NameCause | None:
    """A package's own method asks its own object for an attribute that the same release sets in another step.

    `None` where the line of code asks another object, or another package's file has it.
    """
    package, fault, frames = situation.package, situation.error.fault, situation.error.frames
    is_own = fault.kind is FaultKind.OBJECT_ATTRIBUTE and situation.caller_package == package
    if not is_own or not frames or not re.search(rf"\bself\.{re.escape(fault.name)}\b", frames[-1].code):
        return None
    because = (
        f"A method of {package} asks self for {fault.name}, so this release sets it somewhere: only with some option "
        "or mode, in a step that was left out before this one, or only in a class of which this one is a part."
    )
    own = next((frame for frame in reversed(frames) if not situation.shelf.module_of(frame)), None)
    fixes = [
        Fix(change={package: "*"}, note=f"the newest {package}, where such a defect may be mended"),
        advise(f"The options of this run as an example of {package} has them: the one that sets {fault.name} is off"),
    ]
    if own is not None and own.code:
        because += f" What calls it is {own.short_file}, line {own.line} ({own.code[:100]})."
        fixes.insert(
            0,
            advise(
                f"Call first what sets {fault.name} (grep -n 'self.{fault.name} =' in {package}'s file shows the "
                f"method), or leave that call of {own.parts[-1]}.py out where the step before it is left out too"
            ),
        )
    title = f"{package}'s {fault.owner} did not set its own `{fault.name}`: a step or an option before it is missing"
    return replace(situation.explain(IncidentKind.CONFIG, title, because, fixes, component=package), is_likely=True)


def explain_older_release(situation: NameSituation) -> NameCause:
    """Say that a release older than all that were read runs, since each of these has the name."""
    if _is_source_folder(situation):
        return _explain_source_folder(situation)
    package, what, place = situation.package, situation.place.what, situation.place
    oldest, newest = situation.releases[0], situation.releases[-1]
    because = (
        f"Every release of {package} from {oldest} to {newest} has {what}, and the log does not say which one runs: "
        f"it is older, or what is imported as {situation.place.lookup.file.root} is not that package."
    )
    if place.refused:
        because = (
            f"{package} has {what} {situation.describe_releases(place.present)}, and the releases without it are not "
            f"for the Python {situation.versions['python'][-1]} of the log: so one before {oldest} runs."
        )
    fixes = [
        Fix(change={package: f">={oldest}"}, note=f"has {what}", cost="an upgrade"),
        advise(
            f"pip install -U {package} takes the newest release for this Python, and one between the two may have it "
            f"already: releases before {oldest} were not read; pip show {package} shows which one runs"
        ),
    ]
    title = f"The {package} that runs does not have {what}, which came with {oldest} or earlier"
    if situation.error.fault.kind is FaultKind.MODULE:
        title = (
            f"The {package} that is imported lacks {what}, which came with {oldest} or earlier: it is older, or there "
            "by halves"
        )
        because += (
            " Or it is there by halves: what is left of an installation that was removed or broke off, the folder of "
            "another package with that name, or one that was compiled without it."
        )
        again = f"Reinstall it whole: pip uninstall {package}, delete what remains of its folder, and install it again"
        fixes.insert(0, advise(again))
    if optional := _list_optional_packages(situation):
        because += (
            f" The module that defines it uses {' and '.join(optional)} where they are installed: releases of that "
            "time offer it only then."
        )
        note = "the older release offers the name where they are there"
        fixes.insert(0, Fix(change=dict.fromkeys(optional, "*"), note=f"{note}: pip install {' '.join(optional)}"))
    is_of_object = situation.error.fault.kind is FaultKind.OBJECT_ATTRIBUTE
    if is_of_object:
        because += (
            " Or the object is of another class with that name, or was made without the step that sets the attribute."
        )
        fixes.append(
            advise(
                f"When the release is not that old: call what sets {situation.error.fault.name} first, or set it "
                "yourself; for code that came with a model, the transformers that its config.json names"
            )
        )
    cause = situation.explain(IncidentKind.API_NOT_YET, title, because, fixes, component=package)
    return replace(cause, is_likely=is_of_object)


def _is_source_folder(situation: NameSituation) -> bool:
    """Whether a file of the package itself misses a module of it, and lies in no folder of installed packages."""
    frames = situation.error.frames
    if situation.error.fault.kind is not FaultKind.MODULE or not frames:
        return False
    return not frames[-1].installed and situation.place.lookup.file.root in frames[-1].parts[:-1]


def _explain_source_folder(situation: NameSituation) -> NameCause:
    """Say that a package is taken from its cloned repository, where what an installation makes is not there."""
    package, root, what = situation.package, situation.place.lookup.file.root, situation.place.what
    folder = situation.error.frames[-1].path.replace("\\", "/").rpartition(f"/{root}/")[0] or "."
    because = (
        f"Every release of {package} that was read has {what}, and the file that asks for it lies in {folder}, not in "
        f"site-packages: Python takes {root} from that cloned folder (the current one, or one in PYTHONPATH). Links, "
        "compiled and generated parts are made by the installation and are not there."
    )
    fixes = [
        advise(f"Start from another folder, so that the installed {package} is imported and not {folder}/{root}"),
        advise(f"Or install the folder as it is meant to be: pip install . (or -e .) in {folder}"),
    ]
    title = f"{root} is imported from its source folder, which has not {what}"
    return situation.explain(IncidentKind.CONFIG, title, because, fixes, component=OwnComponent.YOUR_CODE)


def _list_optional_packages(situation: NameSituation) -> list[str]:
    """The packages which the module that defines a function uses only where they are installed."""
    if situation.error.fault.kind is not FaultKind.IMPORT:
        return []
    presence = situation.place.lookup.find_name(situation.place.dotted)
    home = next((home for home in presence.homes if presence.kinds.get("function")), "")
    tops = list_optional_imports(situation.place.lookup, home.partition(":")[0]) if home else ()
    names = (situation.shelf.owner(top) or situation.shelf.distribution_of(top) for top in tops)
    return [name for name in dict.fromkeys(names) if name and name not in _EVERYWHERE]


def explain_guarded_export(situation: NameSituation) -> NameCause | None:
    """Say that a package offers a name only beside another package, after which the module that defines it is named.

    `accelerate.utils.deepspeed` defines `DummyOptim`, and `accelerate.utils` has it where deepspeed is installed. The
    atlas does not keep the condition of an export, so this is only likely. `None` where no such module defines it, or
    where the log states the release of the other package.
    """
    presence = situation.place.lookup.find_name(situation.place.dotted)
    is_import = situation.error.fault.kind is FaultKind.IMPORT and not situation.error.fault.circular
    for home in presence.homes if is_import else ():
        module = home.partition(":")[0]
        other = situation.shelf.distribution_of(module.rpartition(".")[2])
        if not other or other in {situation.package, *_EVERYWHERE, *situation.versions}:
            continue
        if situation.place.dotted.startswith(f"{module}."):
            continue
        package, what = situation.package, situation.place.what
        has = f"{package} {situation.version} has" if situation.version else f"Each {package} that was read has"
        because = f"{has} {what}, defined in {module}: {package} offers it only where {other} can be imported."
        fixes = [
            Fix(change={other: "*"}, note=f"{package} then offers {what}: pip install {other}"),
            advise(f"python -c 'import {other}' says why it cannot be imported, when it is installed"),
        ]
        title = f"{package} offers {what} only with {other}, which is not installed or cannot be imported"
        cause = situation.explain(IncidentKind.NOT_INSTALLED, title, because, fixes, component=other)
        return replace(cause, is_likely=True)
    return None


def _is_nearer_above(situation: NameSituation, at: int) -> bool:
    above = situation.place.present >> (at + 1)
    below = situation.place.present & ((1 << max(at, 0)) - 1)
    return (above & -above).bit_length() - 1 <= at - below.bit_length()


def _reason(situation: NameSituation) -> str:
    place, version = situation.place, situation.version
    state = f", and not in {version}, which the log states" if version else "; the log does not say which release runs"
    parts = [f"{situation.package} has {place.what} {situation.describe_releases(place.present)}{state}."]
    caller = situation.caller
    if caller is not None and caller.package != situation.package:
        whose = caller.file
        if caller.is_remote_code:
            whose = f"{caller.frame.parts[-1]}.py, which came with the model,"
        elif not caller.package:
            whose = f"your {caller.frame.parts[-1]}.py"
        elif caller.package in situation.versions:
            whose = f"{caller.file} of {caller.package} {situation.versions[caller.package][-1]}"
        parts.append(f"It is {whose} that asks for it.")
    if place.elsewhere:
        other_classes = situation.error.fault.kind is FaultKind.CONFIGURATION
        label = "Other auto classes take it" if other_classes else "Releases without it have"
        parts.append(f"{label}: {', '.join(place.elsewhere)}.")
    if place.words:
        parts.append(f"Its own words: {place.words[0]}.")
    return " ".join(parts)


def _code_fixes(situation: NameSituation) -> Iterator[Fix]:
    """Yield what to write in one's own code, when that is what asks for the name."""
    place, fault = situation.place, situation.error.fault
    if situation.caller is not None and situation.caller.is_remote_code:
        yield advise("A newer revision of the model, or its class in transformers, without trust_remote_code")
    elif not situation.caller_package or fault.kind is FaultKind.ARGUMENT:
        if place.successor:
            yield advise(f"In your code: {place.successor} in place of {fault.name}")
        elif place.elsewhere:
            yield advise(f"In your code: {place.elsewhere[0]}")
        elif (
            fault.kind not in _NAMES_OF_MODELS
            and not (situation.caller is None and fault.owner == "__init__")
            and (near := situation.near_name()) not in {"", fault.name}
        ):
            yield advise(f"In your code: {near}, the nearest name in that release")


def _caller_fixes(situation: NameSituation, *, too_old: bool) -> Iterator[Fix]:
    """Yield the releases of the calling package that do not use the name."""
    caller = situation.caller
    if caller is None or caller.lookup is None or caller.is_remote_code:
        return
    free = releases_without_use(caller, situation.place)
    if not free:
        return
    releases = caller.lookup.file.releases
    places = (place_of_version(text, releases) for text in situation.versions.get(caller.package, ()))
    at = next((place for place in places if place is not None), None)
    if at is None:
        ranges = ranges_of_mask(free, releases)
        chosen = ranges[0] if too_old else ranges[-1] if free >> (len(releases) - 1) & 1 else ""
    else:
        below, above = runs_around(free, at, releases)
        chosen = below if too_old else above
    if chosen and chosen != "*":
        note = f"these releases of {caller.package} do not ask for {situation.place.what}"
        yield Fix(change={caller.package: chosen}, note=note, cost="an older release" if too_old else "an upgrade")


_FROM = lazy_pattern(r"from (?P<module>[A-Za-z_][\w.]*) import ")
_MOST = 3
"""Of more packages, none is known to be the one."""


@dataclass(frozen=True, kw_only=True)
class HiddenAsker:
    """A package of which some releases ask for a name."""

    package: str
    words: str
    """The package with those releases."""
    older: str = ""
    """The releases before those that ask, as a specifier; empty for none."""
    newer: str = ""
    """The releases behind them."""


def list_hidden_askers(situation: NameSituation) -> Iterator[HiddenAsker]:
    """Yield the packages that ask for the name, and that a package of the traceback loads.

    Where a file of the traceback asks for it, there are none.
    """
    error, shelf = situation.error, situation.shelf
    if situation.caller is not None or not error.frames or error.fault.kind is not FaultKind.IMPORT:
        return
    statement = _FROM.match(error.frames[-1].code)
    loader = shelf.lookup_of(statement["module"]) if statement else None
    if loader is None:
        return
    askers = []
    for package in shelf.packages:
        lookup = shelf.open(package)
        if lookup is None or package == situation.package:
            continue
        using = 0
        for start in situation.place.uses:
            for module, (_, _, _, mask) in lookup.file.find_rows(start):
                using |= mask if module.startswith("@") else 0
        free = lookup.every & ~using
        root = lookup.file.root
        if not using or not any(True for _ in loader.file.search_rows(root)):
            continue
        releases = lookup.file.releases
        ranges = ranges_of_mask(free, releases)
        askers.append(
            HiddenAsker(
                package=package,
                words=f"{package} {describe_spans(spans_of_mask(using, releases))}",
                older=ranges[0] if free & 1 and ranges else "",
                newer=ranges[-1] if free >> (len(releases) - 1) & 1 and ranges else "",
            )
        )
    yield from askers if len(askers) <= _MOST else ()
