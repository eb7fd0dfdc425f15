"""The sources of one caller's guards, looked up for one of its releases at a time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood.facts.atlas_lookup import AtlasLookup


class CallerSources:
    """Finds where a name is defined, and the shortened source of it, and notes for which releases that holds."""

    def __init__(self, caller: AtlasLookup) -> None:
        self.caller = caller
        self.same = caller.every
        """The releases in which all that was looked up since `select_release` is the same."""
        self._bit = 1
        self._sources: dict[str, dict[str, list[tuple[str, int]]]] = {}
        self._homes: dict[str, dict[str, int]] = {}

    def select_release(self, place: int, among: int) -> None:
        """Look into the release at a place; `same` begins with the releases in `among`."""
        self._bit, self.same = 1 << place, among

    def is_among(self, releases: int) -> bool:
        """Return whether the release that is looked into is one of these."""
        return bool(self._bit & releases)

    def find_home(self, module: str, name: str) -> str | None:
        """Return `module:name` of what a name in a module is, or `None` when the release lacks it."""
        dotted = f"{module}.{name}"
        if dotted not in self._homes:
            self._homes[dotted] = self.caller.find_name(dotted).homes
        return self._choose(self._homes[dotted].items())

    def find_source(self, home: str) -> str | None:
        """Return the escaped source of `module:name`, or `None` when the atlas has none."""
        module, _, name = home.partition(":")
        if module not in self._sources:
            table = self._sources[module] = dict[str, list[tuple[str, int]]]()
            for path, kind, detail, mask in self.caller.file.rows(module):
                if kind == RowKind.SOURCE:
                    table.setdefault(path, []).append((detail, mask))
        return self._choose(self._sources[module].get(name, ()))

    def is_own(self, module: str) -> bool:
        """Return whether a module is one of the caller's."""
        return module.partition(".")[0] == self.caller.file.root

    def _choose(self, rows: Iterable[tuple[str, int]]) -> str | None:
        others = 0
        for text, mask in rows:
            if mask & self._bit:
                self.same &= mask
                return text
            others |= mask
        self.same &= ~others
        return None
