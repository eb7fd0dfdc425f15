"""Which packages may ask for a name where the traceback ends in a file that asks for something else. Pure.

transformers and diffusers load their parts only when one is asked for, and shorten the error of a part to its last
line: the frames above are those of the program that asked for the part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.facts.atlas_answer import describe_spans, spans_of_mask
from knowngood.failures.logs.logged_errors import FaultKind
from knowngood.failures.names.name_situation import ranges_of_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood.failures.names.name_situation import NameSituation

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
