"""`knowngood compile [SELECT]`: compile the wheels that cells need and nobody publishes, or another package."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
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
from knowngood.engine.container_engine import Engine
from knowngood.images import dry_run, pipeline
from knowngood.images.pipeline import PipelineOptions as BuildOptions
from knowngood.lock import wheelhouse
from knowngood.project.checkout import Project, find_project
from knowngood.registry import wheel_supply
from knowngood.wheels import compile_plan, compile_request
from knowngood.wheels.compile_request import CompileOptions, WheelRequest, needed_wheels
from knowngood.wheels.compile_run import Compiler

WHEEL_LIST = "wheels.txt"
"""The file of a project that lists published wheels."""


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
    parser.add_argument(
        "--renew", action="store_true", help="compile again what was made from other inputs or has no build record"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Compile for the selected cells (default: all). A cell that fails does not stop the others."""
    project = find_project()
    matrix = project.matrix
    wheel_orders = _orders(arguments, matrix.select_cells(arguments.select), matrix)
    if not wheel_orders:
        return Answer(0, {"wheels": []}, "nothing to compile: none of these cells needs a wheel that nobody publishes")
    options = _compile_options(arguments, project)
    if arguments.dry_run:
        commands = dry_run_wheel_commands(project, wheel_orders, options)
        return Answer(0, {"commands": commands}, "\n".join(commands))
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
    return _compile_one_by_one(_local_compiler(project, engine, options), wheel_orders)


def _local_compiler(project: Project, engine: Engine, options: CompileOptions) -> Compiler:
    return Compiler(
        line=pipeline.Pipeline(project, _build_options(options), engine),
        options=options,
        supply=_wheel_supply(project, options),
    )


def _wheel_supply(project: Project, options: CompileOptions) -> Callable[[WheelRequest, Notify], Path | None]:
    """Return the function that fetches a wheel whose bytes are recorded."""

    def supply(order: WheelRequest, notify: Notify) -> Path | None:
        return wheel_supply.supply_wheel(
            project, order.cell, (order.package, order.version), options.wheelhouse, notify
        )

    return supply


def _build_options(options: CompileOptions) -> BuildOptions:
    return BuildOptions(wheelhouse=options.wheelhouse)


def _compile_one_by_one(compiler: Compiler, wheel_orders: Sequence[WheelRequest]) -> list[Mapping[str, Any]]:
    documents: list[Mapping[str, Any]] = []
    for order in wheel_orders:
        with report_progress(f"{order.package} {order.version} for {order.cell}") as notify:
            try:
                documents.append(compiler.run(order, notify).document())
            except KnowngoodError as error:
                documents.append(compile_request.failed_wheel_document(order, error))
    return documents


def dry_run_wheel_commands(
    project: Project, wheel_orders: Sequence[WheelRequest], options: CompileOptions
) -> list[str]:
    """Return the commands that compiling the ordered wheels would run."""
    compiler = _local_compiler(project, dry_run.dry_run_engine(), options)
    return [text for one in wheel_orders for text in compile_plan.compile_dry_run(one, compiler.line, options)]


def find_wheel_list(project: Project) -> Path | None:
    """Return the project's list of published wheels, or `None` when it has none."""
    path = project.root / WHEEL_LIST
    return path if path.is_file() else None


def _compile_options(arguments: argparse.Namespace, project: Project) -> CompileOptions:
    return CompileOptions(
        wheelhouse=wheelhouse.wheelhouse_folder(),
        memory_each=arguments.memory_per_job,
        jobs=arguments.jobs,
        renew=arguments.renew,
        wheels=find_wheel_list(project),
    )


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
