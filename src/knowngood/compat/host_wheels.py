"""Which packages of a query publish no wheel for the processor of its host. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from knowngood.compat.findings import Finding, fact_finding
from knowngood.compat.query import DEFAULT_MACHINE
from knowngood.compat.query_placement import QueryPlacement


def find_missing_host_wheels(placement: QueryPlacement) -> Iterator[Finding]:
    """Yield a warning for each pinned release that has to be compiled on the host, because its wheels are for others.

    A release without a source archive cannot be installed there, which the resolution says. For x86-64 nothing is
    yielded: what has no wheel for it, rules and resolution say.
    """
    machine = placement.machine
    for package in placement.packages if machine != DEFAULT_MACHINE else ():
        known = placement.universe.metadata.find_package(package.name)
        release = known.declarations.releases.get(package.version) if known and package.version else None
        if release is None or not release.has_sdist or not release.wheels:
            continue
        platforms = (tag.rpartition("-")[2] for tag in release.wheels)
        if any("any" in name.split(".") or ("linux" in name and name.endswith(machine)) for name in platforms):
            continue
        name = f"{package.name} {package.version}"
        because = f"{name} has no wheel for Linux on {machine}, only its source archive, which is compiled there"
        pins = {package.name: str(package.version)}
        yield fact_finding(
            f"wheel:{machine}:{package.name}", "warning", pins, because, [f"{name}: its files in the index"]
        )
