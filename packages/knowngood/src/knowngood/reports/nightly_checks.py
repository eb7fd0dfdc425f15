"""The nightly checks that need the outside world: an engine (rebuild and suite), the index, vulnerability databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.images import verification
from knowngood.images.verification import VerificationOutcome
from knowngood.index.artefact import PackageIndex, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.lock import wheelhouse
from knowngood.lock.cell_lock import Distribution
from knowngood.registry import image_release, vulnerability_audit
from knowngood.reports.nightly_report import (
    NightlyCheck,
    NightlyFinding,
    NightlyResult,
    NightlySeverity,
    unexamined_finding,
)
from knowngood.reports.nightly_tasks import CheckAttempt, FaultDomain, attempt_from_error

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.core.cell import Cell
    from knowngood.images.pipeline import Pipeline
    from knowngood.lock.lock_tree import CellLock
    from knowngood.project.checkout import Project
    from knowngood.registry.vulnerability_audit import AuditReport as Audited

_PARALLEL_REQUESTS = 4


@dataclass(frozen=True, kw_only=True)
class ImageChecks:
    """Rebuilds cells and runs their suites on the engine of this host."""

    line: Pipeline | None
    """`None` when there is no engine; `lacking` then has the reason."""
    lacking: KnowngoodError | None = None

    def rebuild(self, cell: str, notify: Notify) -> CheckAttempt:
        """Build the cell from nothing and compare the result with the committed record."""
        try:
            verdict = verification.verify_cell(self._required_line(), parse_cell(cell), notify)
        except KnowngoodError as error:
            return attempt_from_error(error)
        data: dict[str, Any] = {
            "outcome": str(verdict.outcome),
            "recorded": verdict.recorded,
            "rebuilt": verdict.rebuilt,
            "differences": [{"name": item.name, "files": list(item.files[:20])} for item in verdict.differences],
        }
        if verdict.outcome is VerificationOutcome.DIFFERENT:
            names = ", ".join(item.name for item in verdict.differences)
            digests = f"{(verdict.rebuilt or '')[:19]} is not {(verdict.recorded or '')[:19]}"
            text = f"differs from the record: {names} ({digests})"
            return CheckAttempt(domain=FaultDomain.IMAGE, text=text, data=data)
        if verdict.outcome is not VerificationOutcome.SAME:
            reason = verdict.note or "it has no image.json"
            data["unexamined"] = (
                f"there is nothing to compare a rebuild with: {reason}; `knowngood build --record '{cell}'` records it"
            )
        return CheckAttempt(domain=FaultDomain.NONE, text=(verdict.rebuilt or "")[:19], data=data)

    def suite(self, cell: str, notify: Notify) -> CheckAttempt:
        """Run the suite in the cell's image and keep the evidence; build the image first when the engine lacks it."""
        try:
            line = self._required_line()
            line = replace(line, options=replace(line.options, prove=True, force_smoke=True))
            result = line.run(parse_cell(cell), notify)
        except KnowngoodError as error:
            return attempt_from_error(error)
        run = run_evidence.load_evidence(result.evidence) if result.evidence else None
        if not isinstance(run, Evidence):
            return attempt_from_error(result.error or KnowngoodError(str(run)))
        verdict = run.report["verdict"]
        data = {
            "evidence": f"{run.cell}/{result.evidence.name if result.evidence else ''}",
            "image": run.image,
            "failing": next((item["id"] for item in run.report["checks"] if item["outcome"] == "fail"), ""),
        }
        return CheckAttempt(domain=_fault_domain(verdict), text=str(verdict["text"]), data=data)

    def _required_line(self) -> Pipeline:
        if self.line is None:
            raise self.lacking or MissingError("no engine answers")
        return self.line


def _fault_domain(verdict: dict[str, Any]) -> FaultDomain:
    if verdict["ok"]:
        return FaultDomain.NONE
    return FaultDomain(verdict["domain"]) if verdict["domain"] in set(FaultDomain) else FaultDomain.IMAGE


