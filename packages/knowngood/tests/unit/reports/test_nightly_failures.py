"""Red nightly reports: a later or narrower run does not hide them."""

from __future__ import annotations

import pytest

from knowngood.reports.nightly_folder import find_newest_report, keep_open_failures
from knowngood.reports.nightly_report import (
    NightlyCheck,
    NightlyFinding,
    NightlyReport,
    NightlyResult,
    NightlySeverity,
    ResultState,
    findings_exit_code,
)
from samples import FA0, FA4


def suite_result(cell=FA4, *, state=ResultState.DONE, kind="image", severity=NightlySeverity.ERROR, red=True):
    finding = NightlyFinding(check=NightlyCheck.SUITE, kind=kind, severity=severity, subject=cell, text="NaN")
    return NightlyResult(
        check=NightlyCheck.SUITE, subject=cell, state=state, outcome="x", findings=(finding,) if red else ()
    )


def report(*results, date="2026-11-20", code=1):
    return NightlyReport(
        schema="knowngood/nightly/1",
        date=date,
        started="",
        finished="",
        node={},
        revision=None,
        cells=(FA4,),
        settings={},
        results=results,
        exit=code,
    )


def exit_code(results):
    return findings_exit_code(finding for result in results for finding in result.findings)


@pytest.mark.parametrize("now", [[], [suite_result(state=ResultState.LEFT, red=False)]])
def test_a_failure_that_was_not_checked_again_stays_a_failure(now):
    kept = keep_open_failures(now, report(suite_result()), {FA4})
    assert [(result.task, result.state, len(result.findings)) for result in kept] == [
        (f"suite:{FA4}", ResultState.LEFT, 1)
    ]
    assert exit_code(kept) == 1
    assert exit_code(keep_open_failures([], report(*kept), {FA4})) == 1  # and so it does in the run after that


@pytest.mark.parametrize("state", [ResultState.DONE, ResultState.PROVEN])
def test_a_failure_that_is_cured_is_over(state):
    now = [suite_result(state=state, red=False)]
    assert keep_open_failures(now, report(suite_result()), {FA4}) == now


@pytest.mark.parametrize(
    ("earlier", "cells"),
    [
        (suite_result(), {FA0}),
        (suite_result(severity=NightlySeverity.WARNING), {FA4}),
        (suite_result(kind="not-current"), {FA4}),
    ],
)
def test_what_is_not_kept(earlier, cells):
    assert keep_open_failures([], report(earlier), cells) == []


def test_without_a_report_nothing_is_kept():
    assert keep_open_failures([], None, {FA4}) == []


def test_the_newest_report_may_be_of_the_same_date():
    reports = [report(date=date) for date in ("2026-11-19", "2026-11-21", "2026-11-22")]
    assert find_newest_report(reports, "2026-11-21") is reports[1]
