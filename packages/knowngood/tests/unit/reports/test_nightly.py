"""The nightly run: what it plans, whose fault a failure is, its findings and report, and how it continues."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from knowngood.core.errors import KnowngoodError, MissingError, NetworkError, UnknownError, UsageError
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.reports import nightly_checks, nightly_folder, nightly_plan, nightly_report, nightly_tasks
from knowngood.reports.nightly_checks import ImageChecks, IndexFile, vulnerability_findings
from knowngood.reports.nightly_report import (
    NightlyCheck,
    NightlyFinding,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    ResultState,
    findings_exit_code,
)
from knowngood.reports.nightly_tasks import (
    CheckAttempt,
    FaultDomain,
    NightlyChecks,
    NightlyExecution,
    attempt_from_error,
)
from samples import FA0, FA2, FA4, distribution

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
GREEN = CheckAttempt(domain=FaultDomain.NONE, text="5 pass")
RED = CheckAttempt(domain=FaultDomain.IMAGE, text="eager: NaN")


def finding(kind="gone", severity=NightlySeverity.ERROR, subject="a.whl", check=NightlyCheck.FILES, **more):
    return NightlyFinding(
        check=check, kind=kind, severity=severity, subject=subject, text=f"{subject} is {kind}", **more
    )


def report(date="2026-11-20", results=(), **more):
    fields = {"started": NOW.isoformat(), "finished": NOW.isoformat(), "node": {}, "revision": "a" * 40, "exit": 0}
    return NightlyReport(
        schema="knowngood/nightly/1", date=date, cells=(FA4,), settings={}, results=results, **fields | more
    )


def run(
    *,
    ok=True,
    image="sha256:1",
    when="2026-11-20T03:00:00+00:00",
    where=RunPlace.CONTAINER_CPU,
    node="n",
    suite="5",
    **more,
):
    report = {"verdict": {"ok": ok}, "suite_hash": suite, "checks": []}
    fields = {"cell": FA4, "image": image, "when": when, "node": {"name": node}, "command": ("python",)}
    return Evidence(where=where, report=report, **fields | more)


WHEEL = distribution("numpy", "2.0")
LOCKS = {FA4: [WHEEL, distribution("torch", "2.11.0")], FA2: [WHEEL]}


class TestFiles:
    def listing(self, **changes):
        found = {
            item.file: IndexFile(sha256=item.sha256, yanked=False) for item in nightly_checks.list_locked_files(LOCKS)
        }
        return {name: found | changes.get(name, {}) for name in ("numpy", "torch")}

    def kinds(self, listing):
        return [(item.kind, item.severity, item.cells) for item in nightly_checks.judge_locked_files(LOCKS, listing)]

    def test_all_is_there(self):
        assert self.kinds(self.listing()) == []

    @pytest.mark.parametrize(
        ("listed", "kind", "severity"),
        [
            (IndexFile(sha256="f" * 64, yanked=False), "hash-changed", "error"),
            (IndexFile(sha256=WHEEL.sha256, yanked=True), "yanked", "error"),
            (IndexFile(sha256="", yanked=False), "no-hash", "unknown"),
        ],
    )
    def test_a_changed_file_is_one_finding_with_its_cells(self, listed, kind, severity):
        assert self.kinds(self.listing(numpy={WHEEL.file: listed})) == [(kind, severity, (FA4, FA2))]

    def test_a_file_that_is_changed_and_yanked_has_both_findings(self):
        listed = IndexFile(sha256="f" * 64, yanked=True)
        kinds = [kind for kind, _, _ in self.kinds(self.listing(numpy={WHEEL.file: listed}))]
        assert kinds == ["hash-changed", "yanked"]

    def test_a_file_that_is_gone(self):
        assert self.kinds({**self.listing(), "numpy": {}}) == [("gone", "error", (FA4, FA2))]

    def test_unread_projects_are_one_finding_for_each_reason(self):
        listing = {name: f"the registry does not answer for {name}" for name in ("numpy", "torch")}
        (found,) = nightly_checks.judge_locked_files(LOCKS, listing)
        assert (found.kind, found.severity) == ("unanswered", "unknown")
        assert found.text == "numpy, torch: the registry does not answer for it"

    def test_a_wheel_that_was_compiled_here_is_on_no_index(self):
        assert distribution("flash-attn", "2.8.3+cu13torch2.11").made_here
        assert not WHEEL.made_here


class TestFaults:
    @pytest.mark.parametrize("domain", [FaultDomain.NONE, FaultDomain.HOST, FaultDomain.SUITE])
    def test_only_an_image_is_tried_again(self, domain):
        assert nightly_tasks.needs_second_attempt(RED)
        assert not nightly_tasks.needs_second_attempt(CheckAttempt(domain=domain, text=""))

    @pytest.mark.parametrize(
        ("first", "second", "outcome", "domain", "severity"),
        [
            (GREEN, None, "good", FaultDomain.NONE, None),
            (RED, GREEN, "flaky", FaultDomain.IMAGE, "warning"),
            (RED, RED, "image", FaultDomain.IMAGE, "error"),
            (RED, replace(RED, domain=FaultDomain.HOST), "host", FaultDomain.HOST, "missing"),
            (replace(RED, domain=FaultDomain.SUITE), None, "suite", FaultDomain.SUITE, "error"),
            (replace(RED, domain=FaultDomain.HOST), GREEN, "host", FaultDomain.HOST, "missing"),
        ],
    )
    def test_the_verdict(self, first, second, outcome, domain, severity):
        found = nightly_tasks.judge_attempts(first, second)
        assert (found.outcome, found.domain, found.severity) == (outcome, domain, severity)

    def test_the_words(self):
        assert nightly_tasks.judge_attempts(RED, RED).text == "image: eager: NaN, twice"

    def test_what_is_missing_is_the_hosts_fault(self):
        assert attempt_from_error(NetworkError("x")).domain is FaultDomain.HOST
        assert attempt_from_error(KnowngoodError("x")).domain is FaultDomain.IMAGE

    def test_without_an_engine_nothing_is_the_images_fault(self):
        found = ImageChecks(line=None, lacking=MissingError("no engine answers"))
        for attempt in (found.rebuild, found.suite):
            assert attempt(FA4, print) == CheckAttempt(domain=FaultDomain.HOST, text="no engine answers")

    def test_the_last_passing_run_is_of_an_image_on_this_kind_of_machine(self):
        old, new = run(), run(when="2026-11-20T23:00:00-05:00")
        red = run(ok=False, when="2026-11-22T00:00:00+00:00")
        assert nightly_checks.find_last_passing_run([new, old, red], gpus=False) is new
        assert nightly_checks.find_last_passing_run([run(where=RunPlace.BARE)], gpus=False) is None
        assert nightly_checks.find_last_passing_run([new], gpus=True) is None

    def test_what_changed_besides_the_packages(self):
        assert nightly_checks.list_environment_changes(run(), run(node="m")) == ["the node's name (n -> m)"]
        assert nightly_checks.list_environment_changes(run(), run()) == []

    def test_which_packages_changed(self):
        good = run()
        good.report["environment"] = {"distributions": {"Torch": "2.11.0+cu130", "idna": "3", "gone": "1"}}
        assert nightly_checks.list_package_changes(good, {"torch": "2.11.0", "idna": "4", "new": "1"}) == [
            "gone 1 -> absent",
            "idna 3 -> 4",
            "new absent -> 1",
        ]


class TestPlan:
    def cell(self, name=FA4, **more):
        return nightly_plan.PlannedCell(id=name, inputs="i", **more)

    def planned(self, cells, **settings):
        tasks, left = nightly_plan.plan_nightly(cells, nightly_plan.NightlySettings(**settings), NOW, "w")
        return [(str(task.check), task.cell.id if task.cell else "") for task in tasks], left

    def test_the_oldest_proof_comes_first_and_the_share_is_kept(self):
        cells = [self.cell(FA4, rebuilt="2026-11-19"), self.cell(FA2, rebuilt="2026-11-01"), self.cell(FA0)]
        tasks, left = self.planned(cells, checks=frozenset({NightlyCheck.REBUILD}), share=2)
        assert tasks == [("rebuild", FA0), ("rebuild", FA2)]
        assert [(item.subject, item.state, item.note) for item in left] == [(FA4, ResultState.LEFT, "last 2026-11-19")]

    def test_every_cell_has_its_turn(self):
        cells = {name: self.cell(name) for name in (FA4, FA2, FA0)}
        seen = []
        for day in range(1, 4):
            ((_, name),) = self.planned(cells.values(), checks=frozenset({NightlyCheck.REBUILD}), share=1)[0]
            cells[name] = replace(cells[name], rebuilt=f"2026-11-{day:02}")
            seen.append(name)
        assert sorted(seen) == sorted(cells)

    def test_a_cell_without_a_record_is_not_built_again(self):
        tasks, left = self.planned([self.cell(recorded=False)], checks=frozenset({NightlyCheck.REBUILD}))
        assert (tasks, left[0].note) == ([], "it has no image.json")

    @pytest.mark.parametrize(("days", "runs"), [(6.9, False), (7, True), (30, True)])
    def test_a_proof_expires(self, days, runs):
        proven = (NOW - timedelta(days=days)).isoformat()
        tasks, left = self.planned([self.cell(proven=proven)], checks=frozenset({NightlyCheck.SUITE}))
        assert (bool(tasks), [item.state for item in left]) == (runs, [] if runs else [ResultState.PROVEN])

    def test_checks_that_use_services_come_before_long_ones(self):
        tasks, _ = self.planned([self.cell()])
        assert [check for check, _ in tasks] == ["files", "upstream", "audit", "rebuild", "suite"]

    @pytest.mark.parametrize(
        ("spent", "estimate", "fits"), [(0, 0, True), (0, 61, False), (30, 30, True), (60, 0, False)]
    )
    def test_tasks_stay_within_the_budget(self, spent, estimate, fits):
        task = nightly_plan.NightlyTask(check=NightlyCheck.SUITE, cell=self.cell(seconds={"suite": estimate}))
        assert nightly_plan.fits_budget(task, spent, nightly_plan.NightlySettings(budget=60)) is fits
        assert nightly_plan.fits_budget(
            nightly_plan.NightlyTask(check=NightlyCheck.AUDIT), 1e9, nightly_plan.NightlySettings(budget=60)
        )
        assert nightly_plan.fits_budget(task, 1e9, nightly_plan.NightlySettings())

    @pytest.mark.parametrize(
        ("other", "counts"),
        [
            (run(), True),
            (run(ok=False), False),
            (run(image="sha256:2"), False),
            (run(node="m"), False),
            (run(command=("python", "--quick")), False),
            (run(where=RunPlace.BARE), False),
            (run(suite="6"), False),
            (run(where=RunPlace.CONTAINER_GPU), True),
            (run(where=RunPlace.CONTAINER_EMULATED, command=("python", "test_training.py::test_trains[x]")), True),
        ],
    )
    def test_what_is_proven_is_this_image_on_this_node(self, other, counts):
        found = nightly_plan.find_proof([other], "sha256:1", {"name": "n"}, "5", gpus=False, quick=False)
        assert (found == other.when) is counts

    def test_the_newest_proof_is_the_latest_moment_and_not_the_latest_text(self):
        late, early = run(when="2026-11-20T23:00:00-05:00"), run(when="2026-11-21T01:00:00+00:00")
        found = nightly_plan.find_proof([late, early], "sha256:1", {"name": "n"}, "5", gpus=False, quick=False)
        assert found == late.when

    def test_a_cpu_run_does_not_prove_a_gpu_and_a_quick_run_proves_a_quick_one(self):
        node = {"name": "n"}
        assert nightly_plan.find_proof([run()], "sha256:1", node, "5", gpus=True, quick=False) is None
        assert nightly_plan.find_proof([run(command=("--quick",))], "sha256:1", node, "5", gpus=False, quick=True)
        assert nightly_plan.find_proof([run(image=None)], None, node, "5", gpus=False, quick=True) is None

    @pytest.mark.parametrize(
        ("red", "counts"),
        [
            (run(ok=False, when="2026-11-20T04:00:00+00:00"), False),
            (run(ok=False, when="2026-11-20T02:00:00+00:00"), True),
            (run(ok=False, when="2026-11-20T04:00:00+00:00", node="m"), True),
            (run(ok=False, when="2026-11-20T04:00:00+00:00", image="sha256:2"), True),
        ],
    )
    def test_a_later_failure_of_the_same_image_on_this_node_takes_the_proof_back(self, red, counts):
        found = nightly_plan.find_proof([run(), red], "sha256:1", {"name": "n"}, "5", gpus=False, quick=False)
        assert (found is not None) is counts

    def unexamined(self, *states, check=NightlyCheck.SUITE, **settings):
        results = [
            NightlyResult(check=check, subject=FA4, state=state, outcome=str(state), note="no time") for state in states
        ]
        return nightly_plan.list_unexamined_checks(results, nightly_plan.NightlySettings(**settings))

    @pytest.mark.parametrize("check", [NightlyCheck.SUITE, NightlyCheck.REBUILD])
    def test_a_check_that_looked_at_no_cell_is_not_good(self, check):
        (result,) = self.unexamined(ResultState.LEFT, ResultState.LEFT, check=check)
        assert (result.check, result.outcome) == (check, "not known")
        assert findings_exit_code(result.findings) == 3
        assert result.findings[0].text == f"{check}: nothing was examined: all 2 cells were left (no time)"

    @pytest.mark.parametrize("state", [ResultState.DONE, ResultState.PROVEN])
    def test_one_examined_or_proven_cell_is_enough(self, state):
        assert self.unexamined(ResultState.LEFT, state) == []

    def test_rebuilds_that_were_turned_off_are_not_missed(self):
        assert self.unexamined(ResultState.LEFT, checks=frozenset({NightlyCheck.FILES})) == []

    def test_an_earlier_rebuild_counts_for_the_same_inputs(self):
        made = NightlyResult(check=NightlyCheck.REBUILD, subject=FA4, key="i", outcome="same", seconds=9)
        reports = [report("2026-11-19", (made,)), report("2026-11-20", (made.model_copy(update={"outcome": "image"}),))]
        assert nightly_plan.find_last_rebuild(reports, FA4, "i") == "2026-11-19"
        assert nightly_plan.find_last_rebuild(reports, FA4, "j") is None
        assert nightly_plan.list_durations(reports, FA4) == {"rebuild": 9}

    def test_the_duration_of_a_check_is_that_of_the_latest_report(self):
        made = NightlyResult(check=NightlyCheck.REBUILD, subject=FA4, key="i", outcome="same", seconds=9)
        later = report("2026-11-20", (made.model_copy(update={"seconds": 5}),))
        assert nightly_plan.list_durations([later, report("2026-11-19", (made,))], FA4) == {"rebuild": 5}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 10
        return self.now


class TestExecution:
    def execution(self, *, suite=(GREEN,), done=None, cells=(FA4,), budget=None, wide=None):
        self.said, self.kept, attempts = [], [], iter(suite)
        self.tried = []

        def attempt(cell, _say):
            self.tried.append(cell)
            return next(attempts)

        def files_(_say):
            return NightlyResult(check=NightlyCheck.FILES, outcome="all there")

        tasks = [nightly_plan.NightlyTask(check=NightlyCheck.FILES, key="w")]
        tasks += [
            nightly_plan.NightlyTask(
                check=NightlyCheck.SUITE, cell=nightly_plan.PlannedCell(id=name, inputs="i"), key="i"
            )
            for name in cells
        ]
        checks = NightlyChecks(
            project={NightlyCheck.FILES: wide or files_},
            rebuild=attempt,
            suite=attempt,
            explain=lambda _: finding("changed-packages", check=NightlyCheck.SUITE),
        )
        return NightlyExecution(
            tasks=tasks,
            skipped=(),
            settings=nightly_plan.NightlySettings(budget=budget),
            checks=checks,
            keep=self.kept.append,
            done=done or {},
            clock=Clock(),
        )

    def results(self, **how):
        return self.execution(**how).run(lambda _: contextlib.nullcontext(self.said.append))

    def test_a_good_one(self):
        files_, suite = self.results()
        assert (files_.outcome, suite.outcome, suite.note, suite.findings) == ("all there", "good", "5 pass", ())
        assert (suite.seconds, suite.key, self.kept) == (10, "i", [files_, suite])

    def test_a_failing_image_is_tried_once_more_and_then_explained(self):
        seen = replace(RED, data={"evidence": "x"})
        _, suite = self.results(suite=(seen, seen))
        assert self.tried == [FA4, FA4]
        assert [item.kind for item in suite.findings] == ["image", "changed-packages"]

    def test_a_failure_without_evidence_is_not_explained(self):
        _, suite = self.results(suite=(RED, RED))
        assert [item.kind for item in suite.findings] == ["image"]

    def test_flaky_is_a_warning(self):
        _, suite = self.results(suite=(RED, GREEN))
        assert (suite.outcome, suite.findings[0].severity) == ("flaky", "warning")

    @pytest.mark.parametrize(("error", "severity"), [(UnknownError("x"), "unknown"), (NetworkError("x"), "missing")])
    def test_a_service_that_does_not_answer_is_not_good(self, error, severity):
        def wide(_say):
            raise error

        files_, _ = self.results(wide=wide)
        assert (files_.outcome, files_.findings[0].severity) == ("not known", severity)

    def test_finished_tasks_are_not_repeated_unless_a_service_did_not_answer(self):
        first = self.results()
        done = {item.task: item for item in first}
        assert self.results(done=done) == first
        assert (self.tried, self.kept) == ([], [])
        silent = finding("unanswered", NightlySeverity.UNKNOWN)
        done["files"] = first[0].model_copy(update={"findings": (silent,)})
        assert self.results(done=done)[0].findings == ()
        assert [item.check for item in self.kept] == [NightlyCheck.FILES]

    def test_a_task_with_changed_inputs_is_repeated(self):
        done = {item.task: item.model_copy(update={"key": "old"}) for item in self.results()}
        self.results(done=done)
        assert len(self.kept) == 2

    def test_a_night_without_time_for_any_suite_is_not_good(self):
        _, left, verdict = self.results(budget=0)
        assert (left.state, verdict.outcome) == (ResultState.LEFT, "not known")
        assert findings_exit_code(verdict.findings) == 3
        assert [item.check for item in self.kept] == [NightlyCheck.FILES]

    def test_a_rebuild_with_nothing_to_compare_is_not_good(self):
        data = {"outcome": "stale", "unexamined": "there is nothing to compare a rebuild with: changed"}
        _, result = self.results(suite=(replace(GREEN, data=data),))
        assert (result.outcome, findings_exit_code(result.findings)) == ("stale", 3)

    @pytest.mark.parametrize("error", [UsageError("x is damaged"), KnowngoodError("x has no packages.lock")])
    def test_a_damaged_input_of_a_project_check_is_an_error(self, error):
        def wide(_say):
            raise error

        files_, _ = self.results(wide=wide)
        assert (files_.outcome, files_.findings[0].severity) == ("not known", "error")

    def test_tasks_beyond_the_budget_are_reported_as_left(self):
        _, *suites = self.results(suite=(GREEN, GREEN), cells=(FA4, FA2, FA0), budget=15)
        assert [item.state for item in suites] == [ResultState.DONE, ResultState.DONE, ResultState.LEFT]
        assert "no time left" in suites[-1].note


class TestDates:
    def dated(self, item, *, last=None):
        made = NightlyResult(check=item.check, outcome="x", findings=(item,))
        return nightly_report.date_findings(made, last, "2026-11-21").findings[0]

    def test_a_finding_keeps_the_date_of_its_first_report(self):
        last = report(
            results=(NightlyResult(check=NightlyCheck.FILES, outcome="", findings=(finding(since="2026-11-02"),)),)
        )
        assert self.dated(finding(), last=last).since == "2026-11-02"
        assert self.dated(finding(subject="b.whl"), last=last).since == "2026-11-21"
        assert (
            nightly_report.find_previous_report([report("2026-11-19"), last, report("2026-11-21")], "2026-11-21")
            is last
        )

    def test_a_vulnerability_is_an_error_in_its_first_report_only(self):
        new = finding("vulnerability", subject="a 1 CVE-1", check=NightlyCheck.AUDIT)
        last = report(
            results=(
                NightlyResult(
                    check=NightlyCheck.AUDIT, outcome="", findings=(new.model_copy(update={"since": "2026-11-20"}),)
                ),
            )
        )
        assert self.dated(new).severity == "error"
        assert self.dated(new, last=last).severity == "warning"

    def test_the_audit_as_findings(self):
        from knowngood.registry.vulnerability_audit import AuditReport as Audited
        from knowngood.registry.vulnerability_audit import Vulnerability

        item = Vulnerability(package="a", version="1", id="CVE-1", fixed="2")
        found = vulnerability_findings(Audited(open=(item,), accepted=(), unanswered=("no answer",), unused=()))
        assert [(one.kind, one.severity) for one in found] == [("vulnerability", "error"), ("unanswered", "unknown")]
        assert found[0].text == "a 1: CVE-1, fixed in 2"


class TestReport:
    def test_the_worst_finding_decides(self):
        severities = [
            NightlySeverity.INFO,
            NightlySeverity.WARNING,
            NightlySeverity.UNKNOWN,
            NightlySeverity.MISSING,
            NightlySeverity.ERROR,
        ]
        codes = [findings_exit_code(finding(severity=one) for one in severities[: count + 1]) for count in range(5)]
        assert codes == [0, 0, 3, 4, 1]
        assert findings_exit_code([]) == 0

    def test_a_large_report_is_one_screen(self):
        many = tuple(finding(subject="y" * 900) for _ in range(500))
        results = [NightlyResult(check=NightlyCheck.FILES, outcome="500 gone", note="n" * 500, findings=many)]
        results += [
            NightlyResult(check=NightlyCheck.SUITE, subject=f"cell{number}", outcome="good", seconds=70)
            for number in range(500)
        ]
        page = nightly_report.render_report_page(report(results=tuple(results), exit=1, notes=("z" * 900,) * 50))
        lines = page.splitlines()
        assert len(lines) <= 50
        assert max(map(len, lines)) < 260
        assert "and 484 more cells" in page
        assert "and 486 more; the JSON has all of them" in page
        assert lines[0] == "# Nightly report of 2026-11-20: **failed**"

    def test_hostile_text_is_escaped(self):
        bad = finding(subject="<script>|\n# x", cells=("a", "b"))
        page = nightly_report.render_report_page(
            report(results=(NightlyResult(check=NightlyCheck.FILES, outcome="a|b\nc", findings=(bad,)),))
        )
        assert "<script>" not in page
        assert "\n# x" not in page
        assert "| files | a\\|b c | 0 s |" in page
        assert "[2 cells]" in page

    def test_cells_with_finished_checks_come_first(self):
        red = NightlyResult(
            check=NightlyCheck.SUITE,
            subject=FA2,
            outcome="image",
            findings=(finding(check=NightlyCheck.SUITE),),
            seconds=90,
        )
        left = NightlyResult(
            check=NightlyCheck.SUITE, subject=FA4, state=ResultState.LEFT, outcome="left", note="no time"
        )
        rows = [
            line
            for line in nightly_report.render_report_page(report(results=(left, red))).splitlines()
            if line.startswith("| `")
        ]
        assert rows == [f"| `{FA2}` | - | **FAILED** image, 1.5 min |", f"| `{FA4}` | - | left: no time |"]


class TestFolder:
    def test_a_report_is_read_as_it_was_written_and_others_are_left_out(self, tmp_path):
        made = report(results=(NightlyResult(check=NightlyCheck.FILES, outcome="x", findings=(finding(),)),))
        assert nightly_folder.save_report(made, tmp_path).read_text().startswith("# Nightly report of 2026-11-20")
        (tmp_path / "2026-11-18.json").write_text('{"schema": "knowngood/nightly/9"}')
        (tmp_path / "2026-11-17.json").write_text("{")
        (tmp_path / "2026-11-16.json").write_text(made.render_json())
        reports, unusable = nightly_folder.load_reports(tmp_path)
        assert reports == [made]
        assert [item.subject for item in unusable] == [f"2026-11-{day}.json" for day in (16, 17, 18)]
        assert {item.severity for item in unusable} == {NightlySeverity.ERROR}

    def test_progress_outlives_the_process(self, tmp_path):
        first = nightly_folder.NightlyProgress(tmp_path, "2026-11-21")
        made = NightlyResult(check=NightlyCheck.SUITE, subject=FA4, outcome="good", key="i", data={"image": "sha256:1"})
        first.keep(made, "now")
        again = nightly_folder.NightlyProgress(tmp_path, "2026-11-21")
        assert (again.done, again.started) == ({f"suite:{FA4}": made}, "now")
        assert nightly_folder.load_reports(tmp_path) == ([], [])

    @pytest.mark.parametrize(
        "text", ["{", "[]", '{"schema": "x"}', '{"schema": "knowngood/nightly-state/1", "done": [1]}']
    )
    def test_a_damaged_state_file_is_ignored(self, tmp_path, text):
        (tmp_path / ".2026-11-21.state.json").write_text(text)
        assert nightly_folder.NightlyProgress(tmp_path, "2026-11-21").done == {}

    def test_the_state_file_of_an_earlier_date_is_deleted(self, tmp_path):
        old = tmp_path / ".2026-11-20.state.json"
        old.write_text(json.dumps({}))
        nightly_folder.NightlyProgress(tmp_path, "2026-11-21")
        assert not old.exists()
