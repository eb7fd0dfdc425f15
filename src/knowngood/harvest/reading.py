"""One release being read: facts as they come, and for those that do not come, the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import BuildTag, parse_wheel_filename

from knowngood.harvest.index import File, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packaging.version import Version

    from knowngood.harvest.artefact import Artefact


@dataclass(frozen=True, kw_only=True)
class Published:
    """A release as the index lists it."""

    project: str
    version: Version
    files: tuple[File, ...]

    @property
    def yanked(self) -> bool:
        """A release is withdrawn when all its files are."""
        return all(file.yanked for file in self.files)

    @property
    def requires_python(self) -> str | None:
        """What the index states beside the files."""
        return next((file.requires_python for file in self.files if file.requires_python), None)


@dataclass
class Reading:
    """What a reader found; the reader fills it, the harvest writes it."""

    facts: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    again: bool = False
    """The network failed somewhere: the next harvest reads this release once more."""

    def take(self, name: str, read: Callable[[], Any], *, optional: bool = False) -> Any:
        """Keep and return `read()` under `name`; when it raises, or is `None`, keep the reason.

        `None` of an `optional` fact means that the release has no such thing, which needs no reason.
        """
        try:
            value = read()
        except Unreadable as error:
            self.again |= error.again
            self.unknown[name] = str(error)
            return None
        except OSError as error:  # the cache's disk, not the artefact
            self.again = True
            self.unknown[name] = f"this machine could not keep it: {error.strerror or type(error).__name__}"
            return None
        except Exception as error:  # noqa: BLE001 - an artefact can be wrong in any way; the rest is still read
            self.unknown[name] = f"the artefact could not be understood: {type(error).__name__}: {error}"
            return None
        if value is None and optional:
            return None
        if value is None:
            self.unknown[name] = "the artefact does not state it"
            return None
        self.facts[name] = value
        return value

    def run(self, read: Callable[[], None]) -> None:
        """Let a reader fill this in; what stops it as a whole is kept as the reason for `artefact`."""

        def whole() -> bool:
            read()
            return True

        self.take("artefact", whole)
        self.facts.pop("artefact", None)

    def missing(self, names: Sequence[str], reason: str) -> None:
        """Say for several facts at once why they are not known."""
        self.unknown.update(dict.fromkeys(names, reason))


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How one package is read."""

    package: str
    revision: int
    """Raised when `read` changes: releases read by an older revision are read anew."""
    choose: Callable[[Published], File | None]
    """The one artefact that a release is read from."""
    read: Callable[[Artefact, Published, Reading], None]
    accepts: Callable[[Version], bool] = lambda version: not version.is_devrelease
    """Which releases at or above the floor are of interest."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that the newest release of some project holds as a whole; its rows are kept like releases."""

    package: str
    """The name of its facts."""
    project: str
    revision: int
    choose: Callable[[Published], File | None]
    read: Callable[[Artefact], dict[str, dict[str, Any]]]
    """Row -> facts."""


def by_tags(*wanted: str) -> Callable[[Published], File | None]:
    """A chooser: a wheel for Linux x86_64 or any, by the first of these texts that a name holds.

    Of several such wheels it is the one with the greatest build number, as installers take it (PEP 427).
    """

    def rank(file: File) -> tuple[int, BuildTag, str]:
        place = next((-at for at, text in enumerate(wanted) if text in file.name), -len(wanted))
        return place, parse_wheel_filename(file.name)[2], file.name

    def choose(published: Published) -> File | None:
        wheels = [file for file in published.files if file.is_wheel and _fits(file.name)]
        return max(wheels, key=rank, default=None)

    return choose


def _fits(name: str) -> bool:
    return name.endswith("-any.whl") or ("linux" in name and "x86_64" in name)


def sdist(published: Published) -> File | None:
    """A chooser: the source distribution."""
    return next((file for file in published.files if file.name.endswith(".tar.gz")), None)


def wheel_or_sdist(published: Published) -> File | None:
    """A chooser: a pure wheel, else the sdist."""
    return by_tags("-py3-none-any")(published) or sdist(published)
