"""`knowngood smoke`: run the suite in images of cells, here, in a published image, over processes, or on a cluster."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.cli import run_image, shared_arguments
from knowngood.cli.build_matrix import BuildOrder, build_cells
from knowngood.cli.main import Answer, Word
from knowngood.cli.progress import report_progress
from knowngood.core import local_files
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.formatting import format_table
from knowngood.engine import container_engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.images import pipeline
from knowngood.launch import image_access
from knowngood.project import release_signers
from knowngood.project.checkout import find_project
from knowngood.registry import image_pull, image_reference, suite_artifact
from knowngood.registry.image_reference import ImageReference
from knowngood.registry.registry_client import Registry
from knowngood.smoke import cluster_jobs, predictions, suite_run
from knowngood.smoke.cluster_jobs import Scheduler
from knowngood.smoke.suite_files import find_cell_suite

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.notify import Notify
    from knowngood.engine.container_engine import Engine
    from knowngood.project.checkout import Project
    from knowngood.project.release_signers import ReleaseVerifier
    from knowngood.registry.image_pull import CheckedImage
    from knowngood.registry.suite_artifact import AttachedSuite
    from knowngood.smoke.suite_command import SuiteOptions


def complete_words(words: Sequence[str]) -> list[str]:
    """Return the command line with the word `run` where none of `WORDS` follows `smoke`."""
    place = words.index("smoke") + 1
    following = next((word for word in words[place:] if not word.startswith("-")), "")
    asks_for_help = {"-h", "--help"} & set(words[place:])
    return [*words] if following in WORDS or asks_for_help else [*words[:place], "run", *words[place:]]


def _configure_run(parser: argparse.ArgumentParser) -> None:
    shared_arguments.add_select(parser, default="default")
    _add_suite_options(parser)


def _configure_here(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cell", metavar="CELL", help="the cell id that the evidence is for")
    _add_suite_options(parser)


def _configure_published(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="REFERENCE", help="HOST/PATH:TAG or HOST/PATH@sha256:...")
    _add_suite_options(parser)


def _configure_collect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that `smoke job` wrote")


def _add_suite_options(parser: argparse.ArgumentParser) -> None:
    shared_arguments.add_suite_part(parser, quick=False)
    shared_arguments.add_suite_time(parser)


def _configure_parallel(parser: argparse.ArgumentParser) -> None:
    shared_arguments.add_one_cell(parser)
    parser.add_argument("--here", action="store_true", help="in the current environment (VIRTUAL_ENV)")
    parser.add_argument(
        "--processes",
        type=_parse_processes,
        default=2,
        metavar="N",
        help="an even number, with gloo on the CPU, or with --gpus with NCCL on N GPUs (default: %(default)s)",
    )
    parser.add_argument("--only", metavar="GLOB", help="only the checks whose ids match")
    _add_suite_options(parser)


def _configure_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scheduler", choices=[str(item) for item in Scheduler], help="what runs the job")
    shared_arguments.add_select(parser, default="default")
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER", required=True, help="a new folder on storage that the nodes share"
    )
    parser.add_argument(
        "--from", dest="origin", metavar="REPOSITORY", help="where the images are (default: as `pull` has it)"
    )
    _add_suite_options(parser)


def run_in_images(arguments: argparse.Namespace) -> Answer:
    """Build the images that are not there, and run the suite in each, also where there is good evidence already."""
    options = shared_arguments.suite_options_from_arguments(arguments)
    return build_cells(BuildOrder(select=arguments.select), suite=options, again=True)


def run_here(arguments: argparse.Namespace) -> Answer:
    """Run the suite in the current environment."""
    project, cell = find_project(), parse_cell(arguments.cell)
    options = shared_arguments.suite_options_from_arguments(arguments)
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


def run_in_published_image(arguments: argparse.Namespace) -> Answer:
    """Run the suite that is attached to a published image, in that image."""
    project, reference = find_project(), ImageReference.parse(arguments.image)
    registry = Registry(reference.repository)
    verifiers = release_signers.load_release_verifiers(project.root, project.matrix.publish)
    options = shared_arguments.suite_options_from_arguments(arguments)
    with report_progress(str(reference)) as notify:
        suited = _check_suited_image(project, registry, reference, verifiers)
        engine = container_engine.ensure_engine(notify=notify, builds=False)
        evidence = _run_attached_suite(project, suited, engine, options, notify)
    print(f"{suited.image.text()}; suite {suited.suite.sha256[:12]}", file=sys.stderr)
    return _store_and_answer(evidence, project.evidence_store)


@dataclass(frozen=True, kw_only=True)
class _SuitedImage:
    """A published image with the suite that is attached to it, both checked."""

    cell: Cell
    image: CheckedImage
    suite: AttachedSuite


def _check_suited_image(
    project: Project, registry: Registry, reference: ImageReference, verifiers: Sequence[ReleaseVerifier]
) -> _SuitedImage:
    """Return the image under a tag or a digest with its suite; nothing is pulled.

    Raises `KnowngoodError` when there is no such image or no suite, when a wanted signature is missing, or when the
    image's label names no cell.
    """
    image = image_pull.check_referenced_image(project, registry, reference, verifiers)
    try:
        cell = parse_cell(image.label)
    except UsageError:
        raise KnowngoodError(f"{reference} is no image of a cell: its label names {image.label or 'none'}") from None
    return _SuitedImage(
        cell=cell, image=image, suite=suite_artifact.fetch_attached_suite(registry, image.digest, verifiers)
    )


def _run_attached_suite(
    project: Project, suited: _SuitedImage, engine: Engine, options: SuiteOptions, notify: Notify
) -> Evidence:
    """Pull an image that the engine lacks, and run its suite in it; what the suite should find comes from the project.

    Raises `KnowngoodError` when the suite leaves no report, or is not the one that its document names.
    """
    image, cell = suited.image, suited.cell
    image_pull.pull_checked_image(image, engine, notify)
    expected = predictions.predictions_for_cell(predictions.load_predictions(project.root), cell, gpu=options.gpus)
    place = suite_run.SuiteContainer(
        cell=cell,
        image=image.name or f"{image.repository}@{image.digest}",
        digest=image.digest,
        engine=engine,
        options=options,
        log=pipeline.cell_log_path(cell, "smoke"),
        notify=notify,
    )
    with local_files.scratch_folder() as folder:
        evidence = suite_run.run_in_container(place, suite=suited.suite.write_files(folder), predictions=expected)
    if evidence.suite != suited.suite.sha256:
        raise KnowngoodError(
            f"the attached suite says that it is {suited.suite.sha256[:12]}, and its report says {evidence.suite[:12]}"
        )
    return evidence


def run_parallel(arguments: argparse.Namespace) -> Answer:
    """Check training over several processes; its evidence proves no tier and lies in `evidence/parallel/`."""
    project = find_project()
    options = replace(shared_arguments.suite_options_from_arguments(arguments), only=arguments.only)
    if arguments.here:
        cell = shared_arguments.find_environment_cell(arguments.cell, project.matrix)
        with report_progress(str(cell)) as notify:
            evidence = suite_run.run_processes_in_environment(
                cell,
                project.parallel_suite,
                options,
                processes=arguments.processes,
                log=pipeline.cell_log_path(cell, "parallel"),
                notify=notify,
            )
        return _store_and_answer(evidence, project.parallel_store)
    cell = shared_arguments.select_one_cell([arguments.cell], project.matrix)
    opened = run_image.open_suite_container(project, cell, options, log="parallel")
    with opened as place:
        evidence = suite_run.run_processes_in_container(
            place, suite=project.suite, parallel_suite=project.parallel_suite, processes=arguments.processes
        )
    return _store_and_answer(evidence, project.parallel_store)


def write_job(arguments: argparse.Namespace) -> Answer:
    """Write the folder of a job, and say which commands submit it and take its evidence."""
    project, folder = find_project(), arguments.folder.absolute()
    options = shared_arguments.suite_options_from_arguments(arguments)
    repositories = image_reference.list_repositories(project.matrix, os.environ)
    places = [arguments.origin] if arguments.origin else list(repositories)
    tasks = []
    for cell in project.matrix.select_cells(arguments.select):
        image = image_access.recorded_reference(project, cell, places)
        if not image:
            why = "no repository is named (--from, or KNOWNGOOD_REGISTRY)" if not places else "it has no recorded image"
            raise MissingError(f"{cell}: {why}; a job runs published images")
        tasks.append(cluster_jobs.plan_cluster_task(project, cell, image, options))
    scheduler = Scheduler(arguments.scheduler)
    script = cluster_jobs.write_job_folder(folder, tasks, scheduler, options, project.templates)
    submit = {Scheduler.SLURM: ["sbatch", str(script)], Scheduler.KUBERNETES: ["kubectl", "apply", "-f", str(script)]}
    commands = [shlex.join(submit[scheduler]), shlex.join(["knowngood", "smoke", "collect", str(folder)])]
    document = {"folder": str(folder), "cells": [task.cell for task in tasks], "commands": commands}
    return Answer(0, document, "\n".join([f"read and complete {script}, then:", *commands]))


def collect_job(arguments: argparse.Namespace) -> Answer:
    """Store the evidence that the tasks of a job left; 1 when one failed or was red, 3 when one has not ended."""
    project = find_project()
    tasks = cluster_jobs.collect_outcomes(arguments.folder)
    paths = {
        task.cell: str(run_evidence.store_evidence(task.evidence, project.evidence_store))
        for task in tasks
        if task.evidence
    }
    standings = cluster_jobs.judge_collected(tasks)
    states = {state for state, _ in standings.values()}
    code = 1 if states & {"red", "failed"} else 3 if "pending" in states else 0
    rows = [[cell, state, text, paths.get(cell, "-")] for cell, (state, text) in standings.items()]
    document = {
        "cells": [
            {"id": cell, "state": state, "text": text, "evidence": paths.get(cell)}
            for cell, (state, text) in standings.items()
        ]
    }
    return Answer(code, document, format_table(["cell", "outcome", "verdict", "evidence"], rows))


def _store_and_answer(evidence: Evidence, store: Path) -> Answer:
    path = run_evidence.store_evidence(evidence, store)
    document = {"evidence": str(path), "ok": evidence.ok, "outcomes": evidence.outcomes}
    return Answer(0 if evidence.ok else 1, document, f"{evidence.report['verdict']['text']}\nevidence: {path}")


def _parse_processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 2 or int(text) % 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not an even number of 2 or more, which divides heads and rows")
    return int(text)


WORDS = {
    "run": Word(
        "run the suite in the images of the selected cells, which are built where they are not there; the default",
        run_in_images,
        _configure_run,
    ),
    "here": Word(
        "run the suite in the current environment (VIRTUAL_ENV), as evidence for a cell", run_here, _configure_here
    ),
    "published": Word(
        "run the suite that is attached to a published image in it; both are checked as in `pull`",
        run_in_published_image,
        _configure_published,
    ),
    "parallel": Word(
        "check training over several processes, in the image of a cell or --here", run_parallel, _configure_parallel
    ),
    "job": Word(
        "write the folder of a job for Slurm or Kubernetes that runs the suite in published images",
        write_job,
        _configure_job,
    ),
    "collect": Word("take the evidence that such a job left", collect_job, _configure_collect),
}
