"""pytest's side of the suite: options, one item a check, the table at the end, the exit status."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest

from smoke_tests import catalogue, report, table
from smoke_tests.outcomes import FAIL, PASS
from smoke_tests.suite import Options, Suite

_SUITE: pytest.StashKey[Suite] = pytest.StashKey()
_DOCUMENT: pytest.StashKey[dict] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's own options."""
    group = parser.getgroup("smoke", "knowngood smoke tests")
    group.addoption("--report", type=Path, help="write the report (JSON) here")
    group.addoption("--predictions", type=Path, help="compare outcomes with this JSON of predicted ones")
    group.addoption("--quick", action="store_true", help="only the checks that say most")
    group.addoption("--demand-gpu", action="store_true", help="no GPU: the host is at fault")
    group.addoption("--cell-gpu", metavar="sm_XX", help="the architecture that the environment was made for")
    group.addoption("--faults", action="store_true", help="also make the worker hang and crash, to test the suite")
    group.addoption("--budget", type=float, metavar="SECONDS", help="start no check after this time")


def pytest_configure() -> None:
    """Let ``timeout`` and ``docker stop`` end a run like Ctrl-C does: the worker goes, the report stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its part of the catalogue."""
    topic = getattr(metafunc.module, "TOPIC", None)
    if topic is not None and "check" in metafunc.fixturenames:
        checks = catalogue.select(catalogue.TOPICS[topic](), quick=metafunc.config.getoption("--quick"))
        metafunc.parametrize("check", checks, ids=[check.id for check in checks])


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Keep the catalogue's order, and only what was asked for: an empty parameter set would be shown as a skip."""
    topics = [topic for topic in catalogue.TOPICS if topic != "faults" or config.getoption("--faults")]

    def wanted(item: Any) -> bool:
        topic = getattr(item.module, "TOPIC", None)
        return topic is None or (topic in topics and isinstance(item.callspec.params["check"], catalogue.Check))

    items[:] = filter(wanted, items)
    items.sort(key=lambda item: topics.index(getattr(item.module, "TOPIC", topics[0])))


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest) -> Suite:
    """The run; its worker starts with the first check."""
    asked = {field.name: request.config.getoption(field.name) for field in dataclasses.fields(Options)}
    made = Suite(Options(**asked))
    request.config.stash[_SUITE] = made
    made.begin([item.callspec.params["check"] for item in request.session.items if hasattr(item, "callspec")])
    return made


@pytest.fixture
def conclude(suite: Suite, record_property: Any) -> Any:
    """Run a check and tell pytest what came of it; only a red entry is a failed test."""

    def run(check: catalogue.Check) -> None:
        made = suite.run(check)
        record_property("outcome", made["outcome"])
        if report.is_red(made):
            pytest.fail(table.explain(made), pytrace=False)

    return run


def pytest_report_teststatus(report: pytest.TestReport) -> Any:
    """Show ``refused`` and ``not-run`` by their own names: neither is a pass, and neither is a skip."""
    outcome = dict(report.user_properties).get("outcome")
    if report.when == "call" and report.passed and outcome not in (None, PASS):
        shown = f"{outcome} as predicted" if outcome == FAIL else outcome
        return shown, outcome[0].upper(), shown.upper()
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report whatever happened, and make the exit status say what the verdict says."""
    made = session.config.stash.get(_SUITE, None)
    if made is None:
        return
    finished = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    session.config.stash[_DOCUMENT] = document = made.close(finished=finished)
    if session.exitstatus == pytest.ExitCode.OK and not document["verdict"]["ok"]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table and the verdict."""
    document = config.stash.get(_DOCUMENT, None)
    if document is not None:
        terminalreporter.section("attention settings")
        terminalreporter.write_line(table.render(document))
