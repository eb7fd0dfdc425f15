"""Prepares a nightly run from the checkout, the evidence, earlier reports and the engine; then runs and reports it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core import cell as cells
from knowngood.core import extensions, local_files
from knowngood.core.errors import KnowngoodError
from knowngood.core.notify import Notify
from knowngood.engine import container_engine as engines
from knowngood.evidence import run_evidence
from knowngood.images import build_inputs, build_survey, dockerfile, pipeline
from knowngood.lock import wheelhouse
from knowngood.registry import image_release
from knowngood.reports import nightly_checks, nightly_folder, nightly_plan, nightly_report
from knowngood.reports.nightly_checks import AuditCheck, ImageChecks, LockedFilesCheck, explain_failure
from knowngood.reports.nightly_report import (
    NightlyCheck,
    NightlyFinding,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    findings_exit_code,
)
from knowngood.reports.nightly_tasks import NightlyChecks, NightlyExecution, ProjectCheck, TaskReporter
from knowngood.smoke import suite_command, suite_files, suite_run
from knowngood.smoke.suite_files import find_cell_suite

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.project.checkout import Project
    from knowngood.reports.nightly_checks import NightlyLocks


@dataclass(frozen=True, kw_only=True)
class NightlyRequest:
    """The options of the command line."""

    words: tuple[str, ...]
    """The selection of cells."""
    folder: Path
    checks: frozenset[str]
    budget: int | None
    """In minutes."""
    suite: suite_command.SuiteOptions

    def settings(self) -> nightly_plan.NightlySettings:
        """Return the settings for the plan."""
        return nightly_plan.NightlySettings(
            checks=frozenset(map(NightlyCheck, self.checks)),
            budget=None if self.budget is None else self.budget * 60.0,
        )

    def document(self) -> dict[str, Any]:
        """Return the settings as the report contains them."""
        return {
            "checks": [str(check) for check in NightlyCheck if check in self.checks],
            "budget_minutes": self.budget,
            "quick": self.suite.quick,
            "gpus": self.suite.gpus,
        }


@dataclass(frozen=True, kw_only=True)
class PreparedNightly:
    """A nightly run that is planned and can begin."""

    here: Project
    request: NightlyRequest
    now: datetime
    cells: Sequence[Cell]
    tasks: Sequence[nightly_plan.NightlyTask]
    skipped: Sequence[NightlyResult]
    settings: nightly_plan.NightlySettings
    checks: NightlyChecks
    node: Mapping[str, Any]
    last: NightlyReport | None
    newest: NightlyReport | None
    """The last report, or that of an earlier run on this date."""
    notes: Sequence[str]

    @property
    def date(self) -> str:
        """The date of the report (UTC)."""
        return self.now.date().isoformat()

    def run(self, reporter: TaskReporter) -> NightlyReport:
        """Do everything that is not finished yet for this date; wait for another run with the same folder to end."""
        with local_files.lock_folder(self.request.folder):
            progress = nightly_folder.NightlyProgress(self.request.folder, self.date)
            started = progress.started or self.now.isoformat(timespec="seconds")
            execution = NightlyExecution(
                tasks=self.tasks,
                skipped=self.skipped,
                settings=self.settings,
                checks=self.checks,
                keep=lambda result: progress.keep(result, started),
                done=progress.done,
            )
            made = nightly_folder.keep_open_failures(execution.run(reporter), self.newest, self.here.matrix.entries)
            results = [nightly_report.date_findings(result, self.last, self.date) for result in made]
        return NightlyReport(
            schema="knowngood/nightly/1",
            date=self.date,
            started=started,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            node=dict(self.node),
            revision=_revision(self.here),
            cells=tuple(map(str, self.cells)),
            settings=self.request.document(),
            results=tuple(results),
            exit=findings_exit_code(finding for result in results for finding in result.findings),
            notes=tuple(self.notes),
        )


def _revision(here: Project) -> str | None:
    source = image_release.read_git_source(here.root)
    return source.commit if source else None


def prepare_nightly(here: Project, request: NightlyRequest, notify: Notify) -> PreparedNightly:
    """Read cells, evidence, reports and the engine, and plan the run."""
    chosen = here.matrix.select_cells(request.words)
    now = datetime.now(UTC)
    reports, unusable = nightly_folder.load_reports(request.folder)
    notes: list[str] = []
    earlier = [report for report in reports if report.date < now.date().isoformat()]
    wheels_folder = wheelhouse.wheelhouse_folder()
    images = _image_checks(here, request, wheels_folder, notify)
    node = (
        suite_run.engine_fingerprint(images.line.engine)
        if images.line
        else suite_run.machine_fingerprint(platform.node(), {})
    )
    surveyed = build_survey.survey_cells(here, chosen, wheels_folder)
    planned, refused = [], list[NightlyResult]()
    for item in surveyed:
        notes += [f"{item.cell}: {item.note}"] if item.note else []
        runs, unreadable = run_evidence.load_cell_evidence(here.evidence, item.cell)
        unusable += [nightly_report.unusable_history_finding(item.cell, reason) for reason in unreadable]
        if reason := item.missing_wheel or item.lock_defect or item.lock_problem or _stale_dockerfile(here, item.cell):
            refused.append(_refused_result(item.cell, reason, missing=bool(item.missing_wheel)))
            continue
        inputs = item.shape.inputs if item.shape else ""
        planned.append(_planned_cell(here, cells.parse_cell(item.cell), inputs, runs, earlier, node, request))
    if not request.checks & {NightlyCheck.REBUILD, NightlyCheck.SUITE}:
        refused = []
    settings = request.settings()
    project_key = _project_key(planned, nightly_checks.read_nightly_locks(here, chosen))
    tasks, skipped = nightly_plan.plan_nightly(planned, settings, now, project_key)
    last = nightly_report.find_previous_report(reports, now.date().isoformat())
    checks = NightlyChecks(
        project={
            NightlyCheck.FILES: LockedFilesCheck(here=here, cells=chosen, wheelhouse=wheels_folder),
            NightlyCheck.UPSTREAM: _upstream_check(here, chosen),
            NightlyCheck.AUDIT: AuditCheck(
                here=here,
                cells=chosen,
                earlier=_earlier_vulnerabilities(last),
            ),
        },
        rebuild=images.rebuild,
        suite=images.suite,
        explain=lambda cell: explain_failure(here, cell, gpus=request.suite.gpus),
    )
    return PreparedNightly(
        here=here,
        request=request,
        now=now,
        cells=chosen,
        tasks=tasks,
        skipped=[*skipped, *refused, *_history_results(unusable)],
        settings=settings,
        checks=checks,
        node=node,
        last=last,
        newest=nightly_folder.find_newest_report(reports, now.date().isoformat()),
        notes=notes,
    )


def _upstream_check(here: Project, chosen: Sequence[Cell]) -> ProjectCheck:
    """Return the check of new releases that an extension brings; without one, a check that says that none is there."""
    make = extensions.load_extension(extensions.UPSTREAM_CHECK)
    if make is not None:
        check: ProjectCheck = make(here=here, cells=chosen)
        return check
    reason = "knowngood-facts, which compares releases with facts, is not installed"
    finding = nightly_report.unexamined_finding(NightlyCheck.UPSTREAM, reason, NightlySeverity.UNKNOWN)
    missing = NightlyResult(check=NightlyCheck.UPSTREAM, outcome="not known", note=reason, findings=(finding,))
    return lambda _notify: missing


def _image_checks(here: Project, request: NightlyRequest, wheels_folder: Path, notify: Notify) -> ImageChecks:
    """Find an engine if a check needs one; the results of those checks report what is wrong with it."""
    if not request.checks & {NightlyCheck.REBUILD, NightlyCheck.SUITE}:
        return ImageChecks(line=None)
    try:
        engine = engines.ensure_engine(notify=notify)
    except KnowngoodError as error:
        return ImageChecks(line=None, lacking=error)
    options = pipeline.PipelineOptions(wheelhouse=wheels_folder, locked=True, suite=request.suite)
    return ImageChecks(line=pipeline.Pipeline(here, options, engine))


def _planned_cell(  # noqa: PLR0913, PLR0917
    here: Project,
    cell: Cell,
    inputs: str,
    runs: Sequence[run_evidence.Evidence],
    earlier: Sequence[NightlyReport],
    node: Mapping[str, Any],
    request: NightlyRequest,
) -> nightly_plan.PlannedCell:
    image = image_release.recorded_digest(here, cell, build_inputs.read_recipe_digest(here))
    suite, wanted = suite_files.hash_suite(find_cell_suite(here, cell)), request.suite
    return nightly_plan.PlannedCell(
        id=str(cell),
        inputs=inputs,
        recorded=here.tree.record_path(cell).exists(),
        proven=nightly_plan.find_proof(runs, image, node, suite, gpus=wanted.gpus, quick=wanted.quick),
        rebuilt=nightly_plan.find_last_rebuild(earlier, str(cell), inputs),
        seconds=nightly_plan.list_durations(earlier, str(cell)),
    )


def _stale_dockerfile(here: Project, cell: str) -> str:
    """Return why the committed Dockerfile cannot be used; an empty text when it can."""
    parsed = cells.parse_cell(cell)
    text = dockerfile.render_dockerfile(image_release.require_lock(here, parsed), here.templates)
    stale = dockerfile.describe_stale_files({here.tree.cell_folder(parsed) / "Dockerfile": text}, [])
    return "its Dockerfile is stale; run `knowngood render` and commit it" if stale else ""


def _refused_result(cell: str, reason: str, *, missing: bool) -> NightlyResult:
    """Return the result for a cell that cannot be built from what is committed."""
    severity = NightlySeverity.MISSING if missing else NightlySeverity.ERROR
    text = reason if reason.startswith(cell) else f"{cell}: {reason}"
    finding = NightlyFinding(
        check=NightlyCheck.REBUILD, kind="not-current", severity=severity, subject=cell, text=text, cells=(cell,)
    )
    return NightlyResult(
        check=NightlyCheck.REBUILD, subject=cell, outcome="not current", note=reason, findings=(finding,)
    )


def _history_results(unusable: Sequence[NightlyFinding]) -> list[NightlyResult]:
    """Return the result about the files of earlier runs; none when all of them can be used."""
    if not unusable:
        return []
    outcome = f"{len(unusable)} not usable"
    return [NightlyResult(check=NightlyCheck.HISTORY, outcome=outcome, findings=tuple(unusable))]


def _project_key(planned: Sequence[nightly_plan.PlannedCell], locks: NightlyLocks) -> str:
    """Return the hash of all inputs of the checks of the whole project."""
    words = sorted(f"{item.id} {item.inputs}" for item in planned)
    return hashlib.sha256("\n".join([*words, locks.key]).encode()).hexdigest()


def _earlier_vulnerabilities(last: NightlyReport | None) -> dict[str, str]:
    """Return the vulnerabilities in the last report, each with the date of its first report."""
    findings = last.findings if last else []
    return {item.subject: item.since for item in findings if item.kind == "vulnerability"}
