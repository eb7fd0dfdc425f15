"""`knowngood smoke [SELECT]`: run the suite in the images of cells, `--on` an executor, or `--here`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from knowngood.cli import run_image, shared_arguments
from knowngood.cli.build_matrix import SuiteStep, add_build_arguments, build_cells
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import UsageError
from knowngood.core.formatting import format_table
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.executors import executor_choice, job_requests
from knowngood.executors.job import Executor
from knowngood.executors.job_report import REPORT_HEADER, FleetReport
from knowngood.executors.job_requests import JobRequests
from knowngood.executors.job_run import FleetState, JobRun, state_folder
from knowngood.images import cell_ownership, pipeline
from knowngood.launch import attached_suite_run
from knowngood.project import release_signers
from knowngood.project.checkout import Project, find_project
from knowngood.registry.image_reference import ImageReference
from knowngood.registry.registry_client import Registry
from knowngood.smoke import predictions, suite_run
from knowngood.smoke.suite_command import SuiteOptions
from knowngood.smoke.trainer_suite import find_cell_suite

_BUILDING = ("wheelhouse", "locked", "jobs", "record", "compile", "published", "insecure")
_ON_BUILDERS = ("builder", "to", "network")
REFUSED_WITH_ON = (*_BUILDING, *_ON_BUILDERS)
"""Arguments that only matter when this command builds the images."""
REFUSED_WITH_HERE = (*REFUSED_WITH_ON, "select", "all", "again", "no_wait", "dry_run")
"""Arguments that only matter for images or for an executor."""
REFUSED_WITH_PROCESSES = tuple(name for name in REFUSED_WITH_HERE if name not in {"select", "insecure"})
"""Arguments that do nothing where training over processes is checked in the image of one cell."""
REFUSED_WITH_IMAGE = tuple(name for name in REFUSED_WITH_HERE if name != "insecure")
"""Arguments that do nothing for one image that is published."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `build-matrix`, `--here`, `--on` and `--cancel`."""
    add_build_arguments(parser)
    shared_arguments.add_suite_options(parser, quick=False)
    parser.add_argument(
        "--here", metavar="CELL", help="run in the current environment (VIRTUAL_ENV), as evidence for this cell id"
    )
    parser.add_argument(
        "--image",
        metavar="REFERENCE",
        help="run in this published image, HOST/PATH:TAG or HOST/PATH@sha256:..., the suite that is attached to it; "
        "both are checked as in `pull`",
    )
    parser.add_argument("--on", metavar="NAME", help="run on an executor of fleet.yaml, or on `local`")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="check training over N processes (an even number) instead, in the image of one cell or --here, with gloo "
        "on the CPU, or with --gpus with NCCL on N GPUs; the report goes to evidence/parallel/",
    )
    parser.add_argument("--only", metavar="GLOB", help="with --processes: the checks whose ids match")
    parser.add_argument("--cancel", action="store_true", help="with --on: end the jobs of these cells")


def run(arguments: argparse.Namespace) -> Answer:
    """Run the suite and store its evidence. In images it always runs, also when there is good evidence already."""
    if arguments.cancel and not arguments.on:
        raise UsageError("--cancel ends jobs of an executor; name it with --on NAME")
    if arguments.processes is not None and (arguments.processes < 2 or arguments.processes % 2):
        raise UsageError(
            f"--processes {arguments.processes}: an even number of 2 or more is needed, which divides heads and rows"
        )
    if arguments.only is not None and arguments.processes is None:
        raise UsageError("--only chooses checks of training over several processes; add --processes N")
    places = {"--here": arguments.here, "--on": arguments.on, "--image": arguments.image}
    chosen = [option for option, value in places.items() if value]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are different places; give one of them")
    if arguments.processes is not None and (arguments.on or arguments.image):
        raise UsageError(f"--processes runs in the image of a cell or --here, not with {chosen[0]}")
    if arguments.on:
        shared_arguments.refuse_options(arguments, REFUSED_WITH_ON, "does nothing with --on, which builds no image")
        return _run_on_executor(arguments)
    if arguments.here:
        shared_arguments.refuse_options(
            arguments, REFUSED_WITH_HERE, "does nothing with --here, which runs in the current environment"
        )
        return _run_here(arguments)
    if arguments.image:
        shared_arguments.refuse_options(
            arguments, REFUSED_WITH_IMAGE, "does nothing with --image, which runs in one published image"
        )
        return _run_in_published_image(arguments)
    if arguments.processes is not None:
        return _run_processes_in_image(arguments)
    options = shared_arguments.suite_options_from_arguments(arguments)
    return build_cells(arguments, suite=SuiteStep(options=options, again=True))


