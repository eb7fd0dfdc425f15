"""The cause of an error with which a package refuses the release of another, or misses it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood_diagnose.failures.names.message_causes import MessageCause
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Fix, IncidentKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf

_NAME = r"[`'\"]?(?P<name>[A-Za-z][\w.-]*?)[`'\"]?"
_INSTALLED = r"(?P<installed>\d[\w.+]*\w)"
_DEMANDS = (
    lazy_pattern(
        rf"{_NAME}(?P<range>[<>=!~]=?[\w.,<>=!~*]+) is required for a normal functioning of this module, but found "
        rf"(?P=name)==(?P<installed>\d[\w.+]*\w)"
    ),
    lazy_pattern(
        rf"Found an incompatible version of {_NAME}\. Found version {_INSTALLED}, but only versions? above "
        r"(?P<above>\d[\w.]*\w) (?:is|are) supported"
    ),
    lazy_pattern(
        rf"requires? {_NAME} ?(?:version )?(?P<range>[<>=!~]=? ?\d[\w.]*\w(?:, ?[<>=!~]=? ?\d[\w.]*\w)*)[`'\"]?,? "
        rf"(?:but|and) (?:found|got|you have|version|the installed version is|is installed)[^\d]{{0,40}}?{_INSTALLED}"
    ),
)
_PLAIN_DEMAND = lazy_pattern(
    rf"requires? {_NAME} ?(?:version )?(?P<range>[<>=!~]=? ?\d[\w.]*\w(?:, ?[<>=!~]=? ?\d[\w.]*\w)*)"
)
"""A demand that does not say what is installed: the log may state it elsewhere."""
_LEAST_DEMAND = lazy_pattern(
    rf"(?:requires?|needs?|install|upgrade to) (?:at least )?{_NAME} ?(?:version )?v?(?P<least>\d[\w.]*\w)"
    r"(?: ?\+| (?:or|and) (?:higher|newer|later|above|greater|up))"
)
"""A demand in words, which mostly leaves open what is installed."""
_OTHER_NAMES = {"pytorch": "torch"}
_OPTIONAL = lazy_pattern(r"^_?is_\w+_available$")
_CHECKS_ITSELF = "transformers"
"""The package whose check of its own requirements others have copied, when no traceback says who checks."""
_NO_PACKAGES = frozenset(("python", "cuda"))


def explain_version_demand(  # noqa: PLR0911 - one for each thing that a demand may lack
    error: LastError, shelf: AtlasShelf, versions: Mapping[str, Sequence[str]] | None = None
) -> MessageCause | None:
    """Return which package wants another release of which; `None` for an error that does not say so.

    Args:
        error: the last error of the log.
        shelf: the atlas of all packages.
        versions: package -> the versions in the log, for a demand that does not say what is installed.
    """
    patterns = (*_DEMANDS, _PLAIN_DEMAND, _LEAST_DEMAND) if versions else (*_DEMANDS, _LEAST_DEMAND)
    demand = next(filter(None, (pattern.search(error.message) for pattern in patterns)), None)
    if demand is None:
        return None
    parts = demand.groupdict()
    canonical = canonical_name(demand["name"])
    name = _OTHER_NAMES.get(canonical, canonical)
    installed = parts.get("installed") or next(reversed((versions or {}).get(name, [""])), "")
    least = parts.get("least")
    if not installed and (not least or name not in shelf.packages):
        return None
    wanted = (parts.get("range") or (f">={least}" if least else f">{parts.get('above')}")).replace(" ", "")
    try:
        accepted = SpecifierSet(wanted)
    except InvalidSpecifier:
        return None
    try:
        if name in _NO_PACKAGES or (installed and accepted.contains(installed, prereleases=True)):
            return None
        is_early = (
            bool(installed) and Version(installed).is_prerelease and accepted.contains(Version(installed).base_version)
        )
    except InvalidVersion:
        return None
    frame = error.frames[-1] if error.frames else None
    top = (frame.installed[0] if frame.installed else shelf.module_of(frame).partition(".")[0]) if frame else ""
    asker = shelf.owner(top) or shelf.distribution_of(top) or top or ("" if least else _CHECKS_ITSELF)
    if not asker:
        return _explain_unknown_asker(error, name, wanted, installed)
    fixes = [Fix(change={name: wanted}, note=f"as this {asker} requires")]
    if frame is not None and _OPTIONAL.match(frame.function):
        fixes.append(
            advise(f"pip uninstall {name}, when nothing else needs it: {asker} looks at it only because it is there")
        )
    fixes += [
        Fix(change={asker: "*"}, note=f"or the {asker} that goes with {name} {installed}".rstrip()),
        advise(
            f"python -c 'import {top or asker}; print({top or asker}.__file__)' and pip show {name}, when pip list has "
            "another release: two environments are mixed, or a notebook has to be started again"
        ),
    ]
    because = f"{asker} compares the releases when it runs: it was written for other releases of {name}."
    if is_early:
        because = (
            f"{installed} is a pre-release (a0, rc or dev, as NVIDIA's containers and nightly builds have), which "
            f"counts as older than {Version(installed).base_version} itself, whatever it can do already."
        )
        fixes.insert(
            1, advise(f"A newer container, whose {name} is a later one; or a {asker} that does not ask for it")
        )
    incident = describe_failure(
        f"version-demand:{asker}:{name}",
        IncidentKind.BOUNDS,
        name,
        title=f"{asker} requires {name}{wanted}, and {installed or 'an older one'} is installed",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=name, version=installed)


def _explain_unknown_asker(error: LastError, name: str, wanted: str, installed: str) -> MessageCause:
    """A demand in words, of which the log does not show who says it."""
    because = f"The message says which {name} is needed, for the option or the feature that it names"
    because += f"; the log states {installed}." if installed else ", and so an older one runs."
    note = "as the message asks, with the packages that are built for it"
    fixes = [
        Fix(change={name: wanted}, note=note, cost="an upgrade"),
        advise("Or without that option or feature: its older way, where the program has one"),
    ]
    incident = describe_failure(
        f"version-demand:{name}",
        IncidentKind.BOUNDS,
        name,
        title=f"{name}{wanted} is needed, and {installed or 'an older one'} is installed",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=name, version=installed)


_MISMATCH = lazy_pattern(
    rf"{_NAME} version \(?(?P<one>\d[\w.+]*\w)\)? does not match (?:the )?[`'\"]?(?P<second>[A-Za-z][\w.-]*?)[`'\"]?"
    r"(?: version)? \(?(?P<other>\d[\w.+]*\w)"
)


def explain_mismatch(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return which of two packages, of which the message wants one release, is the older; `None` for other errors."""
    stated = _MISMATCH.search(error.message)
    if stated is None:
        return None
    pair = [(stated["name"], stated["one"]), (stated["second"], stated["other"])]
    try:
        (behind, old), (ahead, new) = sorted(pair, key=lambda item: Version(item[1]))
    except InvalidVersion:
        return None
    behind, ahead = (shelf.distribution_of(name.replace("-", "_")) or canonical_name(name) for name in (behind, ahead))
    incident = describe_failure(
        f"version-mismatch:{behind}:{ahead}",
        IncidentKind.BOUNDS,
        behind,
        title=f"{behind} {old} stayed behind {ahead} {new}: the two must be of one release",
        because="The message compares the two and wants the same release of both; an upgrade moved only one of them.",
        fixes=[
            Fix(change={behind: f"=={new}"}, note=f"the release of {ahead}", cost="an upgrade"),
            Fix(change={ahead: f"=={old}"}, note=f"or the release of {behind}, when something pins that", cost="a pin"),
        ],
    )
    return MessageCause(incident=incident, line=error.line, package=behind, version=old)
