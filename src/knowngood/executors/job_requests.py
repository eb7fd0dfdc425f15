"""Turns cells into jobs, and finds the cells that need none because good evidence exists. Reads the project's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.executors.fleet_config import CELL_PLACEHOLDER, CommonSection
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob
from knowngood.facts import fact_store
from knowngood.facts.driver_reader import DriverFacts
from knowngood.images import build_inputs
from knowngood.lock.cell_lock import Distribution
from knowngood.registry import image_release
from knowngood.smoke import predictions, suite_command, suite_files
from knowngood.smoke.trainer_suite import find_cell_suite

if TYPE_CHECKING:
    from knowngood.project.checkout import Project

_UNITS = {"m": 1 << 20, "g": 1 << 30}
LOCAL_IMAGES = "knowngood"
"""The repository name of images that were built on this machine."""


@dataclass(kw_only=True)
class JobRequests:
    """The cells of a command: each is a job, proven already, or refused."""

    jobs: list[SuiteJob] = field(default_factory=list)
    proven: dict[str, Evidence] = field(default_factory=dict)
    """Cell -> good evidence for the same job."""
    refused: dict[str, KnowngoodError] = field(default_factory=dict)
    """Cell -> why it cannot be a job."""


def request_jobs(
    project: Project, cells: Sequence[Cell], section: CommonSection, options: suite_command.SuiteOptions, *, again: bool
) -> JobRequests:
    """Return the jobs for cells. With `again`, cells that are proven get a job too."""
    requests, recipe = JobRequests(), build_inputs.read_recipe_digest(project)
    expected = predictions.load_predictions(project.root)
    for cell in cells:
        try:
            subject, locked = _subject(project, cell, section, recipe)
            folder = find_cell_suite(project, cell)
            job = SuiteJob(
                cell=str(cell),
                subject=subject,
                suite=suite_files.hash_suite(folder),
                suite_folder=folder,
                command=tuple(suite_command.suite_arguments(options, cell_gpu=cell.gpu)),
                predictions=predictions.predictions_for_cell(expected, cell, gpu=options.gpus),
                needs=_needs(cell, section, options),
            )
        except KnowngoodError as error:
            requests.refused[str(cell)] = error
            continue
        proof = None if again else _find_proof(project, job, locked, quick=options.quick)
        if proof:
            requests.proven[str(cell)] = proof
        else:
            requests.jobs.append(job)
    return requests


def _subject(
    project: Project, cell: Cell, section: CommonSection, recipe: str
) -> tuple[JobSubject, Sequence[Distribution]]:
    locked = project.tree.load(cell)
    if locked is None:
        raise MissingError(f"{cell} has no lock; run `knowngood lock '{cell}'`")
    if section.environments:
        folder = section.environments.replace(CELL_PLACEHOLDER, str(cell))
        return JobSubject(environment=folder, content=f"sha256:{locked.digest}"), locked.distributions
    record = image_release.current_record(project, cell, recipe)
    if record is None:
        raise MissingError(
            f"{cell}: there is no record of an image of the committed files; run `knowngood build --record '{cell}'`, "
            "and `knowngood publish` when the executor is another machine"
        )
    digest = record.manifest.digest
    image = f"{section.images or LOCAL_IMAGES}@{digest}"
    return JobSubject(image=image, content=digest, config=record.config.digest), locked.distributions


def _needs(cell: Cell, section: CommonSection, options: suite_command.SuiteOptions) -> JobNeeds:
    driver = fact_store.load_facts("drivers", DriverFacts).get(cell.cuda) if options.gpus else None
    return JobNeeds(
        gpu=cell.gpu if options.gpus else None,
        gpus=int(options.gpus),
        driver=driver.facts.minimum if driver else None,
        cpus=section.cpus,
        memory=int(options.memory[:-1]) * _UNITS[options.memory[-1]],
        seconds=options.seconds,
    )


def _find_proof(project: Project, job: SuiteJob, locked: Sequence[Distribution], *, quick: bool) -> Evidence | None:
    """Return the newest good run of the same image or environment, by the same suite, on the same kind of node."""
    runs, _ = run_evidence.load_cell_evidence(project.evidence, job.cell)
    proofs = [run for run in runs if run.ok and run.suite == job.suite and (quick or not run.quick)]
    proofs = [run for run in proofs if _is_same_subject(run, job, locked)]
    return proofs[-1] if proofs else None


def _is_same_subject(run: Evidence, job: SuiteJob, locked: Sequence[Distribution]) -> bool:
    """Compare an image by its digest, and an environment, which has none, by all of its versions."""
    if not job.subject.environment:
        return run.image == job.subject.content and (not job.needs.gpu or run.where is RunPlace.CONTAINER_GPU)
    environment = run.report.get("environment", {})
    if run.where is not RunPlace.BARE or (environment.get("sm") is not None) != bool(job.needs.gpu):
        return False
    versions = environment.get("distributions", {})
    return all(versions.get(item.name) == item.version for item in locked)
