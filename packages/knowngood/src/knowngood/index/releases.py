"""The releases of a project on the index: its files by release, and which file to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from packaging.utils import BuildTag, parse_wheel_filename
from packaging.version import Version

from knowngood.index.artefact import Artefact, PackageIndex, PublishedFile
from knowngood.index.remote_archive import RemoteSdist, RemoteWheel


@dataclass(frozen=True, kw_only=True)
class IndexedRelease:
    """A release as the index lists it."""

    project: str
    version: Version
    files: tuple[PublishedFile, ...]

    @property
    def yanked(self) -> bool:
        """Whether the release is withdrawn: all of its files are."""
        return all(file.yanked for file in self.files)


def choose_wheel_by(*preferred: str) -> Callable[[IndexedRelease], PublishedFile | None]:
    """Return a chooser of a wheel for Linux x86_64 or any platform, the first of these texts in its name preferred.

    Of several such wheels it takes the one with the highest build number, as installers do (PEP 427).
    """

    def rank(file: PublishedFile) -> tuple[int, BuildTag, str]:
        place = next((-place for place, text in enumerate(preferred) if text in file.name), -len(preferred))
        return place, parse_wheel_filename(file.name)[2], file.name

    def choose(release: IndexedRelease) -> PublishedFile | None:
        wheels = [file for file in release.files if file.is_wheel and _runs_on_linux_x86(file.name)]
        return max(wheels, key=rank, default=None)

    return choose


def _runs_on_linux_x86(name: str) -> bool:
    return name.endswith("-any.whl") or ("linux" in name and "x86_64" in name)


def group_by_release(project: str, files: Iterable[PublishedFile]) -> list[IndexedRelease]:
    """Return the releases of a project with their files, oldest first."""
    ordered = sorted(files, key=lambda file: (file.version, file.name))
    return [
        IndexedRelease(project=project, version=version, files=tuple(group))
        for version, group in groupby(ordered, key=lambda file: file.version)
    ]


def open_artefact(file: PublishedFile, index: PackageIndex, cache: Path | None = None) -> Artefact:
    """Open a published file so that it can be read member by member."""
    return (RemoteWheel if file.is_wheel else RemoteSdist)(file, index.session, cache)