def explain_failure(here: Project, cell: str, *, gpus: bool) -> NightlyFinding:
    """Return what changed since a cell that fails passed in an image, with a GPU or without one.

    Args:
        here: the checkout; the newest failed run is in its evidence.
        cell: the id of the cell.
        gpus: whether the failed run was on a GPU.
    """
    runs = [
        run
        for path in sorted((here.evidence / cell).glob("*.json"))
        if isinstance(run := run_evidence.load_evidence(path), Evidence)
    ]
    good_run = find_last_passing_run(runs, gpus=gpus)
    failed_run = max((run for run in runs if not run.ok), key=lambda run: run.when, default=None)
    if good_run is None:
        text = "there is no evidence of a good run to compare with"
        return _suite_finding(cell, "never-green", NightlySeverity.INFO, text)
    day = good_run.when[:10]
    if failed_run is not None and good_run.image is not None and good_run.image == failed_run.image:
        other = ", ".join(list_environment_changes(good_run, failed_run)) or "nothing that is recorded"
        text = f"this very image passed on {day}; changed since: {other}; suspect the host"
        return _suite_finding(cell, "same-image", NightlySeverity.WARNING, text)
    locked = image_release.require_lock(here, parse_cell(cell)).distributions
    if changes := list_package_changes(good_run, {item.name: item.version for item in locked}):
        text = f"changed since it passed on {day}: {', '.join(changes)}"
        return _suite_finding(cell, "changed-packages", NightlySeverity.WARNING, text)
    return _suite_finding(cell, "same-lock", NightlySeverity.INFO, f"its packages are those of the good run of {day}")


def find_last_passing_run(runs: Sequence[Evidence], *, gpus: bool) -> Evidence | None:
    """Return the newest good run in an image, with a GPU or without one."""
    where = RunPlace.CONTAINER_GPU if gpus else RunPlace.CONTAINER_CPU
    return max((run for run in runs if run.ok and run.where is where), key=lambda run: run.when, default=None)


def list_environment_changes(good: Evidence, failed: Evidence) -> list[str]:
    """Return what differs between two runs apart from their packages: the suite, and attributes of the node."""
    changes = ["the smoke suite"] if good.suite != failed.suite else []
    for name in sorted(good.node.keys() | failed.node.keys()):
        before, after = good.node.get(name), failed.node.get(name)
        if before != after:
            changes.append(f"the node's {name} ({before} -> {after})")
    return changes


