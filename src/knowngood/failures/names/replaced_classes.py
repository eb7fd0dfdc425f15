"""An attribute that a class lacks, and that another class of its module had, which newer releases have no more. Pure.

A new main release of a package may give objects of another class where an older one gave the first: pydantic 2 has
FieldInfo in the place of ModelField.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.compat.incident import Fix
from knowngood.facts.atlas_rows import RowKind
from knowngood.failures.names.name_situation import NameCaller, NameCause, advise, build_own_cause, describe_caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood.facts.atlas_lookup import AtlasLookup
    from knowngood.failures.logs.logged_errors import LoggedError
    from knowngood.failures.names.atlas_shelf import AtlasShelf

_MEMBERS = frozenset((RowKind.ATTRIBUTE, RowKind.PROPERTY, RowKind.FUNCTION, RowKind.VALUE))


def explain_replaced_class(
    error: LoggedError, owners: Sequence[str], caller: NameCaller | None, shelf: AtlasShelf
) -> NameCause | None:
    """Return which class of an older release had the attribute; `None` where no class of the module had.

    Args:
        error: an error about an attribute that no release gives to its class.
        owners: the packages that have a class of that name.
        caller: the code that asks.
        shelf: the atlas of all packages.
    """
    for package in owners:
        lookup = shelf.open(package)
        older_class = _find_older_class(lookup, error) if lookup else None
        if lookup and older_class:
            return _describe(error, lookup, *older_class, caller)
    return None


def _find_older_class(lookup: AtlasLookup, error: LoggedError) -> tuple[str, int] | None:
    """The class that had the attribute and is gone, with its releases, all of them older than the newest."""
    owner, name = error.fault.owner, error.fault.name
    modules = {home.partition(":")[0] for home, _ in lookup.definitions_of(owner)}
    for module, (path, kind, _, mask) in lookup.file.search_rows(name):
        other, _, member = path.rpartition(".")
        is_other = member == name and other.isidentifier() and other != owner and kind in _MEMBERS
        if not is_other or module not in modules:
            continue
        if (
            _ends_with_series(lookup.find_name(f"{module}.{other}").present, lookup.file.releases)
            and lookup.find_name(f"{module}.{owner}").present & ~mask
        ):
            return other, mask
    return None


def _ends_with_series(mask: int, releases: Sequence[str]) -> bool:
    """Whether the last of some releases ends a main release: from one to the next a package may be rewritten."""
    last = mask.bit_length() - 1
    if not 0 <= last < len(releases) - 1:
        return False
    return Version(releases[last]).major != Version(releases[last + 1]).major


def _describe(error: LoggedError, lookup: AtlasLookup, other: str, mask: int, caller: NameCaller | None) -> NameCause:
    package, owner, name = lookup.file.package, error.fault.owner, error.fault.name
    newest = lookup.file.releases[mask.bit_length() - 1]
    asker = caller.package if caller and caller.package != package else ""
    because = (
        f"{name} is an attribute of {other}, which {package} has until {newest}. Newer releases have objects of "
        f"{owner} in their place, without {name}: the {package} that runs is too new for the code that asks."
        f"{describe_caller(caller)}"
    )
    fixes = [Fix(change={package: f"<={newest}"}, note=f"still has {other}, with {name}", cost="a pin")]
    if asker:
        fixes.append(Fix(change={asker: "*"}, note=f"a newer {asker}, written for the {package} that is there"))
    else:
        fixes.append(advise(f"A newer release of the package whose file asks, written for the {package} that is there"))
    title = f"This {package} is too new: {owner} has no `{name}`, which {other} had until {newest}"
    return build_own_cause(error, title=title, because=because, fixes=fixes, component=package)
