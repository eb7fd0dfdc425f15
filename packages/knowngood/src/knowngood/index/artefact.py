"""What an artefact reader works with: published files, the index that lists them, and archives opened member by member.

This module imports neither `requests` nor an archive library, because the modules with the fact models import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests
    from packaging.version import Version

TEXT_LIMIT = 64 << 20  # bytes: no source or metadata file is larger; a larger one is an attack or an error


class UnreadableError(Exception):
    """Something could not be read. The text is the reason that the facts keep; it contains no addresses.

    `again` says that a later harvest should try once more, because the network failed and not the artefact.
    """

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class BrokenArchiveError(UnreadableError):
    """An archive that cannot be opened, or whose hash is another one. It is read at most twice in a run."""

    def __init__(self, reason: str, *, corrupt: bool = False) -> None:
        """Make the error; `corrupt` says that the hash is another one than the index states."""
        super().__init__(reason, again=True)
        self.corrupt = corrupt


class NoProjectError(UnreadableError):
    """The registry answered that it has no such project."""


class UnansweredError(UnreadableError):
    """The registry did not answer at all."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, again=True)


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """One published file of a release, as the index lists it."""

    name: str
    url: str
    sha256: str
    """Hexadecimal digest, or empty when the index states none."""
    version: Version
    yanked: bool
    """Whether the index marks it as withdrawn (PEP 592)."""
    requires_python: str = ""
    """The Requires-Python that the index lists; empty when it lists none."""
    uploaded: str = ""
    """The day of its upload, `2024-07-08`; empty when the index states none."""
    metadata_sha256: str | None = None
    """The hash of its metadata file, which the index offers beside it (PEP 658); `None` when it offers none."""

    @property
    def is_wheel(self) -> bool:
        """Whether this is a wheel; anything else is a source distribution."""
        return self.name.endswith(".whl")


class PackageIndex(Protocol):
    """What the readers need of a package index; the tests have one that serves a folder."""

    @property
    def session(self) -> requests.Session:
        """The HTTP session that files are read with."""
        ...

    def files(self, project: str) -> tuple[PublishedFile, ...]:
        """Return every wheel and sdist of a project; `UnreadableError` when the index has no proper page of it."""
        ...


class Artefact(Protocol):
    """A wheel or sdist, opened no further than needed.

    What was read once is kept in the cache under the file's sha256, so reading it again needs no network.
    """

    @property
    def file(self) -> PublishedFile:
        """The file as the index lists it."""
        ...

    @property
    def size(self) -> int:
        """Size of the whole file in bytes."""
        ...

    @property
    def members(self) -> Mapping[str, int]:
        """Path inside the archive -> uncompressed size in bytes; the top folder of an sdist is left out."""
        ...

    def read(self, member: str) -> bytes:
        """Return a member's content and keep it in the cache."""
        ...

    def stream(self, member: str) -> Iterator[bytes]:
        """Yield a member's content in pieces that are not kept; stopping early ends the transfer."""
        ...

    def derived(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the JSON value that `compute` gives, kept in the cache under `name`."""
        ...

    def close(self) -> None:
        """Close the connection or the file."""
        ...


def read_text_member(artefact: Artefact, member: str) -> str:
    """Return a member's text; `UnreadableError` when the archive lacks it, or it is too large or not UTF-8."""
    size = artefact.members.get(member)
    if size is None:
        raise UnreadableError(f"{artefact.file.name} has no {member}")
    if size > TEXT_LIMIT:
        raise UnreadableError(f"{member} in {artefact.file.name} has {size} bytes, too many for a text")
    try:
        return artefact.read(member).decode()
    except UnicodeDecodeError:
        raise UnreadableError(f"{member} in {artefact.file.name} is not UTF-8") from None


def find_member(artefact: Artefact, ending: str) -> str:
    """Return the shortest member path with this ending; `UnreadableError` when there is none."""
    paths = [path for path in artefact.members if path.endswith(ending)]
    if not paths:
        raise UnreadableError(f"{artefact.file.name} has no {ending}")
    return min(paths, key=lambda path: (len(path), path))
