"""The checks that ask services: the index about locked files, the vulnerability databases. Edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.errors import KnowngoodError, MissingError
from knowngood.harvest.index import Index, SimpleIndex, Unreadable
from knowngood.locks import wheelhouse
from knowngood.nightly import files
from knowngood.nightly.files import Listed, Listing
from knowngood.nightly.model import Check, Finding, Result, Severity
from knowngood.publishing import auditing, release

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from knowngood.cell import Cell
    from knowngood.project import Project
    from knowngood.publishing.audit import Report as Audited

_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Files:
    """Asks the index once about every project that a cell locks a file of."""

    here: Project
    cells: Sequence[Cell]
    wheelhouse: Path
    index: Index | None = None

    def __call__(self, say: Callable[[str], None]) -> Result:
        """The findings about locked files."""
        locks = {str(cell): release.committed(self.here, cell).distributions for cell in self.cells}
        wanted = files.wanted(locks)
        ours = [item for item in wanted if files.is_ours(item)]
        projects = sorted({item.name for item in wanted if not files.is_ours(item)})
        say(f"asking the index about {len(projects)} projects")
        source = self.index or SimpleIndex()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            listings = dict(zip(projects, pool.map(lambda name: _listing(source, name), projects), strict=True))
        found = files.findings(locks, listings)
        held = [item for item in ours if (self.wheelhouse / item.file).is_file()]
        for item in held:
            try:
                wheelhouse.check_hash(
                    wheelhouse.Wheel(path=self.wheelhouse / item.file, version=item.version), item.sha256
                )
            except KnowngoodError as error:
                found.append(_finding("hash-changed", Severity.ERROR, item.file, str(error), wanted[item]))
        note = f"{len(wanted) - len(ours)} files of {len(projects)} projects"
        note += f"; of {len(ours)} wheels made here the wheelhouse has {len(held)}" if ours else ""
        kinds = [item.kind for item in found]
        outcome = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "all there"
        return Result(check=Check.FILES, outcome=outcome, note=note, findings=tuple(found))


def _listing(index: Index, project: str) -> Listing | str:
    try:
        return {file.name: Listed(sha256=file.sha256, yanked=file.yanked) for file in index.files(project)}
    except Unreadable as error:
        # A project that the index does not have any more: all its files are gone.
        return str(error) if error.again else {}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Asks for known vulnerabilities of everything that is locked."""

    here: Project
    cells: Sequence[Cell]
    tracker: str
    earlier: Mapping[str, str] = field(default_factory=dict)
    """The vulnerabilities of the last report -> since when they are known."""

    def __call__(self, say: Callable[[str], None]) -> Result:
        """The vulnerabilities that are not accepted, and how many of them are new."""
        try:
            audited, wheels = auditing.ask(self.here, self.cells, self.tracker, say)
        except MissingError as error:
            return Result(check=Check.AUDIT, outcome="not known", findings=(_unanswered(str(error), Severity.MISSING),))
        found = vulnerabilities(audited)
        subjects = [item.subject for item in found if item.kind == "vulnerability"]
        new = [item for item in subjects if item not in self.earlier]
        gone = [] if audited.unanswered else [item for item in self.earlier if item not in subjects]
        outcome = f"{len(subjects)} open, {len(new)} new" + (", not all known" if audited.unanswered else "")
        note = (
            f"{wheels} wheels and their bases; {len(audited.accepted)} accepted; {len(gone)} gone since the last report"
        )
        return Result(check=Check.AUDIT, outcome=outcome, note=note, findings=tuple(found), data={"gone": gone})


def vulnerabilities(audited: Audited) -> list[Finding]:
    """A finding for each that audit.yaml does not accept, and for each service that did not answer. Pure."""
    found = [
        _finding(
            "vulnerability",
            Severity.ERROR,
            f"{item.package} {item.version} {item.id}",
            f"{item.package} {item.version}: {item.id}, {f'fixed in {item.fixed}' if item.fixed else 'no fix yet'}",
            check=Check.AUDIT,
        )
        for item in audited.open
    ]
    return [*found, *(_unanswered(reason, Severity.UNKNOWN) for reason in audited.unanswered)]


def _unanswered(reason: str, severity: Severity) -> Finding:
    return _finding("unanswered", severity, reason[:40], reason, check=Check.AUDIT)


def _finding(  # noqa: PLR0913
    kind: str,
    severity: Severity,
    subject: str,
    text: str,
    cells: tuple[str, ...] = (),
    *,
    check: Check = Check.FILES,
) -> Finding:
    return Finding(check=check, kind=kind, severity=severity, subject=subject, text=text, cells=cells)
