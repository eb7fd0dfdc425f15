"""The harvest: reads the releases that are due, four at a time, and replaces a package's file when it is done."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from knowngood.core.errors import UsageError
from knowngood.index.artefact import PackageIndex, UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import IndexedRelease, group_by_release, open_artefact
from knowngood_facts.facts.fact_reader import AdditionalWheel, FactReader, ReleaseReading, TableReader, find_readers
from knowngood_facts.facts.fact_store import FactFile, read_fact_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from knowngood.core.notify import Notify

_WORKERS = 4


@dataclass
class HarvestReport:
    """The result of a harvest."""

    new: list[str] = field(default_factory=list)
    """`torch 2.11.0`: read for the first time, or again with another result."""
    unchanged: int = 0
    """How many releases give what was known before."""
    unknown: dict[str, str] = field(default_factory=dict)
    """`torch 2.11.0: sass` -> why it could not be read (only for releases that this harvest read)."""
    failed: dict[str, str] = field(default_factory=dict)
    """Package -> why nothing of it could be read."""
    corrupt: list[str] = field(default_factory=list)
    """`torch 2.11.0`: the index serves an artefact whose hash is not the one that it states."""
    unanswered: bool = False
    """Whether the index did not answer."""

    @property
    def exit_code(self) -> int:
        """0 when all was done, 1 when something failed or an artefact is corrupt, 4 when the index does not answer."""
        if self.unanswered:
            return 4
        return 1 if self.failed or self.corrupt else 0


def harvest_facts(  # noqa: PLR0913 - tests replace `index`, `cache` and `readers`
    packages: Sequence[str],
    *,
    folder: Path,
    floors: Mapping[str, Version],
    notify: Notify,
    refresh: bool = False,
    index: PackageIndex | None = None,
    cache: Path | None = None,
    readers: Mapping[str, FactReader | TableReader] | None = None,
) -> HarvestReport:
    """Read the releases of these packages (of all when none is named) that `folder` does not know yet.

    `floors` are the oldest releases of interest; a package without one is read from its first release on. `refresh`
    reads the known releases too. Each package's file is replaced as a whole when it is done.

    Raises:
        UsageError: a package has no reader.
        InputError: a facts file is damaged; it is not overwritten.
    """
    readers = find_readers() if readers is None else readers
    names = [canonicalize_name(package) for package in packages]
    if unreadable := sorted(set(names) - set(readers)):
        raise UsageError(f"{', '.join(unreadable)}: no reader for that; there are {', '.join(sorted(readers))}")
    harvest = _Harvest(
        index=index or SimpleIndex(),
        folder=folder,
        floors=floors,
        notify=notify,
        refresh=refresh,
        cache=cache,
    )
    for package in names or readers:
        reader = readers[package]
        try:
            if isinstance(reader, TableReader):
                harvest.harvest_table(reader)
            else:
                harvest.harvest_package(reader)
        except UnreadableError as error:
            harvest.report.failed[package] = str(error)
            harvest.report.unanswered |= isinstance(error, UnansweredError)
            notify(f"{package}: {error}")
    return harvest.report


@dataclass(frozen=True, kw_only=True)
class _Harvest:
    """The state of one call of `harvest_facts`."""

    index: PackageIndex
    folder: Path
    floors: Mapping[str, Version]
    notify: Notify
    refresh: bool
    cache: Path | None
    report: HarvestReport = field(default_factory=HarvestReport)

    def harvest_package(self, reader: FactReader) -> None:
        """Read the releases of one package that are due; `UnreadableError` when the index has none of it."""
        folder = self.folder / reader.folder
        file = read_fact_file(folder, reader.package)
        floor = self.floors.get(reader.package)
        wanted = [
            release
            for release in group_by_release(reader.package, self.index.files(reader.package))
            if (floor is None or release.version >= floor) and reader.accepts(release.version)
        ]
        if not wanted:
            since = f" from {floor} on" if floor else ""
            raise UnreadableError(f"the index lists no release of {reader.package}{since}")
        all_are_due = self.refresh or file.reader != reader.revision
        due = [release for release in wanted if all_are_due or _is_due(file, release)]
        lacking = [one for one in wanted if one not in due and _lacking_wheels(reader, file, one)]
        self.report.unchanged += len(wanted) - len(due) - len(lacking)
        try:
            with ThreadPoolExecutor(_WORKERS) as pool:
                entries = pool.map(lambda release: self._read_release(reader, release), due)
                for release, entry in zip(due, entries, strict=True):
                    self._record(file, release, entry)
                entries = pool.map(lambda release: self._complete_release(reader, file, release), lacking)
                for release, entry in zip(lacking, entries, strict=True):
                    self._record(file, release, entry)
            file.reader = reader.revision
        finally:
            file.write(folder)

    def harvest_table(self, reader: TableReader) -> None:
        """Read a table from the newest release of its project; a row that says the same stays as it is."""
        file = read_fact_file(self.folder, reader.package)
        releases = group_by_release(reader.project, self.index.files(reader.project))
        newest = [release for release in releases if not release.yanked][-1:]
        published = reader.choose(newest[0]) if newest else None
        if published is None:
            raise UnreadableError(f"{reader.project} has no release that holds the table")
        artefact = open_artefact(published, self.index, self.cache)
        rows = reader.read(artefact)
        artefact.close()
        for row, facts in rows.items():
            entry = {"read": _today(), "yanked": False, "artefact": published.name, "facts": facts, "unknown": {}}
            known = file.releases.get(row)
            if known is not None and known["facts"] == facts:
                self.report.unchanged += 1
            elif file.add_release(row, entry):
                self.report.new.append(f"{reader.package} {row}")
        file.reader = reader.revision
        file.write(self.folder)
        self.notify(f"{reader.package}: {len(rows)} rows from {published.name}")

    def _read_release(self, reader: FactReader, release: IndexedRelease) -> dict[str, Any]:
        """Return the entry of one release; whatever goes wrong is in its `unknown`."""
        reading = ReleaseReading()
        published = reader.choose(release)
        if published is None:
            reading.unknown["artefact"] = "the release has no file that this reader reads"
        else:
            artefact = open_artefact(published, self.index, self.cache)
            reading.run(lambda: reader.read(artefact, release, reading))
            artefact.close()
        self._read_additional(reader.additional, release, reading)
        if reading.corrupt:
            self.report.corrupt.append(f"{release.project} {release.version}")
        return {
            "read": _today(),
            "yanked": release.yanked,
            "artefact": published.name if published else None,
            "facts": reading.facts,
            "unknown": reading.unknown,
        } | ({"retry": True} if reading.again else {})

    def _read_additional(
        self, wheels: Sequence[AdditionalWheel], release: IndexedRelease, reading: ReleaseReading
    ) -> None:
        """Record the facts of those of these wheels that the release has."""
        for additional in wheels:
            if published := additional.choose(release):
                artefact = open_artefact(published, self.index, self.cache)
                reading.take_all(additional.facts[0], partial(additional.read, artefact))
                artefact.close()

    def _complete_release(self, reader: FactReader, file: FactFile, release: IndexedRelease) -> dict[str, Any]:
        """Return the known entry of a release together with the facts of its additional wheels."""
        entry = file.releases[str(release.version)]
        reading = ReleaseReading(facts=dict(entry["facts"]), unknown=dict(entry["unknown"]))
        self._read_additional(_lacking_wheels(reader, file, release), release, reading)
        if reading.corrupt:
            self.report.corrupt.append(f"{release.project} {release.version}")
        retry = {"retry": True} if reading.again else {}
        return {**entry, "facts": reading.facts, "unknown": reading.unknown} | retry

    def _record(self, file: FactFile, release: IndexedRelease, entry: Mapping[str, Any]) -> None:
        name = f"{release.project} {release.version}"
        self.report.unknown.update({f"{name}: {fact}": reason for fact, reason in entry["unknown"].items()})
        if file.add_release(str(release.version), entry):
            self.report.new.append(name)
        else:
            self.report.unchanged += 1
        self.notify(f"{name}: {len(entry['facts'])} facts, {len(entry['unknown'])} unknown")


def _today() -> str:
    return dt.datetime.now(tz=dt.UTC).date().isoformat()


def _lacking_wheels(reader: FactReader, file: FactFile, release: IndexedRelease) -> list[AdditionalWheel]:
    """The additional wheels of a known release that were not read yet."""
    entry = file.releases[str(release.version)]
    names = {*entry["facts"], *entry["unknown"]}
    return [item for item in reader.additional if names.isdisjoint(item.facts) and item.choose(release) is not None]


def _is_due(file: FactFile, release: IndexedRelease) -> bool:
    known = file.releases.get(str(release.version))
    return known is None or known.get("retry", False) or known["yanked"] != release.yanked