def _run_here(arguments: argparse.Namespace) -> Answer:
    project = find_project()
    cell = parse_cell(arguments.here)
    options = replace(shared_arguments.suite_options_from_arguments(arguments), only=arguments.only)
    if arguments.processes is not None:
        return _run_processes_here(cell, project, options, arguments.processes)
    expected = predictions.predictions_for_cell(predictions.load_predictions(project.root), cell, gpu=options.gpus)
    with report_progress(str(cell)) as notify:
        evidence = suite_run.run_in_environment(
            cell,
            find_cell_suite(project, cell),
            options,
            predictions=expected,
            log=pipeline.cell_log_path(cell, "here"),
            notify=notify,
        )
    return _store_and_answer(evidence, project.evidence_store)


def _run_processes_here(cell: Cell, project: Project, options: SuiteOptions, processes: int) -> Answer:
    with report_progress(str(cell)) as notify:
        evidence = suite_run.run_processes_in_environment(
            cell,
            project.parallel_suite,
            options,
            processes=processes,
            log=pipeline.cell_log_path(cell, "parallel"),
            notify=notify,
        )
    return _store_and_answer(evidence, project.parallel_store)


def _run_processes_in_image(arguments: argparse.Namespace) -> Answer:
    shared_arguments.refuse_options(
        arguments, REFUSED_WITH_PROCESSES, "does nothing with --processes, which runs in one image that is there"
    )
    project = find_project()
    cell = shared_arguments.select_one_cell(arguments.select or ["default"], project.matrix)
    options = replace(shared_arguments.suite_options_from_arguments(arguments), only=arguments.only)
    opened = run_image.open_suite_container(project, cell, options, log="parallel", insecure=arguments.insecure)
    with opened as place:
        evidence = suite_run.run_processes_in_container(
            place, suite=project.suite, parallel_suite=project.parallel_suite, processes=arguments.processes
        )
    return _store_and_answer(evidence, project.parallel_store)


def _run_in_published_image(arguments: argparse.Namespace) -> Answer:
    project, reference = find_project(), ImageReference.parse(arguments.image)
    registry = Registry(reference.repository, insecure=arguments.insecure)
    verifiers = release_signers.load_release_verifiers(project.root, project.matrix.publish)
    options = shared_arguments.suite_options_from_arguments(arguments)
    with report_progress(str(reference)) as notify:
        suited = attached_suite_run.check_suited_image(project, registry, reference, verifiers)
        engine = container_engine.ensure_engine(notify=notify, builds=False)
        evidence = attached_suite_run.run_attached_suite(project, suited, engine, options, notify)
    print(f"{suited.image.text()}; suite {suited.suite.sha256[:12]}", file=sys.stderr)
    return _store_and_answer(evidence, project.evidence_store)


def _store_and_answer(evidence: Evidence, store: Path) -> Answer:
    path = run_evidence.store_evidence(evidence, store)
    document = {"evidence": str(path), "ok": evidence.ok, "outcomes": evidence.outcomes}
    return Answer(0 if evidence.ok else 1, document, f"{evidence.report['verdict']['text']}\nevidence: {path}")


def _run_on_executor(arguments: argparse.Namespace) -> Answer:
    """Run, rehearse or cancel the jobs of the selected cells; the worst outcome decides the exit code."""
    project = find_project()
    cells = project.matrix.select_cells(shared_arguments.selection_words(arguments))
    with report_progress(arguments.on) as notify:
        executor, section = executor_choice.find_executor(arguments.on, project, notify)
        options = shared_arguments.suite_options_from_arguments(arguments)
        requests = job_requests.request_jobs(
            project, cells, section, options, again=arguments.again or arguments.cancel
        )
        if arguments.dry_run:
            commands = [*executor.rehearse(requests.jobs), *(f"# {error}" for error in requests.refused.values())]
            return Answer(0, {"commands": commands}, "\n".join(commands))
        with cell_ownership.hold_cell(f"fleet-{arguments.on}", wait=not arguments.no_wait, notify=notify):
            if arguments.cancel:
                return _cancel_jobs(executor, requests)
            return _run_jobs(project, executor, requests, section.wait, notify)


def _run_jobs(project: Project, executor: Executor, requests: JobRequests, wait: float, notify: Notify) -> Answer:
    def store(evidence: Evidence) -> str:
        path = run_evidence.store_evidence(evidence, project.evidence_store)
        return str(path.relative_to(project.root) if path.is_relative_to(project.root) else path)

    state = FleetState(state_folder(executor.name))
    job_run = JobRun(executor=executor, state=state, store=store, notify=notify, wait=wait)
    report = FleetReport(
        executor=executor.name,
        results=job_run.run_jobs(requests.jobs) if requests.jobs else (),
        proven=requests.proven,
        refused=requests.refused,
        avoided=state.ledger.suspects(),
        notes=[state.note] if state.note else (),
    )
    table = format_table(REPORT_HEADER, report.rows())
    return Answer(report.exit_code, report.document(), "\n".join([table, *report.sentences()]))


def _cancel_jobs(executor: Executor, requests: JobRequests) -> Answer:
    cells = FleetState(state_folder(executor.name)).cancel_jobs(requests.jobs, executor)
    text = "\n".join(f"{cell}: cancelled" for cell in cells) or "no job was running"
    return Answer(0, {"cancelled": cells}, text)
