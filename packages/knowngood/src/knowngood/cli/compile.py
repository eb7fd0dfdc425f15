"""`knowngood compile [SELECT]`: compile the wheels that cells need and nobody publishes, or another package."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.formatting import format_table
from knowngood.core.matrix import Matrix
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.images import pipeline
from knowngood.lock import wheelhouse
from knowngood.project.checkout import Project, find_project
from knowngood.registry import wheel_supply
from knowngood.wheels import compile_request
from knowngood.wheels.compile_request import CompileOptions, WheelRequest, needed_wheels
from knowngood.wheels.compile_run import Compiler


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--package", metavar="NAME==VERSION", help="compile this release instead of what the cells need")
    what.add_argument("--sdist", metavar="FILE", help="compile this sdist instead; FILE#sha256=... checks it")
    parser.add_argument(
        "--jobs", type=_parse_jobs, metavar="N", help="compilers at once (default: cores, as memory allows)"
    )
    parser.add_argument(
        "--memory-per-job",
        type=_parse_memory,
        default="7G",
        metavar="SIZE",
        help="memory for one compiler (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Compile for the selected cells (default: all). A cell that fails does not stop the others."""
    project = find_project()
    matrix = project.matrix
    wheel_orders = _orders(arguments, matrix.select_cells(arguments.select), matrix)
    if not wheel_orders:
        return Answer(0, {"wheels": []}, "nothing to compile: none of these cells needs a wheel that nobody publishes")
    options = CompileOptions(
        wheelhouse=wheelhouse.wheelhouse_folder(),
        memory_each=arguments.memory_per_job,
        jobs=arguments.jobs,
    )
    documents = compile_wheels(project, wheel_orders, options)
    failed = [item for item in documents if "error" in item]
    rows = [_row(item) for item in documents]
    notes = [f"{item['cell']}: {item['note']}" for item in documents if item.get("note")]
    lines = [format_table(["cell", "package", "status", "time", "wheel"], rows), *notes]
    lines += [item["error"] for item in failed]
    return Answer(failed[0]["exit"] if failed else 0, {"wheels": documents}, "\n".join(lines))


def compile_wheels(
    project: Project, wheel_orders: Sequence[WheelRequest], options: CompileOptions
) -> Sequence[Mapping[str, Any]]:
    """Compile the ordered wheels, and return the document of each for `--json`. A failure does not stop the others."""
    with report_progress("engine") as notify:
        engine = container_engine.ensure_engine(notify=notify)

    def supply(order: WheelRequest, notify: Notify) -> Path | None:
        release = (order.package, order.version)
        return wheel_supply.supply_wheel(project, order.cell, release, options.wheelhouse, notify)

    line = pipeline.Pipeline(project, pipeline.PipelineOptions(wheelhouse=options.wheelhouse), engine)
    compiler = Compiler(line=line, options=options, supply=supply)
    documents: list[Mapping[str, Any]] = []
    for order in wheel_orders:
        with report_progress(f"{order.package} {order.version} for {order.cell}") as notify:
            try:
                documents.append(compiler.run(order, notify).document())
            except KnowngoodError as error:
                documents.append(compile_request.failed_wheel_document(order, error))
    return documents


def _orders(arguments: argparse.Namespace, cells: list[Cell], matrix: Matrix) -> list[WheelRequest]:
    if arguments.sdist:
        sdist = compile_request.read_sdist_file(arguments.sdist)
        return [WheelRequest(cell=cell, package=sdist.package, version=sdist.version, sdist=sdist) for cell in cells]
    if arguments.package:
        name, version = _parse_pin(arguments.package)
        return [WheelRequest(cell=cell, package=name, version=version) for cell in cells]
    return needed_wheels(cells, matrix)


def _parse_pin(text: str) -> tuple[str, str]:
    name, _, version = text.partition("==")
    try:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UsageError(f"--package {text}: write NAME==VERSION")
        return canonicalize_name(name), str(Version(version))
    except InvalidVersion:
        raise UsageError(f"--package {text}: write NAME==VERSION, because one release is compiled") from None


def _parse_jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs from 1 to 1024")
    return int(text)


def _parse_memory(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d*)([mMgG])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 7G or 800M")
    return int(match[1]) << (30 if match[2] in "gG" else 20)


def _row(item: Mapping[str, Any]) -> list[str]:
    what = f"{item['package']} {item['version']}"
    if "error" in item:
        return [item["cell"], what, item["status"], "-", "-"]
    return [item["cell"], what, item["status"], f"{item['seconds']:.0f} s", item["wheel"]]
