"""From which other package a class has a method that it does not define itself. Pure.

Bases are followed through imports and the caller's own classes, in the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from knowngood.facts.atlas_file import RowKind
from knowngood.facts.atlas_lookup import AtlasLookup

_DEPTH = 8
"""How many classes are followed one after another."""

OpenAtlas = Callable[[str], AtlasLookup | None]
"""Gives the atlas that has a top-level module, or `None`."""


class BaseMethods:
    """Follows the bases of one package's classes."""

    def __init__(self, caller: AtlasLookup, open_callee: OpenAtlas) -> None:
        self._caller = caller
        self._open = open_callee
        self._rows: dict[str, dict[str, list[tuple[str, str, int]]]] = {}
        self._homes: dict[tuple[str, str], dict[str, int]] = {}

    def find_owners(self, module: str, owner: str, method: str) -> dict[str, int]:
        """Return `lib.part:Base` -> releases of the caller in which `super().method` in a class is that base's.

        Bases of packages that the atlas does not have, and methods that the caller's own classes define, are left out.
        """
        owners: dict[str, int] = {}
        self._walk(module, owner, method, self._caller.every, owners, _DEPTH)
        return owners

    def list_ancestors(self, module: str, owner: str, depth: int = _DEPTH) -> Iterator[tuple[str, str, int]]:
        """Yield module, class and releases of a class and of those of its ancestors that are the package's own."""
        yield module, owner, self._caller.every
        for bases, mask in self._classes(module, owner) if depth else ():
            for base in bases:
                for home, releases in self._find_homes(module, base).items():
                    if self._is_own(home):
                        place, _, name = home.partition(":")
                        for other, path, both in self.list_ancestors(place, name, depth - 1):
                            yield other, path, both & releases & mask

    def _walk(  # noqa: PLR0913, PLR0917 - one step through the tree of bases
        self, module: str, owner: str, method: str, mask: int, owners: dict[str, int], depth: int
    ) -> int:
        """Add to `owners` for the releases in `mask`; return those that are settled, by whomever."""
        settled = 0
        for bases, releases in self._classes(module, owner) if depth else ():
            todo = mask & releases
            for base in bases:
                for home, there in self._find_homes(module, base).items():
                    here = todo & there
                    if here:
                        done = self._settle(home, method, here, owners, depth)
                        todo &= ~done
                        settled |= done
        return settled

    def _settle(self, home: str, method: str, mask: int, owners: dict[str, int], depth: int) -> int:
        """Look for a method in one base; return the releases in which it has it, or may have it."""
        place, _, name = home.partition(":")
        if self._is_own(home):
            defined = mask & self._releases_with(place, f"{name}.{method}")
            return defined | self._walk(place, name, method, mask & ~defined, owners, depth - 1)
        callee = self._open(place.partition(".")[0])
        if callee is None:
            return mask
        presence = callee.find_name(f"{place}.{name}.{method}")
        if not presence.present:
            return mask if presence.unclear else 0
        owners[home] = owners.get(home, 0) | mask
        return mask

    def _releases_with(self, module: str, path: str) -> int:
        releases = 0
        for _, _, mask in self._read(module).get(path, ()):
            releases |= mask
        return releases

    def _is_own(self, home: str) -> bool:
        return home.partition(":")[0].partition(".")[0] == self._caller.file.root

    def _classes(self, module: str, owner: str) -> Iterator[tuple[list[str], int]]:
        """Yield the bases of a class, as written, with the releases."""
        for kind, bases, mask in self._read(module).get(owner, ()):
            if kind == RowKind.CLASS:
                yield [base for base in bases.split(",") if base not in {"", "?", "object"}], mask

    def _find_homes(self, module: str, base: str) -> dict[str, int]:
        """Return where a base is defined: `module:Class` -> releases; empty for builtins and the standard library."""
        key = (module, base)
        if key not in self._homes:
            homes = self._caller.find_name(f"{module}.{base}").homes
            self._homes[key] = {home: mask for home, mask in homes.items() if ":" in home}
        return self._homes[key]

    def _read(self, module: str) -> dict[str, list[tuple[str, str, int]]]:
        if module not in self._rows:
            rows = self._rows[module] = dict[str, list[tuple[str, str, int]]]()
            for path, kind, detail, mask in self._caller.file.rows(module):
                rows.setdefault(path, []).append((kind, detail, mask))
        return self._rows[module]
