"""Whether the range of an incident is the one that follows from the tables of broken uses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from knowngood_facts.compat.incident import Incident, IncidentUse
from knowngood_facts.facts.broken_use_answer import describe_releases
from knowngood_facts.facts.broken_use_table import BrokenUseTable


def find_range_drifts(incidents: Iterable[Incident], read_table: Callable[[str], BrokenUseTable | None]) -> list[str]:
    """Return a sentence for each incident with `uses` whose range is not that of the releases that break that use.

    A range may leave out a whole span of releases: there the failure has other words, such as those of a module that is
    not there yet. `read_table` gives the table of a caller, or `None`. Releases that the atlas does not have are not
    looked at.
    """
    return [
        text for incident in incidents if incident.uses and (text := _find_drift(incident, incident.uses, read_table))
    ]


def _find_drift(
    incident: Incident, uses: IncidentUse, read_table: Callable[[str], BrokenUseTable | None]
) -> str | None:
    table = read_table(uses.caller)
    broken: dict[str, int] = {}
    for callee, rows in table.uses.items() if table else ():
        for use in rows:
            if (use.target, use.detail) == (uses.target, uses.detail):
                broken[callee] = broken.get(callee, 0) | use.callees
    start = f"incidents/{incident.id}.yaml: "
    if table is None or not broken:
        return f"{start}no release breaks {uses.target} {uses.detail}".rstrip() + f" in {uses.caller}"
    for callee, mask in broken.items():
        releases = table.callees[callee]
        covered = 0
        for combination in incident.affected:
            if callee in combination:
                inside = (place for place, version in enumerate(releases) if combination[callee].contains(version))
                covered |= sum(1 << place for place in inside)
        if (
            not covered
            or covered & ~mask
            or any(0 < (covered & span).bit_count() < span.bit_count() for span in _spans(mask))
        ):
            return (
                f"{start}affected has {callee} {describe_releases(covered, releases) or 'never'}, but its use by "
                f"{uses.caller} breaks {describe_releases(mask, releases)}"
            )
    return None


def _spans(mask: int) -> Iterator[int]:
    """Yield the runs of neighbouring releases in a mask, each as a mask."""
    while mask:
        lowest = mask & -mask
        span = mask & ~(mask + lowest)
        yield span
        mask &= ~span
