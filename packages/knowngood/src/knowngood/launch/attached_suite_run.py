"""Running the suite that is attached to a published image, on a machine without a checkout. An edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core import local_files
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.images import pipeline
from knowngood.registry import image_pull, suite_artifact
from knowngood.smoke import predictions, suite_run

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.notify import Notify
    from knowngood.engine.container_engine import Engine
    from knowngood.evidence.run_evidence import Evidence
    from knowngood.project.checkout import Project
    from knowngood.project.release_signers import ReleaseVerifier
    from knowngood.registry.image_pull import CheckedImage
    from knowngood.registry.image_reference import ImageReference
    from knowngood.registry.registry_client import Registry
    from knowngood.registry.suite_artifact import AttachedSuite
    from knowngood.smoke.suite_command import SuiteOptions


@dataclass(frozen=True, kw_only=True)
class SuitedImage:
    """A published image with the suite that is attached to it, both checked."""

    cell: Cell
    image: CheckedImage
    suite: AttachedSuite


def check_suited_image(
    project: Project, registry: Registry, reference: ImageReference, verifiers: Sequence[ReleaseVerifier]
) -> SuitedImage:
    """Return the image under a tag or a digest with its suite; nothing is pulled.

    Raises `KnowngoodError` when there is no such image or no suite, when a wanted signature is missing, or when the
    image's label names no cell.
    """
    image = image_pull.check_referenced_image(project, registry, reference, verifiers)
    try:
        cell = parse_cell(image.label)
    except UsageError:
        raise KnowngoodError(f"{reference} is no image of a cell: its label names {image.label or 'none'}") from None
    return SuitedImage(
        cell=cell, image=image, suite=suite_artifact.fetch_attached_suite(registry, image.digest, verifiers)
    )


def run_attached_suite(
    project: Project, suited: SuitedImage, engine: Engine, options: SuiteOptions, notify: Notify
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
