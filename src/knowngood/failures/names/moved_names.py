"""A name that every release which was read has in another place: it was moved before the oldest of them. Pure."""

from __future__ import annotations

from knowngood.compat.incident import Fix, IncidentKind, OwnComponent
from knowngood.failures.logs.logged_errors import FaultKind
from knowngood.failures.names.atlas_shelf import FOLDERS_OF_PROJECTS
from knowngood.failures.names.name_situation import NameCause, NameSituation, advise

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
