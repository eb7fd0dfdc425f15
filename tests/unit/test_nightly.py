"""A night's core: what it plans, whom it blames, what it finds, how it is told, where it goes on."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from samples import FA0, FA2, FA4, distribution

from knowngood.errors import KnowngoodError, MissingError, NetworkError, UnknownError
from knowngood.evidence import Evidence, Where
from knowngood.nightly import blame, files, markdown, plan, since, state
from knowngood.nightly.blame import Attempt, Domain
from knowngood.nightly.files import Listed
from knowngood.nightly.images import Images
from knowngood.nightly.model import Check, Finding, Report, Result, Severity, State, exit_code
from knowngood.nightly.night import Crew, Night, failed
from knowngood.nightly.services import vulnerabilities

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
GREEN = Attempt(domain=Domain.NONE, text="5 pass")
RED = Attempt(domain=Domain.IMAGE, text="eager: NaN")


def finding(kind="gone", severity=Severity.ERROR, subject="a.whl", check=Check.FILES, **more):
    return Finding(check=check, kind=kind, severity=severity, subject=subject, text=f"{subject} is {kind}", **more)


def report(date="2026-11-20", results=(), **more):
    fields = {"started": NOW.isoformat(), "finished": NOW.isoformat(), "node": {}, "revision": "a" * 40, "exit": 0}
    return Report(schema="knowngood/nightly/1", date=date, cells=(FA4,), settings={}, results=results, **fields | more)


def run(*, ok=True, image="sha256:1", when="2026-11-20T03:00:00+00:00", where=Where.CONTAINER_CPU, node="n", **more):
    told = {"verdict": {"ok": ok}, "suite_hash": "5", "checks": []}
    fields = {"cell": FA4, "image": image, "when": when, "node": {"name": node}, "command": ("python",)}
    return Evidence(where=where, report=told, **fields | more)


WHEEL = distribution("numpy", "2.0")
LOCKS = {FA4: [WHEEL, distribution("torch", "2.11.0")], FA2: [WHEEL]}


class TestFiles:
    def listing(self, **changes):
        found = {item.file: Listed(sha256=item.sha256, yanked=False) for item in files.wanted(LOCKS)}
        return {name: found | changes.get(name, {}) for name in ("numpy", "torch")}

    def kinds(self, listing):
        return [(item.kind, item.severity, item.cells) for item in files.findings(LOCKS, listing)]

    def test_all_is_there(self):
        assert self.kinds(self.listing()) == []

    @pytest.mark.parametrize(
        ("listed", "kind", "severity"),
        [
            (Listed(sha256="f" * 64, yanked=False), "hash-changed", "error"),
            (Listed(sha256=WHEEL.sha256, yanked=True), "yanked", "error"),
            (Listed(sha256="", yanked=False), "no-hash", "unknown"),
        ],
    )
    def test_a_file_that_is_not_as_it_was_is_told_once_with_its_cells(self, listed, kind, severity):
        assert self.kinds(self.listing(numpy={WHEEL.file: listed})) == [(kind, severity, (FA4, FA2))]

    def test_a_file_that_is_gone(self):
        assert self.kinds({**self.listing(), "numpy": {}}) == [("gone", "error", (FA4, FA2))]

    def test_projects_that_could_not_be_asked_are_one_finding_a_reason(self):
        listing = {name: f"the registry does not answer for {name}" for name in ("numpy", "torch")}
        (found,) = files.findings(LOCKS, listing)
        assert (found.kind, found.severity) == ("unanswered", "unknown")
        assert found.text == "numpy, torch: the registry does not answer for it"

    def test_a_wheel_that_was_compiled_here_is_on_no_index(self):
        assert files.is_ours(distribution("flash-attn", "2.8.3+cu13torch2.11"))
        assert not files.is_ours(WHEEL)


class TestBlame:
    @pytest.mark.parametrize("domain", [Domain.NONE, Domain.HOST, Domain.SUITE])
    def test_only_an_image_is_tried_again(self, domain):
        assert blame.again(RED)
        assert not blame.again(Attempt(domain=domain, text=""))

    @pytest.mark.parametrize(
        ("first", "second", "outcome", "domain", "severity"),
        [
            (GREEN, None, "good", Domain.NONE, None),
            (RED, GREEN, "flaky", Domain.IMAGE, "warning"),
            (RED, replace(GREEN, where="tcp://b"), "flaky", Domain.HOST, "warning"),
            (RED, RED, "image", Domain.IMAGE, "error"),
            (RED, replace(RED, domain=Domain.HOST), "host", Domain.HOST, "missing"),
            (replace(RED, domain=Domain.SUITE), None, "suite", Domain.SUITE, "error"),
        ],
    )
    def test_the_verdict(self, first, second, outcome, domain, severity):
        found = blame.judge(first, second)
        assert (found.outcome, found.domain, found.severity) == (outcome, domain, severity)

    def test_the_words(self):
        assert "green at tcp://b: look at this host first" in blame.judge(RED, replace(GREEN, where="tcp://b")).text
        assert blame.judge(RED, RED).text == "image: eager: NaN, twice (here)"

    def test_what_is_not_there_is_the_hosts_fault(self):
        assert failed(NetworkError("x")).domain is Domain.HOST
        assert failed(KnowngoodError("x")).domain is Domain.IMAGE

    def test_without_an_engine_nothing_is_the_images_fault(self):
        found = Images(line=None, lacking=MissingError("no engine answers"))
        for attempt in (found.rebuild, found.suite):
            assert attempt(FA4, print, elsewhere=False) == Attempt(domain=Domain.HOST, text="no engine answers")

    def test_the_last_green_is_of_an_image_on_this_kind_of_machine(self):
        old, new = run(), run(when="2026-11-20T23:00:00-05:00")
        assert blame.last_green([new, old, run(ok=False, when="2026-11-22T00:00:00+00:00")], gpus=False) is new
        assert blame.last_green([run(where=Where.BARE)], gpus=False) is None
        assert blame.last_green([new], gpus=True) is None

    def test_what_changed_besides_the_packages(self):
        assert blame.changed(run(), run(node="m")) == ["the node's name (n -> m)"]
        assert blame.changed(run(), run()) == []


class TestPlan:
    def cell(self, name=FA4, **more):
        return plan.Cell(id=name, inputs="i", **more)

    def planned(self, cells, **settings):
        tasks, left = plan.plan(cells, plan.Settings(**settings), NOW, "w")
        return [(str(task.check), task.cell.id if task.cell else "") for task in tasks], left

    def test_the_oldest_proof_comes_first_and_the_share_is_kept(self):
        cells = [self.cell(FA4, rebuilt="2026-11-19"), self.cell(FA2, rebuilt="2026-11-01"), self.cell(FA0)]
        tasks, left = self.planned(cells, checks=frozenset({Check.REBUILD}), share=2)
        assert tasks == [("rebuild", FA0), ("rebuild", FA2)]
        assert [(item.subject, item.state, item.note) for item in left] == [(FA4, State.LEFT, "last 2026-11-19")]

    def test_every_cell_has_its_turn(self):
        cells = {name: self.cell(name) for name in (FA4, FA2, FA0)}
        seen = []
        for day in range(1, 4):
            ((_, name),) = self.planned(cells.values(), checks=frozenset({Check.REBUILD}), share=1)[0]
            cells[name] = replace(cells[name], rebuilt=f"2026-11-{day:02}")
            seen.append(name)
        assert sorted(seen) == sorted(cells)

    def test_a_cell_without_a_record_is_not_built_again(self):
        tasks, left = self.planned([self.cell(recorded=False)], checks=frozenset({Check.REBUILD}))
        assert (tasks, left[0].note) == ([], "it has no image.json")

    @pytest.mark.parametrize(("days", "runs"), [(6.9, False), (7, True), (30, True)])
    def test_a_proof_expires(self, days, runs):
        proven = (NOW - timedelta(days=days)).isoformat()
        tasks, left = self.planned([self.cell(proven=proven)], checks=frozenset({Check.SUITE}))
        assert (bool(tasks), [item.state for item in left]) == (runs, [] if runs else [State.PROVEN])

    def test_a_pairwise_set_narrows_the_suites(self):
        cells = [self.cell(FA4), self.cell(FA2)]
        tasks, left = self.planned(cells, checks=frozenset({Check.SUITE}), among=frozenset({FA2}))
        assert (tasks, left[0].subject) == ([("suite", FA2)], FA4)

    def test_what_asks_services_comes_before_what_takes_time(self):
        tasks, _ = self.planned([self.cell()])
        assert [check for check, _ in tasks] == ["files", "upstream", "audit", "rebuild", "suite"]

    @pytest.mark.parametrize(
        ("spent", "estimate", "fits"), [(0, 0, True), (0, 61, False), (30, 30, True), (60, 0, False)]
    )
    def test_the_time_is_kept_to(self, spent, estimate, fits):
        task = plan.Task(check=Check.SUITE, cell=self.cell(seconds={"suite": estimate}))
        assert plan.fits(task, spent, plan.Settings(budget=60)) is fits
        assert plan.fits(plan.Task(check=Check.AUDIT), 1e9, plan.Settings(budget=60))
        assert plan.fits(task, 1e9, plan.Settings())

    @pytest.mark.parametrize(
        ("other", "counts"),
        [
            (run(), True),
            (run(ok=False), False),
            (run(image="sha256:2"), False),
            (run(node="m"), False),
            (run(command=("python", "--quick")), False),
            (run(where=Where.BARE), False),
            (run(where=Where.CONTAINER_GPU), True),
        ],
    )
    def test_what_is_proven_is_this_image_on_this_node(self, other, counts):
        found = plan.proof([other], "sha256:1", {"name": "n"}, gpus=False, quick=False)
        assert (found == other.when) is counts

    def test_a_cpu_proves_no_gpu_and_a_quick_run_proves_a_quick_one(self):
        node = {"name": "n"}
        assert plan.proof([run()], "sha256:1", node, gpus=True, quick=False) is None
        assert plan.proof([run(command=("--quick",))], "sha256:1", node, gpus=False, quick=True)
        assert plan.proof([run(image=None)], None, node, gpus=False, quick=True) is None

    def test_an_earlier_rebuild_counts_for_the_same_inputs(self):
        made = Result(check=Check.REBUILD, subject=FA4, key="i", outcome="same", seconds=9)
        reports = [report("2026-11-19", (made,)), report("2026-11-20", (made.model_copy(update={"outcome": "image"}),))]
        assert plan.rebuilt(reports, FA4, "i") == "2026-11-19"
        assert plan.rebuilt(reports, FA4, "j") is None
        assert plan.took(reports, FA4) == {"rebuild": 9}


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 10
        return self.now


class TestNight:
    def night(self, *, suite=(GREEN,), done=None, cells=(FA4,), budget=None, explain=None, wide=None):
        self.said, self.kept, attempts = [], [], iter(suite)
        self.tried = []

        def attempt(cell, _say, *, elsewhere):
            self.tried.append((cell, elsewhere))
            return next(attempts)

        def files_(_say):
            return Result(check=Check.FILES, outcome="all there")

        tasks = [plan.Task(check=Check.FILES, key="w")]
        tasks += [plan.Task(check=Check.SUITE, cell=plan.Cell(id=name, inputs="i"), key="i") for name in cells]
        crew = Crew(
            wide={Check.FILES: wide or files_},
            rebuild=attempt,
            suite=attempt,
            explain=explain or (lambda *_: [finding("culprit", check=Check.SUITE)]),
            elsewhere=True,
        )
        return Night(
            tasks=tasks,
            left=(),
            settings=plan.Settings(budget=budget),
            crew=crew,
            keep=self.kept.append,
            done=done or {},
            clock=Clock(),
        )

    def results(self, **how):
        return self.night(**how).run(lambda _: contextlib.nullcontext(self.said.append))

    def test_a_good_one(self):
        files_, suite = self.results()
        assert (files_.outcome, suite.outcome, suite.note, suite.findings) == ("all there", "good", "5 pass", ())
        assert (suite.seconds, suite.key, self.kept) == (10, "i", [files_, suite])

    def test_a_red_image_is_tried_once_more_elsewhere_and_then_explained(self):
        seen = replace(RED, data={"evidence": "x"})
        _, suite = self.results(suite=(seen, seen))
        assert self.tried == [(FA4, False), (FA4, True)]
        assert [item.kind for item in suite.findings] == ["image", "culprit"]

    def test_a_run_that_never_was_is_not_explained(self):
        _, suite = self.results(suite=(RED, RED))
        assert [item.kind for item in suite.findings] == ["image"]

    def test_flaky_says_so(self):
        _, suite = self.results(suite=(RED, GREEN))
        assert (suite.outcome, suite.findings[0].severity) == ("flaky", "warning")

    def test_a_bisection_that_fails_does_not_hide_the_red(self):
        def explain(*_):
            raise KnowngoodError("no Python 3.11")

        seen = replace(RED, data={"evidence": "x"})
        _, suite = self.results(suite=(seen, seen), explain=explain)
        assert [item.kind for item in suite.findings] == ["image", "not-bisected"]

    @pytest.mark.parametrize(("error", "severity"), [(UnknownError("x"), "unknown"), (NetworkError("x"), "missing")])
    def test_a_service_that_does_not_answer_is_not_good(self, error, severity):
        def wide(_say):
            raise error

        files_, _ = self.results(wide=wide)
        assert (files_.outcome, files_.findings[0].severity) == ("not known", severity)

    def test_what_is_finished_is_not_repeated_but_for_what_was_not_answered(self):
        first = self.results()
        done = {item.task: item for item in first}
        assert self.results(done=done) == first
        assert (self.tried, self.kept) == ([], [])
        silent = finding("unanswered", Severity.UNKNOWN)
        done["files"] = first[0].model_copy(update={"findings": (silent,)})
        assert self.results(done=done)[0].findings == ()
        assert [item.check for item in self.kept] == [Check.FILES]

    def test_what_has_changed_since_is_done_again(self):
        done = {item.task: item.model_copy(update={"key": "old"}) for item in self.results()}
        self.results(done=done)
        assert len(self.kept) == 2

    def test_what_there_is_no_time_for_is_left_and_told(self):
        _, *suites = self.results(suite=(GREEN, GREEN), cells=(FA4, FA2, FA0), budget=15)
        assert [item.state for item in suites] == [State.DONE, State.DONE, State.LEFT]
        assert "no time left" in suites[-1].note


class TestSince:
    def dated(self, item, *, last=None):
        made = Result(check=item.check, outcome="x", findings=(item,))
        return since.dated(made, last, "2026-11-21").findings[0]

    def test_a_finding_keeps_the_date_of_its_first_night(self):
        last = report(results=(Result(check=Check.FILES, outcome="", findings=(finding(since="2026-11-02"),)),))
        assert self.dated(finding(), last=last).since == "2026-11-02"
        assert self.dated(finding(subject="b.whl"), last=last).since == "2026-11-21"
        assert since.before([report("2026-11-19"), last, report("2026-11-21")], "2026-11-21") is last

    def test_a_vulnerability_is_an_error_on_its_first_night_only(self):
        new = finding("vulnerability", subject="a 1 CVE-1", check=Check.AUDIT)
        last = report(
            results=(Result(check=Check.AUDIT, outcome="", findings=(new.model_copy(update={"since": "2026-11-20"}),)),)
        )
        assert self.dated(new).severity == "error"
        assert self.dated(new, last=last).severity == "warning"

    def test_the_audit_as_findings(self):
        from knowngood.publishing.audit import Report as Audited
        from knowngood.publishing.audit import Vulnerability

        item = Vulnerability(package="a", version="1", id="CVE-1", fixed="2")
        found = vulnerabilities(Audited(open=(item,), accepted=(), unanswered=("no answer",), unused=()))
        assert [(one.kind, one.severity) for one in found] == [("vulnerability", "error"), ("unanswered", "unknown")]
        assert found[0].text == "a 1: CVE-1, fixed in 2"


class TestReport:
    def test_the_worst_finding_decides(self):
        severities = [Severity.INFO, Severity.WARNING, Severity.UNKNOWN, Severity.MISSING, Severity.ERROR]
        codes = [exit_code(finding(severity=one) for one in severities[: count + 1]) for count in range(5)]
        assert codes == [0, 0, 3, 4, 1]
        assert exit_code([]) == 0

    def test_a_large_night_is_one_screen(self):
        many = tuple(finding(subject="y" * 900) for _ in range(500))
        results = [Result(check=Check.FILES, outcome="500 gone", note="n" * 500, findings=many)]
        results += [
            Result(check=Check.SUITE, subject=f"cell{number}", outcome="good", seconds=70) for number in range(500)
        ]
        page = markdown.page(report(results=tuple(results), exit=1, notes=("z" * 900,) * 50))
        lines = page.splitlines()
        assert len(lines) <= 50
        assert max(map(len, lines)) < 260
        assert "and 484 cells more" in page
        assert "and 486 more; the JSON has them all" in page
        assert lines[0] == "# Night of 2026-11-20: **red**"

    def test_hostile_words_are_words(self):
        bad = finding(subject="<script>|\n# x", cells=("a", "b"))
        page = markdown.page(report(results=(Result(check=Check.FILES, outcome="a|b\nc", findings=(bad,)),)))
        assert "<script>" not in page
        assert "\n# x" not in page
        assert "| files | a\\|b c | 0 s |" in page
        assert "[2 cells]" in page

    def test_a_red_cell_is_told_before_the_others(self):
        red = Result(
            check=Check.SUITE, subject=FA2, outcome="image", findings=(finding(check=Check.SUITE),), seconds=90
        )
        left = Result(check=Check.SUITE, subject=FA4, state=State.LEFT, outcome="left", note="no time")
        rows = [line for line in markdown.page(report(results=(left, red))).splitlines() if line.startswith("| `")]
        assert rows == [f"| `{FA2}` | - | **RED** image, 1.5 min |", f"| `{FA4}` | - | left: no time |"]


class TestState:
    def test_a_report_is_read_as_it_was_written_and_others_are_left_out(self, tmp_path):
        made = report(results=(Result(check=Check.FILES, outcome="x", findings=(finding(),)),))
        assert state.save(made, tmp_path).read_text().startswith("# Night of 2026-11-20")
        (tmp_path / "2026-11-18.json").write_text('{"schema": "knowngood/nightly/9"}')
        (tmp_path / "2026-11-17.json").write_text("{")
        (tmp_path / "2026-11-16.json").write_text(made.text())
        reports, left_out = state.load(tmp_path)
        assert reports == [made]
        assert [line.partition(":")[0] for line in left_out] == [f"2026-11-{day}.json" for day in (16, 17, 18)]

    def test_progress_outlives_the_process(self, tmp_path):
        first = state.Progress(tmp_path, "2026-11-21")
        made = Result(check=Check.SUITE, subject=FA4, outcome="good", key="i", data={"image": "sha256:1"})
        first.keep(made, "now")
        again = state.Progress(tmp_path, "2026-11-21")
        assert (again.done, again.started) == ({f"suite:{FA4}": made}, "now")
        assert state.load(tmp_path) == ([], [])

    @pytest.mark.parametrize(
        "text", ["{", "[]", '{"schema": "x"}', '{"schema": "knowngood/nightly-state/1", "done": [1]}']
    )
    def test_half_of_a_state_is_none(self, tmp_path, text):
        (tmp_path / ".2026-11-21.state.json").write_text(text)
        assert state.Progress(tmp_path, "2026-11-21").done == {}

    def test_the_state_of_an_earlier_night_goes(self, tmp_path):
        old = tmp_path / ".2026-11-20.state.json"
        old.write_text(json.dumps({}))
        state.Progress(tmp_path, "2026-11-21")
        assert not old.exists()
