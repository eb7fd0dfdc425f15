"""The harvest of metadata: reads the releases that are new, many at a time, and replaces each package's file.

A package's file is written when the package is done, so a harvest that is killed continues with the packages that are
left. The yank state, the wheels and the days of upload come from the index's page each time.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from knowngood.core.data_files import read_data_text
from knowngood.core.local_files import write_atomically
from knowngood.facts.harvest_run import HarvestReport, group_by_release
from knowngood.facts.metadata_field import MetadataField, find_required_packages
from knowngood.facts.metadata_file import render_package_metadata
from knowngood.facts.metadata_reading import choose_metadata_file, describe_release, read_release_metadata
from knowngood.facts.package_metadata import SUFFIX, PackageMetadata, ReleaseMetadata, parse_package_metadata
from knowngood.index.artefact import NoProjectError, PackageIndex, UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.remote_metadata import fetch_metadata_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.core.notify import Notify
    from knowngood.facts.fact_reader import IndexedRelease

_PACKAGES = 4  # whose pages are read at once
_CONNECTIONS = 16  # on which releases are read


def harvest_metadata(  # noqa: PLR0913 - tests replace `index`
    packages: Sequence[str],
    *,
    folder: Path,
    notify: Notify,
    refresh: bool = False,
    field: MetadataField | None = None,
    index: PackageIndex | None = None,
) -> HarvestReport:
    """Read the releases of these packages that `folder` does not know yet, and replace the packages' files.

    `refresh` reads the known releases too. With `field`, all that the packages require is read as well, and so on, by
    the rule of that field. A release that could not be reached is left out of the file, and so is read
    the next time; one whose metadata is broken is kept with the source `none`.

    Raises:
        InputError: a file in `folder` is damaged; it is not overwritten.
    """
    index = index or SimpleIndex(connections=_CONNECTIONS)
    report = HarvestReport()
    names: list[str] = list(dict.fromkeys(map(canonicalize_name, packages)))
    extras: dict[str, set[str]] = {name: set() for name in names}
    with ThreadPoolExecutor(_CONNECTIONS) as readers, ThreadPoolExecutor(_PACKAGES) as pages:
        harvest = _MetadataHarvest(
            index=index, folder=folder, refresh=refresh, readers=readers, field=field, named=frozenset(names)
        )
        while names:
            for part in pages.map(harvest.harvest_package, names):
                _add_report(report, part, notify)
            if harvest.silent.is_set():
                report.failed["index"] = "the index did not answer, so the packages that were left were not asked for"
                break
            names = _follow_requirements(extras, folder) if field else []
            if field and len(extras) > field.at_most:
                listed = ", ".join(names[:3])
                report.failed["field"] = (
                    f"more than {field.at_most} packages are required; {listed} and others are left"
                )
                break
    return report


def _follow_requirements(extras: dict[str, set[str]], folder: Path) -> list[str]:
    """Add to `extras` (name -> extras in use) what the packages in it require, and return the names that are new."""
    before = set(extras)
    todo = list(extras)
    while todo:
        package = _read_file(folder, name := todo.pop())
        for required, wanted in find_required_packages(package, extras[name]).items() if package else ():
            if not wanted <= extras.setdefault(required, set()):
                extras[required] |= wanted
                todo.append(required)
    return sorted(extras.keys() - before)


def _read_file(folder: Path, name: str) -> PackageMetadata | None:
    path = folder / f"{name}{SUFFIX}"
    return parse_package_metadata(read_data_text(path), str(path)) if path.exists() else None


def _add_report(report: HarvestReport, part: HarvestReport, notify: Notify) -> None:
    report.new += part.new
    report.unchanged += part.unchanged
    report.unknown |= part.unknown
    report.failed |= part.failed
    report.unanswered |= part.unanswered
    for name, reason in part.failed.items():
        notify(f"{name}: {reason}")
    if part.new:
        package = part.new[0].partition(" ")[0]
        notify(f"{package}: {len(part.new)} releases read, {part.unchanged} known before")


@dataclass(frozen=True, kw_only=True)
class _MetadataHarvest:
    """What the packages of one harvest share."""

    index: PackageIndex
    folder: Path
    refresh: bool
    readers: Executor
    field: MetadataField | None
    named: frozenset[str]
    """The packages that the harvest began with; the others are followed requirements."""
    silent: Event = dataclasses.field(default_factory=Event)
    """Set when the index did not answer for a package; it is asked for no other then."""

    def harvest_package(self, name: str) -> HarvestReport:
        """Read one package and write its file."""
        report = HarvestReport()
        if self.silent.is_set():
            return report
        path = self.folder / f"{name}{SUFFIX}"
        package = _read_file(self.folder, name)
        known: Mapping[str, ReleaseMetadata] = package.releases if package else {}
        try:
            listed = group_by_release(name, self.index.files(name))
        except UnreadableError as error:
            report.unanswered = isinstance(error, UnansweredError)
            if report.unanswered:
                self.silent.set()
            # A release may require what is on no index (a private package); that is no failure of the harvest.
            is_failure = name in self.named or error.again
            (report.failed if is_failure else report.unknown)[name] = str(error)
            if isinstance(error, NoProjectError) and not known:  # so that what requires it is known to be impossible
                write_atomically(path, render_package_metadata(name, ()))
            return report
        due = [release for release in listed if self.refresh or _is_due(known.get(str(release.version)), release)]
        readings = self.readers.map(self._read_release, due)
        kept = {version: known[version] for version in known}  # also what the index lists no more
        for release in listed:
            if (version := str(release.version)) in kept:
                kept[version] = describe_release(release, kept[version])
        for release, reading in zip(due, readings, strict=True):
            version, before = str(release.version), kept.get(str(release.version))
            if reading.reason:
                report.unknown[f"{name} {version}"] = reading.reason
            if reading.metadata is not None and not (before and before.source != "none" and reading.reason):
                kept[version] = reading.metadata
        report.new = [f"{name} {version}" for version, release in kept.items() if release != known.get(version)]
        report.unchanged = len(kept) - len(report.new)
        write_atomically(path, render_package_metadata(name, kept.values()))
        return report

    def _read_release(self, release: IndexedRelease) -> _Reading:
        try:
            metadata = read_release_metadata(release, lambda file: fetch_metadata_text(file, self.index.session))
        except UnreadableError as error:
            return _Reading(metadata=None if error.again else describe_release(release), reason=str(error))
        return _Reading(metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The result of reading one release; without metadata it is read again in the next harvest."""

    metadata: ReleaseMetadata | None
    reason: str = ""


def _is_due(known: ReleaseMetadata | None, release: IndexedRelease) -> bool:
    """Whether a release is new, or has a wheel by now while only its sdist was read before."""
    return known is None or (known.source == "none" and not known.wheels and choose_metadata_file(release).is_wheel)
