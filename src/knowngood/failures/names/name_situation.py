"""What is known of one error about a name: the package that owns it, the release that runs, the caller. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from knowngood.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.name_callers import NameCaller, find_caller
from knowngood.failures.names.release_places import neighbours_of_version, ranges_of_mask
from knowngood.failures.names.two_checkouts import find_two_checkouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.failures.names.atlas_shelf import AtlasShelf, NamePlace

_LIKENESS = 0.75
"""How alike two names must be, as `difflib` counts, for one to be offered for the other."""
_ABOUT_CLASSES = frozenset((FaultKind.KEYWORD, FaultKind.OBJECT_ATTRIBUTE))
"""The errors that name a class without its module."""


@dataclass(frozen=True, kw_only=True)
class NameCause:
    """An error about a name, explained."""

    error: LoggedError
    incident: Incident
    package: str
    """The package whose release decides."""
    version: str = ""
    """Its version in the log that lacks the name; empty when the log states none."""
    is_fallback: bool = False
    """Whether it counts only when nothing else explains the last error of the log."""
    is_likely: bool = False
    """Whether a single weak sign speaks for it: a class's name without a version and a traceback, an unknown module."""

    @property
    def line(self) -> int:
        """The number of the error's line in the log."""
        return self.error.line


def advise(text: str) -> Fix:
    """Return a remedy that changes no package."""
    return Fix(note=text, change={})


@dataclass(frozen=True, kw_only=True)
class NameSituation:
    """An error, the place of its name in the atlas, and what the log says about versions."""

    error: LoggedError
    place: NamePlace
    versions: Mapping[str, Sequence[str]]
    shelf: AtlasShelf

    @property
    def package(self) -> str:
        """The package that owns the name."""
        return self.place.lookup.file.package

    @property
    def releases(self) -> Sequence[str]:
        """Its releases that were read, oldest first."""
        return self.place.lookup.file.releases

    @property
    def top(self) -> str:
        """The top-level module that the message names."""
        return self.error.fault.owner.partition(".")[0]

    @cached_property
    def caller(self) -> NameCaller | None:
        """The code that asked for the name; `None` without a traceback."""
        return find_caller(self.error, self.shelf)

    @property
    def caller_package(self) -> str:
        """The package of the calling code; empty for a user's own, and for code that came with a model."""
        return self.caller.package if self.caller and not self.caller.is_remote_code else ""

    @cached_property
    def installed(self) -> tuple[str, int] | None:
        """The version in the log that lacks the name, else the last that is stated; with its place among releases.

        A version that was not read is taken for the neighbour that lacks the name, since the log says that it does.
        """
        best: tuple[str, int] | None = None
        for version in self.versions.get(self.package, ()):
            for place in neighbours_of_version(version, self.releases):
                if best is None or not self.has_name(place) or self.has_name(best[1]):
                    best = version, place
        return best

    @property
    def version(self) -> str:
        """The version that decides, or empty when the log states none."""
        return self.installed[0] if self.installed else ""

    @property
    def at(self) -> int | None:
        """The place of that version among the releases."""
        return self.installed[1] if self.installed else None

    def has_name(self, place: int) -> bool:
        """Whether the release at a place has the name; one older than all that were read is taken to lack it."""
        return place >= 0 and bool(self.place.present >> place & 1)

    @property
    def is_older_than_read(self) -> bool:
        """Whether the error alone shows a release before all that were read, when each of these has the name.

        A module or a key that is not found is not there. A keyword or an attribute is not there either, where the
        class is one that users know by its name; but another class may have the same name.
        """
        if self.at is not None or self.place.possible or self.place.derived:
            return False
        kind, parts = self.error.fault.kind, self.place.dotted.split(".")
        if kind in {FaultKind.MODULE, FaultKind.MODEL_TYPE, FaultKind.KEY}:
            return True
        if kind is FaultKind.MODULE_ATTRIBUTE:  # where the package's own installed file asks, nothing hides it
            last = self.error.frames[-1] if self.error.frames else None
            return last is not None and last.installed[:1] == (self.error.fault.owner,)
        return kind in _ABOUT_CLASSES and parts[0] == self.place.lookup.file.root and parts[1][:1].isupper()

    def describe_releases(self, mask: int) -> str:
        """Return `until 4.38.2, 4.45.0 to 4.46.3` for releases."""
        from knowngood.facts.atlas_answer import describe_spans, spans_of_mask  # most logs need nothing of the atlas

        return describe_spans(spans_of_mask(mask, self.releases))

    def near_name(self) -> str:
        """Return the most similar name in the release that runs, or in the newest; empty when none is similar.

        It may be what a name was changed into.
        """
        from difflib import get_close_matches  # only here, because its import takes a while

        return next(iter(get_close_matches(self._wanted, self._names(), 1, _LIKENESS)), "")

    def mistyped_name(self) -> str:
        """Return the name that a few wrong letters turn into the one of the error; empty when there is none."""
        return find_nearest_name(self._wanted, self._names()) or ""

    @property
    def _wanted(self) -> str:
        return self.error.fault.owner if self.error.fault.kind is FaultKind.MODULE else self.error.fault.name

    def _names(self) -> list[str]:
        """What is in the same place in the release that runs, or in the newest."""
        releases = 1 << (self.at if self.at is not None and self.at >= 0 else len(self.releases) - 1)
        return [name for name, mask in self.place.names.items() if mask & releases]

    def explain(
        self, kind: IncidentKind, title: str, because: str, fixes: Sequence[Fix], *, component: str
    ) -> NameCause:
        """Return the cause in the form of an incident."""
        place = self.place
        path = self.error.fault.path
        is_own = bool(path) and "-packages" not in path
        if is_own and (copies := find_two_checkouts(self.error.frames[:1], path)) is not None:
            because, fixes = because + copies.words, [copies.fix, *fixes]
        possible = ranges_of_mask(place.possible, self.releases) if place.present and place.possible else []
        dotted = f"{place.dotted.removesuffix('.__init__')}({place.keyword})" if place.keyword else place.dotted
        incident = Incident(
            id=f"name:{dotted}",
            title=title,
            kind=kind,
            severity=IncidentSeverity.FAILURE,
            component=component,
            affected=tuple(
                {self.package: SpecifierSet("" if text == "*" else text, prereleases=True)} for text in possible
            ),
            because=because,
            fix=tuple(fixes),
            source=(f"{self.package} {self.releases[0]} to {self.releases[-1]}: knowngood api {place.dotted}",),
            confidence="artefact",
        )
        return NameCause(error=self.error, incident=incident, package=self.package, version=self.version)
