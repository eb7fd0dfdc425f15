"""What is known of one error about a name: the package that owns it, the release that runs, and who asked for it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood_diagnose.failures.logs.logged_errors import CodeFrame, FaultKind, LoggedError
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, IncidentSeverity, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf, NamePlace
    from knowngood_facts.facts.atlas_lookup import AtlasLookup

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


def describe_failure(  # noqa: PLR0913
    incident_id: str,
    kind: IncidentKind,
    component: str,
    *,
    title: str,
    because: str,
    fixes: Sequence[Fix],
    source: str = "the traceback",
    confidence: str = "reported",
) -> Incident:
    """Return a failure that is computed from a log: where no facts stand behind it, it is `reported`."""
    return Incident(
        id=incident_id,
        title=title,
        kind=kind,
        severity=IncidentSeverity.FAILURE,
        component=component,
        because=because,
        fix=tuple(fixes),
        source=(source,),
        confidence=confidence,
    )


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
        from knowngood_facts.facts.atlas_answer import (  # most logs need nothing of the atlas
            describe_spans,
            spans_of_mask,
        )

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


_PASSED_ON = frozenset(
    [
        "_call_impl",
        "_wrapped_call_impl",
        "wrapper",
        "inner",
        "decorate_context",
        "__call__",
        "_fn",
        "new_forward",
        "wrapped_fn",
        "wrapped_func",
    ]
)
"""Functions that pass a call on: the frame above them chose the arguments."""
_PASSES_ALL = lazy_pattern(r"\((?:\w+, ?)?\*(?:args|a|_args), ?\*\*(?:kwargs|kw|_kwargs|k)\)")
"""A line of code that passes on all that it was given, as decorators do."""

_WHOLE_IMPORT = lazy_pattern(r"from [\w.]+ import (?P<names>[\w*][^()\\]*)$")
"""A statement that imports names and ends in its line."""

_OF_TORCH = frozenset(("nn", "autograd", "checkpoint", "_dynamo"))
"""Folders and files of torch that call what they are given."""
REMOTE_CODE = "transformers_modules"
"""The folder in which transformers keeps the code that comes with a model."""


@dataclass(frozen=True, kw_only=True)
class NameCaller:
    """The code that asked for a name."""

    frame: CodeFrame
    module: str = ""
    """Its module, when its package is in the atlas."""
    package: str = ""
    """Its package as pip calls it, or the folder in site-packages; empty for a user's own code."""
    lookup: AtlasLookup | None = None
    is_remote_code: bool = False
    """Whether it came with a model from the hub."""

    @property
    def file(self) -> str:
        """Its file, without what differs between machines."""
        return "/".join(self.frame.installed or self.frame.parts[-2:]) + ".py"


def find_caller(error: LoggedError, shelf: AtlasShelf) -> NameCaller | None:
    """Return the code that asked for the name of an error; `None` when the log has no traceback for it."""
    for frame in reversed(error.frames):
        if frame.function in _PASSED_ON or frame.path.startswith("<") or is_standard_library(frame):
            continue
        if error.fault.kind is FaultKind.KEYWORD and _PASSES_ALL.search(frame.code):
            continue
        if _imports_other_name(error, frame):
            return None
        module = shelf.module_of(frame)
        top = module.partition(".")[0] or (frame.installed[0] if frame.installed else "")
        if top == "torch" and _OF_TORCH.intersection(frame.parts):
            continue
        owner = shelf.owner(top) if top else None
        return NameCaller(
            frame=frame,
            module=module,
            package=owner or top,
            lookup=shelf.open(owner) if owner else None,
            is_remote_code=REMOTE_CODE in frame.parts,
        )
    return None


def _imports_other_name(error: LoggedError, frame: CodeFrame) -> bool:
    """Whether a frame's whole line imports something else: the file that asks for the name is not shown."""
    fault, statement = error.fault, _WHOLE_IMPORT.match(frame.code)
    if fault.kind is not FaultKind.IMPORT or statement is None:
        return False
    return not re.search(rf"\b{re.escape(fault.name)}\b|\*", statement["names"])


def find_chooser(error: LoggedError, shelf: AtlasShelf) -> NameCaller | None:
    """Return the code that chose a keyword: the innermost that writes it, else that passes on no keywords."""
    frames = error.frames
    written = re.compile(rf"\b{re.escape(error.fault.name)}\s?=")
    at = next((at for at in range(len(frames) - 1, -1, -1) if written.search(frames[at].code)), None)
    if at is None:
        passing = re.compile(r"\*\*\w+")
        at = next((at for at in range(len(frames) - 1, -1, -1) if not passing.search(frames[at].code)), None)
    return find_caller(replace(error, frames=frames[: at + 1]), shelf) if at is not None else None


