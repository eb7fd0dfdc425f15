"""`knowngood bench [ID]`: time training steps of models of real sizes, in a cell's image or in this environment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowngood.cli import run_image, shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.formatting import format_table
from knowngood.evidence import run_evidence, speed_runs
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.project.cell_answers import CellAnswers
from knowngood.project.checkout import Project, find_project
from knowngood.smoke import suite_run
from knowngood.smoke.suite_command import SuiteOptions

_LABEL = "io.knowngood.bench"
_EPILOG = (
    "`python -m speed_tests --list --plan NAME` in smoke_tests/ prints the points of a plan: table, reach, layouts, "
    "trainer, trl, unsloth, shapes, node, tiny. A point counts only where the suite has seen its setting train in that "
    "cell."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add ID, the place where it runs, and what is measured."""
    parser.epilog = f"{parser.epilog}. {_EPILOG}"
    shared_arguments.add_one_cell(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--here", action="store_true", help="in the current environment (VIRTUAL_ENV)")
    place.add_argument(
        "--report", type=Path, metavar="FILE", help="take what `python -m speed_tests` wrote on another machine"
    )
    parser.add_argument("--plan", action="append", default=[], metavar="NAME", help="points by the name of a plan")
    parser.add_argument("--gpus", action="store_true", help="give the container the GPUs of this host")
    parser.add_argument(
        "--timeout",
        type=shared_arguments.parse_seconds,
        default=3600,
        metavar="SECONDS",
        help="for the whole run (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Measure, store the evidence, and list the points with what is said against each."""
    project = find_project()
    if arguments.report:
        shared_arguments.refuse_options(arguments, ("plan", "gpus"), "does nothing with --report")
        cell = shared_arguments.find_environment_cell(arguments.cell, project.matrix)
        evidence = read_speed_report(arguments.report, cell)
    else:
        cell, evidence = _measure(arguments, project)
    path = run_evidence.store_evidence(evidence, project.speed_store)
    answers = CellAnswers(project)
    points = speed_runs.list_points([(path.name, evidence)])
    faults = {point.name: speed_runs.find_faults(point, answers.answer(cell)) for point in points}
    advice = speed_runs.advise_on_speed(points, cell, answers.answer)
    document = {"evidence": str(path), "points": evidence.report["points"], "faults": faults, "advice": advice}
    rows = [_row(name, values, faults.get(name, [])) for name, values in evidence.report["points"].items()]
    table = format_table(["point", "tokens/s", "of limit", "of product", "memory", "first step", "not compared"], rows)
    text = "\n".join(filter(None, [table, advice, f"evidence: {path}"]))
    return Answer(0 if evidence.ok else 1, document, text)


def _measure(arguments: argparse.Namespace, project: Project) -> tuple[Cell, Evidence]:
    words = [word for plan in arguments.plan or [] for word in ("--plan", plan)]
    words = [*(words or ["--plan", "table"]), "--budget", str(max(30, arguments.timeout - 60))]
    if arguments.here:
        from knowngood.images.pipeline import cell_log_path

        shared_arguments.refuse_options(arguments, ("gpus",), "does nothing with --here, which has them")
        cell = shared_arguments.find_environment_cell(arguments.cell, project.matrix)
        with report_progress(str(cell)) as notify:
            log = cell_log_path(cell, "bench")
            return cell, suite_run.run_package_in_environment(
                cell, project.speed_suite, words, seconds=arguments.timeout, log=log, notify=notify
            )
    cell = shared_arguments.select_one_cell([arguments.cell], project.matrix)
    options = SuiteOptions(gpus=arguments.gpus, seconds=arguments.timeout, memory="64g" if arguments.gpus else "12g")
    with run_image.open_suite_container(project, cell, options, log="bench") as place:
        return cell, suite_run.run_package_in_container(
            place, words, suite=project.suite, package=project.speed_suite, label=_LABEL
        )


def read_speed_report(path: Path, cell: Cell) -> Evidence:
    """Return the evidence that a report of the speed suite is, which ran without a container.

    Raises:
        UsageError: it is no such report.
        KnowngoodError: it ran with other versions, or on another GPU, than the cell has.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["schema"] != speed_runs.SPEED_SCHEMA:
            raise UsageError(f"{path}: its schema is {report['schema']!r}, not {speed_runs.SPEED_SCHEMA!r}")
        environment, node, words = report["environment"], report["node"], report["arguments"]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no report of the speed suite ({error!r}); `python -m speed_tests` writes one"
        ) from None
    distributions = {name: version.partition("+")[0] for name, version in environment["distributions"].items()}
    python = environment["python"].rpartition(".")[0]
    ran = {"torch": distributions.get("torch"), "transformers": distributions.get("transformers"), "python": python}
    wanted = {"torch": cell.torch, "transformers": cell.transformers, "python": cell.python, "gpu": cell.gpu}
    ran["gpu"] = environment["sm"] or cell.gpu
    if package := cell.flash_attn_package:
        ran[package], wanted[package] = distributions.get(package), cell.flash_attn
    if different := [name for name in wanted if ran[name] != wanted[name]]:
        words = ", ".join(f"{name} {ran[name] or 'is missing'}" for name in different)
        raise KnowngoodError(f"{path} is no run of {cell}: {words}")
    return Evidence(
        cell=str(cell),
        where=RunPlace.BARE,
        image=None,
        when=report["finished"],
        node=node,
        command=("python", "-m", "speed_tests", *words),
        report=report,
    )


def _row(name: str, values: Mapping[str, Any], faults: list[str]) -> list[str]:
    if values["outcome"] != "pass":
        return [name, "-", "-", "-", "-", "-", str(values["reason"])]
    share, memory = values["share_of_limit"], values["peak_bytes"]
    return [
        name,
        f"{values['tokens_a_second']:,.0f}",
        f"{share:.1%}" if share else "-",
        f"{values['share_of_product']:.1%}",
        f"{memory / 2**30:.1f} GiB" if memory else "-",
        f"{values['first_step_seconds']:.1f} s",
        "; ".join(faults),
    ]
