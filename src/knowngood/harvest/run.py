"""The harvest itself: the releases that are due, four at a time; a package's file is replaced when done."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood.errors import UsageError
from knowngood.harvest.index import File, Index, SimpleIndex, Unanswered, Unreadable
from knowngood.harvest.ledger import Ledger, read_ledger
from knowngood.harvest.ranged import RemoteWheel
from knowngood.harvest.readers import READERS
from knowngood.harvest.reading import Published, Reader, Reading, Table
from knowngood.harvest.sdist import RemoteSdist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from knowngood.harvest.artefact import Artefact

_AT_ONCE = 4


@dataclass
class Report:
    """What a harvest did."""

    new: list[str] = field(default_factory=list)
    """`torch 2.11.0`: read for the first time, or anew with another result."""
    unchanged: int = 0
    unknown: dict[str, str] = field(default_factory=dict)
    """`torch 2.11.0: sass` -> why it could not be read (among what was read now)."""
    failed: dict[str, str] = field(default_factory=dict)
    """Package -> why nothing of it could be read."""
    unanswered: bool = False
    """The registry did not answer."""

    @property
    def exit_code(self) -> int:
        """0 done, 1 something failed, 4 the registry does not answer."""
        if self.unanswered:
            return 4
        return 1 if self.failed else 0


def harvest(  # noqa: PLR0913 - `index`, `cache` and `readers` are the tests' seams
    packages: Sequence[str],
    *,
    folder: Path,
    floors: Mapping[str, Version],
    say: Callable[[str], None],
    refresh: bool = False,
    index: Index | None = None,
    cache: Path | None = None,
    readers: Mapping[str, Reader | Table] = READERS,
) -> Report:
    """Read the releases of these packages (of all, when none is named) that `folder` does not know yet.

    `floors` are the oldest releases of interest. `refresh` reads the known ones too.
    Each package's file is replaced as a whole when it is done.
    """
    named = [canonicalize_name(package) for package in packages]
    strange = sorted(set(named) - set(readers))
    if strange:
        raise UsageError(f"{', '.join(strange)}: no reader for that; there are {', '.join(sorted(readers))}")
    run = _Run(
        index=index or SimpleIndex(),
        folder=folder,
        floors=floors,
        say=say,
        refresh=refresh,
        cache=cache,
    )
    for package in named or readers:
        reader = readers[package]
        try:
            if isinstance(reader, Table):
                run.table(reader)
            else:
                run.package(reader)
        except Unreadable as error:
            run.report.failed[package] = str(error)
            run.report.unanswered |= isinstance(error, Unanswered)
            say(f"{package}: {error}")
    return run.report


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One call of `harvest`."""

    index: Index
    folder: Path
    floors: Mapping[str, Version]
    say: Callable[[str], None]
    refresh: bool
    cache: Path | None
    report: Report = field(default_factory=Report)

    def package(self, reader: Reader) -> None:
        """Read what is due of one package; `Unreadable` when the registry has nothing of it."""
        ledger = read_ledger(self.folder, reader.package)
        files = self.index.files(reader.package)
        floor = self.floors.get(reader.package)
        wanted = [
            published
            for published in releases(reader.package, files)
            if (floor is None or published.version >= floor) and reader.accepts(published.version)
        ]
        anew = self.refresh or ledger.reader != reader.revision
        due = [published for published in wanted if anew or _is_due(ledger, published)]
        self.report.unchanged += len(wanted) - len(due)
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                entries = pool.map(lambda published: self.release(reader, published), due)
                for published, entry in zip(due, entries, strict=True):
                    self._note(ledger, published, entry)
            ledger.reader = reader.revision
        finally:
            ledger.write(self.folder)

    def table(self, table: Table) -> None:
        """Read the table anew when the project has a newer release; a row that says the same stays as it is."""
        ledger = read_ledger(self.folder, table.package)
        newest = [release for release in releases(table.project, self.index.files(table.project)) if not release.yanked]
        file = table.choose(newest[-1]) if newest else None
        if file is None:
            raise Unreadable(f"{table.project} has no release that holds the table")
        artefact = open_artefact(file, self.index, self.cache)
        rows = table.read(artefact)
        artefact.close()
        for row, facts in rows.items():
            entry = {"read": _today(), "yanked": False, "artefact": file.name, "facts": facts, "unknown": {}}
            known = ledger.releases.get(row)
            if known is not None and known["facts"] == facts:
                self.report.unchanged += 1
            elif ledger.keep(row, entry):
                self.report.new.append(f"{table.package} {row}")
        ledger.reader = table.revision
        ledger.write(self.folder)
        self.say(f"{table.package}: {len(rows)} rows from {file.name}")

    def release(self, reader: Reader, published: Published) -> dict[str, Any]:
        """The entry of one release; whatever goes wrong is in its `unknown`."""
        reading = Reading()
        file = reader.choose(published)
        if file is None:
            reading.unknown["artefact"] = "the release has no file that this reader reads"
        else:
            artefact = open_artefact(file, self.index, self.cache)
            reading.run(lambda: reader.read(artefact, published, reading))
            artefact.close()
        return {
            "read": _today(),
            "yanked": published.yanked,
            "artefact": file.name if file else None,
            "facts": reading.facts,
            "unknown": reading.unknown,
        } | ({"retry": True} if reading.again else {})

    def _note(self, ledger: Ledger, published: Published, entry: Mapping[str, Any]) -> None:
        name = f"{published.project} {published.version}"
        self.report.unknown.update({f"{name}: {fact}": why for fact, why in entry["unknown"].items()})
        if ledger.keep(str(published.version), entry):
            self.report.new.append(name)
        else:
            self.report.unchanged += 1
        self.say(f"{name}: {len(entry['facts'])} facts, {len(entry['unknown'])} unknown")


def releases(project: str, files: Iterable[File]) -> list[Published]:
    """The files of a project by release, oldest first."""
    ordered = sorted(files, key=lambda file: (file.version, file.name))
    return [
        Published(project=project, version=version, files=tuple(group))
        for version, group in groupby(ordered, key=lambda file: file.version)
    ]


def open_artefact(file: File, index: Index, cache: Path | None = None) -> Artefact:
    """The file, to be read member by member."""
    return (RemoteWheel if file.is_wheel else RemoteSdist)(file, index.session, cache)


def _today() -> str:
    return dt.datetime.now(tz=dt.UTC).date().isoformat()


def _is_due(ledger: Ledger, published: Published) -> bool:
    known = ledger.releases.get(str(published.version))
    return known is None or known.get("retry", False) or known["yanked"] != published.yanked
