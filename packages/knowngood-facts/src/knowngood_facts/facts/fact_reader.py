"""What a fact reader is: which packages it reads, which file of a release it takes, and what it records.

A package's facts come from one module `facts/<name>_reader.py`. It holds a dataclass, the model of its facts, and
`READERS`, a tuple with one `FactReader` or `TableReader` a package; `find_readers` finds it by its name.
CONTRIBUTING.md shows how to add one. Other rooms import the models, so a reader imports no HTTP library.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.index.artefact import BrokenArchiveError, PublishedFile, UnreadableError
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from packaging.version import Version

    from knowngood.index.artefact import Artefact

Requirements = Mapping[str, str]
"""Canonical package name -> PEP 440 specifier, before it the extras in brackets; an empty one allows everything."""

Functions = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dotted name -> the parameters as in the source without annotations, and how many values its `return`s give.

No number: the source does not show it (the function returns the result of a call). `(1, 3)`: it depends on an argument.
"""


@dataclass
class ReleaseReading:
    """What was read of one release: a reader fills it, the harvest writes it to the facts."""

    facts: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    """Fact -> why it could not be read."""
    again: bool = False
    """Whether the network failed somewhere, so that the next harvest reads this release once more."""
    corrupt: bool = False
    """Whether the index serves an artefact whose hash is not the one that it states."""

    def take(self, name: str, read: Callable[[], Any], *, optional: bool = False) -> Any:
        """Record `read()` as the fact `name` and return it; when it raises or gives `None`, record the reason.

        For an `optional` fact `None` means that the release has no such thing, and needs no reason.
        """
        try:
            value = read()
        except UnreadableError as error:
            self.again |= error.again
            self.corrupt |= isinstance(error, BrokenArchiveError) and error.corrupt
            self.unknown[name] = str(error)
            return None
        except OSError as error:  # the disk of the cache, not the artefact
            self.again = True
            self.unknown[name] = f"this machine could not keep it: {error.strerror or type(error).__name__}"
            return None
        except Exception as error:  # noqa: BLE001 - an artefact can be wrong in any way; the rest is still read
            self.unknown[name] = f"the artefact could not be understood: {type(error).__name__}: {error}"
            return None
        if value is not None:
            self.facts[name] = value
        elif not optional:
            self.unknown[name] = "the artefact does not state it"
        return value

    def take_all(self, name: str, read: Callable[[], Mapping[str, Any]]) -> None:
        """Record every fact that `read()` gives; when it raises, record the reason under `name`."""
        values = self.take(name, read)
        if values is not None:
            del self.facts[name]
            self.facts |= values

    def run(self, read: Callable[[], None]) -> None:
        """Let a reader fill this in. What stops it as a whole is recorded as the reason for `artefact`."""

        def read_whole() -> Mapping[str, Any]:
            read()
            return {}

        self.take_all("artefact", read_whole)


@dataclass(frozen=True, kw_only=True)
class AdditionalWheel:
    """A wheel of each release, the first or another, of which more facts are read; those of the first stay as they are.

    A known release that lacks these facts gets them without being read again, so that adding such a wheel to a reader
    needs no other `revision`.
    """

    choose: Callable[[IndexedRelease], PublishedFile | None]
    """Returns the wheel, or `None` when a release has none."""
    facts: tuple[str, ...]
    """The names of the facts that `read` returns; a failure is recorded under the first."""
    read: Callable[[Artefact], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FactReader:
    """How the releases of one package are read."""

    package: str
    revision: int
    """Raised when `read` changes: releases that an older revision has read are read again."""
    model: type[Any] | None
    """The dataclass of the facts, `read` records only its fields; `None` for facts that are used as plain JSON."""
    choose: Callable[[IndexedRelease], PublishedFile | None]
    """Returns the one artefact that a release is read from, or `None` when it has none."""
    read: Callable[[Artefact, IndexedRelease, ReleaseReading], None]
    accepts: Callable[[Version], bool] = lambda version: not version.is_devrelease
    """Which releases from the floor in matrix.yaml on are of interest."""
    additional: tuple[AdditionalWheel, ...] = ()
    folder: str = ""
    """The folder in `facts/` of its file, for facts about one matter of a package about which nothing else is known."""


@dataclass(frozen=True, kw_only=True)
class TableReader:
    """How a table is read that the newest release of a project contains; its rows are kept like releases."""

    package: str
    """The name of its facts."""
    project: str
    revision: int
    model: type[Any]
    choose: Callable[[IndexedRelease], PublishedFile | None]
    read: Callable[[Artefact], dict[str, dict[str, Any]]]
    """Returns row -> facts."""


def find_readers() -> dict[str, FactReader | TableReader]:
    """Return package -> reader, out of every module of this room that is called `<name>_reader`."""
    names = sorted(module.name for module in pkgutil.iter_modules(facts.__path__) if module.name.endswith("_reader"))
    modules = (importlib.import_module(f"{facts.__name__}.{name}") for name in names if name != "fact_reader")
    return {reader.package: reader for module in modules for reader in module.READERS}


def choose_sdist(release: IndexedRelease) -> PublishedFile | None:
    """Choose the source distribution."""
    return next((file for file in release.files if file.name.endswith(".tar.gz")), None)


def choose_wheel_or_sdist(release: IndexedRelease) -> PublishedFile | None:
    """Choose a pure wheel, or the sdist when there is none."""
    return choose_wheel_by("-py3-none-any")(release) or choose_sdist(release)
