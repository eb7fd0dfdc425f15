"""Which of a package's modules are imported when another of them is, by imports under no `if` or `try`. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from knowngood.facts.atlas_lookup import AtlasLookup


def find_reached_modules(caller: AtlasLookup, start: str = "") -> Mapping[str, int]:
    """Return module -> releases, as bits, in which importing `start` imports it too.

    `start` is a module of the caller, with the packages around it; its top-level module when empty.
    """
    reach: dict[str, int] = {}
    todo = [(parent, caller.every) for parent in _with_parents(start or caller.file.root)]
    while todo:
        module, releases = todo.pop()
        new = releases & ~reach.get(module, 0)
        if not new:
            continue
        reach[module] = reach.get(module, 0) | new
        todo += [(other, mask & new) for other, mask in _imports_of(caller, module).items() if mask & new]
    return reach


@cache
def _imports_of(caller: AtlasLookup, module: str) -> Mapping[str, int]:
    """Return the modules that a module imports itself, with the releases."""
    imports: dict[str, int] = {}
    for _, kind, detail, mask in caller.file.rows(module):
        if kind not in {RowKind.IMPORT, RowKind.STAR} or detail.endswith("?"):
            continue
        base, _, name = detail.partition(":")
        if base.partition(".")[0] != caller.file.root:
            continue
        for other in _with_parents(base):
            imports[other] = imports.get(other, 0) | mask
        for other, releases in _modules_of_name(caller, base, name) if name else ():
            imports[other] = imports.get(other, 0) | (mask & releases)
    return imports


def _modules_of_name(caller: AtlasLookup, base: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield the modules that `from base import name` imports beside `base`: a submodule, or what it exports lazily."""
    submodule = f"{base}.{name}"
    for path, kind, _, mask in caller.file.rows(submodule):
        if not path and kind == RowKind.MODULE:
            yield submodule, mask
    for path, kind, detail, mask in caller.file.rows(base):
        if path == name and kind == RowKind.LAZY:
            yield detail, mask


def _with_parents(module: str) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for `a.b.c`: all are imported with it."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
