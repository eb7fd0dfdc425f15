"""Cells as jobs: what runs, in what, on what node, and which cells need none since they are proven. Edge."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import evidence, facts, predictions, smoke
from knowngood.building import survey
from knowngood.cell import Cell
from knowngood.errors import KnowngoodError, MissingError
from knowngood.evidence import Evidence, Where
from knowngood.fleet.config import CELL, Common
from knowngood.fleet.job import Job, Needs, Subject
from knowngood.locks.lock import Distribution
from knowngood.publishing import release

if TYPE_CHECKING:
    from knowngood.project import Project

_UNITS = {"m": 1 << 20, "g": 1 << 30}
LOCAL_IMAGES = "knowngood"
"""The repository of images that were built on this machine."""


@dataclass(kw_only=True)
class Asked:
    """The cells of a command."""

    jobs: list[Job] = field(default_factory=list)
    proven: dict[str, Evidence] = field(default_factory=dict)
    """Good evidence for exactly this, by cell."""
    refused: dict[str, KnowngoodError] = field(default_factory=dict)
    """Cells that cannot be jobs, and why."""


def ask(here: Project, cells: Sequence[Cell], section: Common, options: smoke.Options, *, again: bool) -> Asked:
    """The jobs for cells; with `again` also of those that are proven."""
    asked, suite, folders = Asked(), suite_hash(here.suite), survey.digests(here)
    for cell in cells:
        try:
            subject, locked = _subject(here, cell, section, folders)
            job = Job(
                cell=str(cell),
                subject=subject,
                suite=suite,
                command=tuple(smoke.asked(options, cell_gpu=cell.gpu)),
                predictions=predictions.predict(here.predictions, cell, gpu=options.gpus),
                needs=_needs(cell, section, options),
            )
        except KnowngoodError as error:
            asked.refused[str(cell)] = error
            continue
        known = None if again else _known(here, job, locked, quick=options.quick)
        if known:
            asked.proven[str(cell)] = known
        else:
            asked.jobs.append(job)
    return asked


def suite_hash(suite: Path) -> str:
    """The hash that the suite's own reports carry."""
    return str(runpy.run_path(str(suite / "environment.py"))["suite_hash"](suite))


def _subject(
    here: Project, cell: Cell, section: Common, folders: Mapping[str, str]
) -> tuple[Subject, Sequence[Distribution]]:
    locked = here.tree.load(cell)
    if locked is None:
        raise MissingError(f"{cell} has no lock; run `knowngood lock '{cell}'`")
    if section.environments:
        folder = section.environments.replace(CELL, str(cell))
        return Subject(environment=folder, content=f"sha256:{locked.digest}"), locked.distributions
    record = release.record(here, cell, folders)
    if record is None:
        raise MissingError(
            f"{cell}: no image of what is committed is known here; run `knowngood build --record '{cell}'`, "
            "and `knowngood publish` where the engine is another machine"
        )
    digest = record.manifest.digest
    image = f"{section.images or LOCAL_IMAGES}@{digest}"
    return Subject(image=image, content=digest, config=record.config.digest), locked.distributions


def _needs(cell: Cell, section: Common, options: smoke.Options) -> Needs:
    known = facts.load("drivers").get(cell.cuda) if options.gpus else None
    return Needs(
        gpu=cell.gpu if options.gpus else None,
        gpus=int(options.gpus),
        driver=known.facts.minimum if known else None,
        cpus=section.cpus,
        memory=int(options.memory[:-1]) * _UNITS[options.memory[-1]],
        seconds=options.seconds,
    )


def _known(here: Project, job: Job, locked: Sequence[Distribution], *, quick: bool) -> Evidence | None:
    """The newest good run of this very image or environment by this suite, on this kind of node."""
    runs, _ = evidence.load_all(here.evidence, job.cell)
    good = [run for run in runs if run.ok and run.suite == job.suite and (quick or not run.quick) and _of(run, job)]
    if job.subject.environment:
        good = [run for run in good if _has(run, locked)]
    return good[-1] if good else None


def _of(run: Evidence, job: Job) -> bool:
    on_gpu = run.report.get("environment", {}).get("sm") is not None
    if job.subject.environment:
        return run.where is Where.BARE and on_gpu == bool(job.needs.gpu)
    wanted = Where.CONTAINER_GPU if job.needs.gpu else None
    return run.image == job.subject.content and wanted in (None, run.where)


def _has(run: Evidence, locked: Sequence[Distribution]) -> bool:
    """Whether the environment that ran had what the lock says: no digest was seen of it, but every version."""
    seen = run.report["environment"].get("distributions", {})
    return all(seen.get(item.name) == item.version for item in locked)
