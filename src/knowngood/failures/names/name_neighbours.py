"""What stands near a name in the atlas: its neighbours, where it moved, and the bases of a class. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from knowngood.facts.atlas_lookup import AtlasLookup, NamePresence
from knowngood.facts.atlas_rows import RowKind


def list_names_in(lookup: AtlasLookup, module: str) -> Iterator[tuple[str, int]]:
    """Yield the names in a module, each with its releases."""
    for path, _, _, mask in lookup.file.rows(module):
        if path.isidentifier():
            yield path, mask


def list_modules_beside(lookup: AtlasLookup, module: str) -> Iterator[tuple[str, int]]:
    """Yield the modules in the folder of a module, each with its releases."""
    folder = module.rpartition(".")[0]
    for name in lookup.file.modules():
        if name.startswith(f"{folder}.") and name.count(".") == module.count("."):
            yield name, lookup.find_name(name).present


def find_other_homes(lookup: AtlasLookup, dotted: str, presence: NamePresence, where: int) -> tuple[str, ...]:
    """Return where releases without a name in its place have one of that name, the most likely place first.

    That is one which the newest release has, in or below the module that had it.
    """
    module, _, name = dotted.rpartition(".")
    newest = 1 << (len(lookup.file.releases) - 1)
    missing = where & ~presence.present
    homes: dict[str, int] = {}
    for home, mask in lookup.definitions_of(name):
        if home not in presence.homes and mask & missing and not home.partition(":")[0].startswith("@"):
            homes[home] = homes.get(home, 0) | (mask & missing)
    best = sorted(
        homes,
        key=lambda home: (
            not homes[home] & newest,
            not (module.count(".") and f"{home.partition(':')[0]}.".startswith(f"{module}.")),
            -homes[home].bit_count(),
            home,
        ),
    )
    return tuple(home.replace(":", ".") for home in best[:3])


def find_moved_module(lookup: AtlasLookup, module: str, presence: NamePresence) -> tuple[str, ...]:
    """Return modules of the same last name that releases without the module have."""
    last, missing = module.rpartition(".")[2], lookup.every & ~presence.present
    others = (name for name in lookup.file.modules() if name.rpartition(".")[2] == last and name != module)
    return tuple(name for name in others if not name.startswith("@") and lookup.find_name(name).present & missing)[:3]


def list_foreign_bases(lookup: AtlasLookup, dotted: str) -> Iterator[str]:
    """Yield the bases of a class that are imported from other packages, as dotted names."""
    todo, known = [dotted], set()
    while todo:
        current = todo.pop()
        for home in lookup.find_name(current).homes:
            module, _, path = home.partition(":")
            if home in known:
                continue
            known.add(home)
            if module.partition(".")[0] != lookup.file.root:
                yield home.replace(":", ".")
                continue
            for name, kind, bases, _ in lookup.file.rows(module):
                if name == path and kind == RowKind.CLASS:
                    todo += [f"{module}.{base}" for base in bases.split(",") if base and base != "?"]


def list_optional_imports(lookup: AtlasLookup, module: str) -> Iterator[str]:
    """Yield the top-level modules of other packages that a module imports only where they are installed."""
    tops: dict[str, None] = {}
    for _, kind, detail, _ in lookup.file.rows(module):
        top = re.split(r"[.:?]", detail, maxsplit=1)[0]
        if kind == RowKind.IMPORT and detail.endswith("?") and top not in {lookup.file.root, ""}:
            tops.setdefault(top)
    yield from (top for top in tops if top not in sys.stdlib_module_names)