def list_package_changes(good: Evidence, locked: Mapping[str, str]) -> list[str]:
    """Return the packages that a lock (name -> version) has in other releases than were installed in a good run.

    An installed version that differs from the locked one in its local part only is the same release.
    """
    installed = good.report.get("environment", {}).get("distributions") or {}
    before = {str(canonicalize_name(name)): str(version).partition("+")[0] for name, version in installed.items()}
    after = {name: version.partition("+")[0] for name, version in locked.items()}
    return [
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _suite_finding(cell: str, kind: str, severity: NightlySeverity, text: str) -> NightlyFinding:
    return NightlyFinding(
        check=NightlyCheck.SUITE, kind=kind, severity=severity, subject=cell, text=f"{cell}: {text}", cells=(cell,)
    )


LockedCells = Mapping[str, Sequence[Distribution]]
"""Cell to the distributions that it locks."""


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A file as the index lists it."""

    sha256: str
    """Empty when the index states none."""
    yanked: bool


IndexListing = Mapping[str, IndexFile]
"""The files of one project, by name."""


def list_locked_files(locks: LockedCells) -> dict[Distribution, tuple[str, ...]]:
    """Return every locked file, with the cells that lock it."""
    cells_by_file: dict[Distribution, list[str]] = {}
    for cell, distributions in locks.items():
        for item in distributions:
            cells_by_file.setdefault(item, []).append(cell)
    return {item: tuple(cells) for item, cells in sorted(cells_by_file.items())}


def judge_locked_files(locks: LockedCells, listings: Mapping[str, IndexListing | str]) -> list[NightlyFinding]:
    """Return what is wrong with the locked files.

    `listings` has the files of each project, or a text with the reason why they could not be read. Projects with the
    same reason are one finding.
    """
    findings = []
    for item, cells in list_locked_files(locks).items():
        listing = listings.get(item.name)
        if listing is not None and not isinstance(listing, str):
            findings += [_files_finding(*defect, cells) for defect in _judge_file(item, listing.get(item.file))]
    by_reason: dict[str, list[str]] = {}
    for project, listing in sorted(listings.items()):
        if isinstance(listing, str):
            by_reason.setdefault(listing.replace(project, "it"), []).append(project)
    for reason, projects in by_reason.items():
        names = ", ".join(projects[:3]) + (f" and {len(projects) - 3} more" if len(projects) > 3 else "")
        findings.append(_files_finding("unanswered", NightlySeverity.UNKNOWN, projects[0], f"{names}: {reason}", ()))
    return findings


def _judge_file(item: Distribution, listed: IndexFile | None) -> Iterable[tuple[str, NightlySeverity, str, str]]:
    """Yield the kind, severity, subject and text of each defect of a file."""
    if listed is None:
        text = f"{item.file} is gone from the index: a build from nothing would fail"
        yield "gone", NightlySeverity.ERROR, item.file, text
    elif listed.sha256 and listed.sha256 != item.sha256:
        text = f"{item.file} has another hash: locked {item.sha256[:12]}, the index has {listed.sha256[:12]}"
        yield "hash-changed", NightlySeverity.ERROR, item.file, text
    elif not listed.sha256:
        yield "no-hash", NightlySeverity.UNKNOWN, item.file, f"{item.file}: the index states no hash for it"
    if listed and listed.yanked:
        text = f"{item.name} {item.version} was withdrawn (yanked); {item.file} can still be installed by its hash"
        yield "yanked", NightlySeverity.ERROR, item.file, text


def _files_finding(
    kind: str, severity: NightlySeverity, subject: str, text: str, cells: tuple[str, ...]
) -> NightlyFinding:
    return NightlyFinding(
        check=NightlyCheck.FILES, kind=kind, severity=severity, subject=subject, text=text, cells=cells
    )


@dataclass(frozen=True, kw_only=True)
class LockedFilesCheck:
    """Compares the locked files with the package index, with one request a project."""

    here: Project
    cells: Sequence[Cell]
    wheelhouse: Path
    index: PackageIndex | None = None

    def __call__(self, notify: Notify) -> NightlyResult:
        """Check every locked file; a wheel that was compiled here is checked in the wheelhouse, if it is there."""
        read = read_nightly_locks(self.here, self.cells)
        locks = {str(cell): lock.distributions for cell, lock in read.locks.items()}
        locked = list_locked_files(locks)
        compiled_here = [item for item in locked if item.made_here]
        projects = sorted({item.name for item in locked if not item.made_here})
        notify(f"reading {len(projects)} projects of the index")
        source = self.index or SimpleIndex()
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            listings = dict(zip(projects, pool.map(lambda name: _read_listing(source, name), projects), strict=True))
        findings = [
            *read.findings(NightlyCheck.FILES),
            *judge_locked_files(locks, listings),
            *(finding for item in compiled_here for finding in self._judge_compiled_wheel(item, locked[item])),
        ]
        absent = sum(item.kind == "not-compared" for item in findings)
        if len(locked) == absent:
            findings.append(unexamined_finding(NightlyCheck.FILES, "no locked file could be compared with anything"))
        note = f"{len(locked) - len(compiled_here)} files of {len(projects)} projects"
        if compiled_here:
            note += (
                f"; the wheelhouse has {len(compiled_here) - absent} of the {len(compiled_here)} wheels compiled here"
            )
        kinds = [item.kind for item in findings]
        outcome = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "all there"
        return NightlyResult(check=NightlyCheck.FILES, outcome=outcome, note=note, findings=tuple(findings))

    def _judge_compiled_wheel(self, item: Distribution, cells: tuple[str, ...]) -> Iterator[NightlyFinding]:
        """Yield what is wrong with a wheel that no index has: another hash, or no file to compare it with."""
        path = self.wheelhouse / item.file
        defect = f"{item.file} was compiled, so no index has it, and this host's wheelhouse lacks it: not compared"
        kind, severity = "not-compared", NightlySeverity.WARNING
        if path.is_file():
            try:
                wheelhouse.check_wheel_hash(wheelhouse.WheelhouseWheel(path=path, version=item.version), item.sha256)
            except KnowngoodError as error:
                kind, severity, defect = "hash-changed", NightlySeverity.ERROR, str(error)
            else:
                return
        yield NightlyFinding(
            check=NightlyCheck.FILES, kind=kind, severity=severity, subject=item.file, text=defect, cells=cells
        )


def _read_listing(index: PackageIndex, project: str) -> IndexListing | str:
    """Return the files of a project, or why they could not be read."""
    try:
        return {file.name: IndexFile(sha256=file.sha256, yanked=file.yanked) for file in index.files(project)}
    except UnreadableError as error:
        # An error that another attempt cannot change: the index no longer has the project, so all its files are gone.
        return str(error) if error.again else {}


@dataclass(frozen=True, kw_only=True)
class AuditCheck:
    """Looks up the known vulnerabilities of everything that is locked."""

    here: Project
    cells: Sequence[Cell]
    earlier: Mapping[str, str] = field(default_factory=dict)
    """The vulnerabilities in the last report, each with its date there."""

    def __call__(self, notify: Notify) -> NightlyResult:
        """Return the vulnerabilities that docker/audit.yaml does not accept, and how many of them are new."""
        read = read_nightly_locks(self.here, self.cells)
        try:
            audited, wheels = vulnerability_audit.audit_cells(self.here, read.cells, notify)
        except MissingError as error:
            unanswered = _unanswered_finding(str(error), NightlySeverity.MISSING)
            findings = [*read.findings(NightlyCheck.AUDIT), unanswered]
            return NightlyResult(check=NightlyCheck.AUDIT, outcome="not known", findings=tuple(findings))
        findings = [*read.findings(NightlyCheck.AUDIT), *vulnerability_findings(audited)]
        subjects = [item.subject for item in findings if item.kind == "vulnerability"]
        new = [item for item in subjects if item not in self.earlier]
        complete = not audited.unanswered and not read.defects
        gone = [] if not complete else [item for item in self.earlier if item not in subjects]
        outcome = f"{len(subjects)} open, {len(new)} new" + ("" if complete else ", not all known")
        note = (
            f"{wheels} wheels and their bases; {len(audited.accepted)} accepted; {len(gone)} gone since the last report"
        )
        return NightlyResult(
            check=NightlyCheck.AUDIT, outcome=outcome, note=note, findings=tuple(findings), data={"gone": gone}
        )


def vulnerability_findings(audited: Audited) -> list[NightlyFinding]:
    """Return a finding for each vulnerability that is not accepted, and for each service that did not answer."""
    findings = [
        NightlyFinding(
            check=NightlyCheck.AUDIT,
            kind="vulnerability",
            severity=NightlySeverity.ERROR,
            subject=f"{item.package} {item.version} {item.id}",
            text=f"{item.package} {item.version}: {item.id}, "
            + (f"fixed in {item.fixed}" if item.fixed else "no fix yet"),
        )
        for item in audited.open
    ]
    return [*findings, *(_unanswered_finding(reason, NightlySeverity.UNKNOWN) for reason in audited.unanswered)]


def _unanswered_finding(reason: str, severity: NightlySeverity) -> NightlyFinding:
    return NightlyFinding(
        check=NightlyCheck.AUDIT, kind="unanswered", severity=severity, subject=reason[:40], text=reason
    )


@dataclass(frozen=True, kw_only=True)
class NightlyLocks:
    """The locks of some cells, and for each cell without a usable lock the reason."""

    locks: dict[Cell, CellLock] = field(default_factory=dict)
    defects: dict[Cell, str] = field(default_factory=dict)
    """Cell to the sentence that says why its lock cannot be used."""

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells whose locks can be used."""
        return list(self.locks)

    @property
    def key(self) -> str:
        """A text that changes with every lock, and with every reason why one cannot be used."""
        states = {str(cell): lock.digest for cell, lock in self.locks.items()}
        states |= {str(cell): reason for cell, reason in self.defects.items()}
        return "\n".join(f"{cell} {state}" for cell, state in sorted(states.items()))

    def findings(self, check: NightlyCheck) -> list[NightlyFinding]:
        """Return an error for each lock that cannot be used: the check could not look at anything of its cell."""
        return [
            NightlyFinding(
                check=check,
                kind="lock-unreadable",
                severity=NightlySeverity.ERROR,
                subject=str(cell),
                text=reason if str(cell) in reason else f"{cell}: {reason}",
                cells=(str(cell),),
            )
            for cell, reason in self.defects.items()
        ]


def read_nightly_locks(here: Project, cells: Iterable[Cell]) -> NightlyLocks:
    """Read the committed locks of cells; a cell that was never locked, or whose lock is damaged, is a defect."""
    read = NightlyLocks()
    for cell in cells:
        try:
            read.locks[cell] = image_release.require_lock(here, cell)
        except KnowngoodError as error:
            read.defects[cell] = str(error)
    return read
