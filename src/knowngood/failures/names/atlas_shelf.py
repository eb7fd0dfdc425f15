"""The atlas of all packages, asked by modules and by the files of a traceback. Pure, except for what it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.module_packages import find_distribution


@dataclass(frozen=True, kw_only=True)
class AtlasShelf:
    """The atlas of all packages."""

    open: Callable[[str], AtlasLookup | None]
    """Opens the atlas of a package."""
    owner: Callable[[str], str | None]
    """Returns the package of a top-level module."""
    packages: Sequence[str] = ()
    distributions: Collection[str] = ()
    """The packages that there is metadata about, in the atlas or not."""
    pythons: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Returns release -> the Pythons that it takes, for a package."""

    installed: Callable[[], Mapping[str, str]] = dict
    """Returns module -> the distribution that installs it, as wheels' lists of files have it."""

    def distribution_of(self, module: str) -> str | None:
        """Return the distribution that has a module, or `None`."""
        return find_distribution(module, self.distributions, self.installed())

    def lookup_of(self, module: str) -> AtlasLookup | None:
        """Return the atlas of the package that has a module, or `None`."""
        package = self.owner(module.partition(".")[0])
        return self.open(package) if package else None

    def module_of(self, frame: CodeFrame) -> str:
        """Return the module of a frame's file when its package is in the atlas, else an empty text.

        A file of a checkout counts when a folder in its path has the name of the package's top-level module, and the
        package has such a module.
        """
        parts = frame.installed
        if not parts:
            every = frame.parts
            places = [place for place, part in enumerate(every[:-1]) if self.owner(part)]
            parts = every[places[-1] :] if places else ()
        if not parts or self.owner(parts[0]) is None:
            return ""
        module = parts[:-1] if parts[-1] == "__init__" else parts
        return ".".join(module) if frame.installed or self._has_module(module) else ""

    def _has_module(self, parts: Sequence[str]) -> bool:
        """Whether a release has a module, or one beside it in a folder of its own.

        A project's own folder may be called `datasets` or `evaluate`.
        """
        lookup = self.lookup_of(parts[0])
        folder = parts[:-1] if len(parts) > 2 else parts
        return lookup is None or any(lookup.find_name(".".join(names)).present for names in (parts, folder))
