"""The cause of an error about a name that some releases have and others do not, and which releases to take. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood_diagnose.failures.logs.logged_errors import FaultKind
from knowngood_diagnose.failures.names.name_situation import (
    NameCause,
    NameSituation,
    advise,
    place_of_version,
    ranges_of_mask,
    releases_without_use,
    runs_around,
)
from knowngood_facts.compat.incident import Fix, IncidentKind

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVERYWHERE = frozenset(("torch", "numpy", "packaging", "safetensors", "tokenizers"))
"""Packages without which nothing of these trains: that one of them is missing has other signs."""
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
    fixes = [*callee, *caller, *own_code] if too_old else [*own_code, *caller, *reversed(callee)]
    if is_unknown and situation.caller_package and situation.caller_package != situation.package and not caller:
        newer = f"a newer {situation.caller_package}, where it may not ask for it any longer"
        fixes.insert(0, Fix(change={situation.caller_package: "*"}, note=newer))
    if at is None:
        fixes.append(advise(f"pip show {situation.package} says which release runs; give pip freeze's output with -r"))
    component = situation.package if too_old else situation.caller_package or situation.package
    reason = _reason(situation)
    cause = situation.explain(kind, title, reason, fixes, component=component)
    is_of_object = situation.error.fault.kind is FaultKind.OBJECT_ATTRIBUTE
    is_weak = is_of_object and (situation.caller_package == situation.package if situation.error.frames else at is None)
    is_older_python = at is None and not too_old and situation.error.fault.owner in {"__init__", "__new__"}
    is_before_all = at == -1 and not place.possible  # nothing that was read lacks the name
    return replace(cause, is_likely=is_weak or is_older_python or is_before_all)


def explain_older_release(situation: NameSituation) -> NameCause:
    """Say that a release older than all that were read runs, since each of these has the name."""
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
    return replace(cause, is_likely=True)  # which release runs is not stated


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
        parts.append(f"Releases without it have: {', '.join(place.elsewhere)}.")
    if place.words:
        parts.append(f"Its own words: {place.words[0]}.")
    return " ".join(parts)


def _code_fixes(situation: NameSituation) -> Iterator[Fix]:
    """Yield what to write in one's own code, when that is what asks for the name."""
    place, fault = situation.place, situation.error.fault
    if situation.caller is not None and situation.caller.is_remote_code:
        yield advise("A newer revision of the model, or its class in transformers, without trust_remote_code")
    elif not situation.caller_package:
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
