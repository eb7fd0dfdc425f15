"""`knowngood bisect GOOD BAD -- COMMAND`: find the package that turns a good lock bad."""

from __future__ import annotations

import argparse

from packaging.utils import canonicalize_name

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import UsageError
from knowngood.core.notify import Notify
from knowngood.lock import wheelhouse
from knowngood.project.checkout import find_project
from knowngood.reports import bisect_run, lock_pins
from knowngood.reports.bisect_run import LockBisection
from knowngood.reports.lock_bisect import BisectResult, EndProblem, EnvironmentOutcome
from knowngood.reports.package_changes import list_package_changes, mix_locks

_END = "a requirements file, a pylock, a file of evidence, a cell or alias, or REVISION:CELL of git"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("good", metavar="GOOD", help=_END)
    parser.add_argument("bad", metavar="BAD", help="the same")
    parser.add_argument(
        "command_line",
        nargs="+",
        metavar="COMMAND",
        help="after --: the command to run in each environment; its exit code 0 means good, 125 unknown, others bad",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="test one environment: GOOD with these packages of BAD",
    )
    parser.add_argument("--python", metavar="VERSION", help="Python of the environments (default: that of the locks)")
    parser.add_argument(
        "--timeout",
        type=shared_arguments.parse_seconds,
        default=1200,
        metavar="SECONDS",
        help="the most time for the command (default: 1200)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Exit 0 when the responsible packages are proven and 3 when they are suspected, 1 when there are none.

    When the ends are not as claimed, nothing is searched: exit 2 when they are swapped, 3 when one cannot be tried, and
    else 1.
    """
    project = find_project()
    search = bisect_run.LockBisection(
        good=lock_pins.read_pins(arguments.good, project),
        bad=lock_pins.read_pins(arguments.bad, project),
        command=tuple(arguments.command_line),
        python=arguments.python,
        wheelhouse=wheelhouse.wheelhouse_folder(),
        seconds=arguments.timeout,
    )
    with report_progress("bisect") as notify:
        if arguments.only:
            return _test_one_environment(search, arguments.only, notify)
        result, output = search.run(notify)
    return Answer(
        _exit_code(result), _document(result, search, output), bisect_run.describe_bisection(result, search, output)
    )


def _exit_code(result: BisectResult) -> int:
    if result.problem is not None:
        return {EndProblem.SWAPPED: 2, EndProblem.UNTESTED: 3}.get(result.problem, 1)
    return 0 if result.proven else 3


def _test_one_environment(search: LockBisection, names: list[str], notify: Notify) -> Answer:
    requested = {str(canonicalize_name(name)) for name in names}
    moves = [move for move in list_package_changes(search.good.versions, search.bad.versions) if move.name in requested]
    if unchanged := requested - {move.name for move in moves}:
        raise UsageError(f"--only {', '.join(sorted(unchanged))}: the same version is in both locks")
    environments = search.environments(search.interpreter, notify, show=True)
    outcome = environments.outcome(mix_locks(search.good.versions, moves))
    code = {EnvironmentOutcome.GOOD: 0, EnvironmentOutcome.BAD: 1, EnvironmentOutcome.UNRESOLVED: 3}[outcome]
    document = {"outcome": str(outcome), "moved": [vars(move) for move in moves]}
    return Answer(code, document, f"{outcome} with {', '.join(map(str, moves))}")


def _document(result: BisectResult, search: LockBisection, output: list[str]) -> dict[str, object]:
    return {
        "culprits": [vars(move) for move in result.culprits],
        "along": [vars(move) for move in result.along],
        "proven": result.proven,
        "environments": result.environments,
        "changed": result.changed,
        "note": result.note,
        "said": output[-1] if output else "",
        "again": search.repeat_command(result) if result.culprits else None,
        "ends": {"good": result.good_end, "bad": result.bad_end},
        "problem": result.problem,
        "ties": list(result.ties),
        "unread": list(result.unread),
        "untried": list(result.untried),
    }