def passes_all_on(frame: CodeFrame) -> bool:
    """Return whether a frame is of a decorator's function, which calls what it wraps with all that it was given."""
    return frame.function in _PASSED_ON and bool(_PASSES_ALL.search(frame.code))


def releases_without_use(caller: NameCaller, place: NamePlace) -> int:
    """Return the caller's releases, as bits, that do not use the name; 0 when no use of it is known."""
    lookup = caller.lookup
    if lookup is None or lookup is place.lookup:
        return 0
    using = 0
    for start in place.uses:
        for module, (target, _, _, mask) in lookup.file.find_rows(start):
            if module.startswith("@") and (not place.keyword or place.keyword in _keywords_of(target)):
                using |= mask
    return lookup.every & ~using if using else 0


def _keywords_of(target: str) -> Iterator[str]:
    yield from target.partition("(")[2].rstrip(")").split(",")[1:]


def is_standard_library(frame: CodeFrame) -> bool:
    """Return whether a frame's file is one of Python's own."""
    parts = frame.parts
    return not frame.installed and any(part.startswith("python3.") for part in parts[-4:-1])


def neighbours_of_version(version: str, releases: Sequence[str]) -> tuple[int, ...]:
    """Return the places of the releases that a version may be like, the older first.

    One when it is among the releases. A version between two of them, such as a withdrawn release, may be like either.
    """
    place = place_of_version(version, releases)
    if place is None:
        return ()
    is_read = place >= 0 and _parsed_releases(tuple(releases))[place] == Version(version.partition("+")[0])
    return (place,) if is_read or place + 1 == len(releases) else (place, place + 1)


def place_of_version(version: str, releases: Sequence[str]) -> int | None:
    """Return the place of a version among releases, oldest first; `None` for a text that is no version.

    A version between two releases, such as a development version, is at the place of the older one; one that is older
    than all is at -1.
    """
    try:
        wanted = Version(version.partition("+")[0])
    except InvalidVersion:
        return None
    return bisect_right(_parsed_releases(tuple(releases)), wanted) - 1


@cache
def _parsed_releases(releases: tuple[str, ...]) -> list[Version]:
    return [Version(text) for text in releases]


def ranges_of_mask(mask: int, releases: Sequence[str]) -> list[str]:
    """Return a specifier for each run of consecutive releases, oldest first: `<4.39.0`, `>=4.43.0,<4.45.0`, `*`."""
    ranges, place = [], 0
    while mask >> place:
        if not mask >> place & 1:
            place += 1
            continue
        end = place
        while mask >> (end + 1) & 1:
            end += 1
        parts = [f">={releases[place]}"] if place else []
        parts += [f"<{releases[end + 1]}"] if end + 1 < len(releases) else []
        ranges.append(",".join(parts) or "*")
        place = end + 1
    return ranges


def runs_around(mask: int, place: int, releases: Sequence[str]) -> tuple[str, str]:
    """Return the nearest run of a mask below a place, and the nearest above it, as specifiers; empty without one."""
    below = mask & ((1 << max(place, 0)) - 1)
    above = mask >> (place + 1) << (place + 1)
    before, after = ranges_of_mask(below, releases), ranges_of_mask(above, releases)
    return (before[-1] if before else ""), (after[0] if after else "")


def list_defining_packages(name: str, shelf: AtlasShelf) -> list[str]:
    """Return the packages of the atlas that define a class of that name, transformers first, from which others copy."""
    packages = sorted(shelf.packages, key=lambda package: package != "transformers")
    lookups = ((package, shelf.open(package)) for package in packages)
    return [package for package, lookup in lookups if lookup and any(True for _ in lookup.definitions_of(name))]


def component_of(caller: NameCaller | None) -> str:
    """Return what is at fault for code of a caller that belongs to no package: the program, or the model."""
    return OwnComponent.MODEL if caller is not None and caller.is_remote_code else OwnComponent.YOUR_CODE


def describe_caller(caller: NameCaller | None, verb: str = "asks for it in") -> str:
    """Return a sentence that says which line asks for the name, with a space before it; empty without a caller."""
    if caller is None:
        return ""
    function = f" {caller.frame.function}" if caller.frame.function.isidentifier() else " its main part"
    return f" {caller.file} {verb}{function}, line {caller.frame.line}."


def build_own_cause(error: LoggedError, *, title: str, because: str, fixes: Sequence[Fix], component: str) -> NameCause:
    """Return a cause that counts only when nothing else explains the last error."""
    incident = describe_failure(
        f"name:{error.fault.text}",
        IncidentKind.API_UNKNOWN,
        component,
        title=title,
        because=because,
        fixes=fixes,
        source="the message, its traceback and the atlas",
    )
    return NameCause(error=error, incident=incident, package=component, is_fallback=True)
