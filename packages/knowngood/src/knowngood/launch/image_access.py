"""Getting the image of a cell into the engine: it is there, or a registry has it, or it is built. An edge.

Whichever way it comes, it is the image that the cell's record names, where the cell has a record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.engine import container_engine, image_store
from knowngood.engine.container_engine import Engine
from knowngood.launch.cell_verdict import CellVerdicts
from knowngood.project import core_facts
from knowngood.project.cell_answers import CellAnswers
from knowngood.project.checkout import Project
from knowngood.registry import image_reference


@dataclass(frozen=True, kw_only=True)
class RunnableImage:
    """The image of a cell, in the engine."""

    name: str
    digest: str
    """Its id in the engine: the digest of its manifest, or of its configuration in the classic store."""
    origin: str
    """Where it came from, in words."""


def recorded_reference(project: Project, cell: Cell, repositories: Sequence[str]) -> str:
    """Return the image of a cell in the first repository by its recorded digest; empty without one of the two."""
    record = project.tree.load_record(cell)
    from knowngood.registry.image_reference import Repository

    return f"{Repository.parse(repositories[0])}@{record.manifest.digest}" if record and repositories else ""


def find_recorded_image(project: Project, cell: Cell, engine: Engine, notify: Notify) -> RunnableImage | None:
    """Return the engine's image of a cell, `None` when there is none or when it is not the recorded one."""
    name = f"knowngood:{cell}"
    actual, record = image_store.find_image_id(engine, name), project.tree.load_record(cell)
    if actual is None:
        return None
    if record and not record.is_of(actual):
        notify(f"the engine's {name} is {actual[:19]}, and its record names {record.manifest.digest[:19]}")
        return None
    return RunnableImage(name=name, digest=actual, origin="in the engine")


def fetch_cell_image(project: Project, cell: Cell, engine: Engine, announce: Notify, notify: Notify) -> RunnableImage:
    """Get the image of a cell that the engine lacks: from a repository that has it, else by a build.

    `announce` gets the lines that stay, such as the size of a build before it begins; `notify` the steps.

    Raises `KnowngoodError` and `MissingError` as `build_cell_image` does.
    """
    repositories = image_reference.list_repositories(project.matrix, os.environ)
    image = pull_recorded_image(project, cell, engine, repositories, notify)
    if image is None:
        announce(describe_build(project, cell, engine))
        image = build_cell_image(project, cell, notify)
    announce(f"{image.name} is {image.digest[:19]}, {image.origin}")
    return image


def pull_recorded_image(
    project: Project, cell: Cell, engine: Engine, repositories: Sequence[str], notify: Notify
) -> RunnableImage | None:
    """Pull the image of a cell from the first repository that has it as recorded, and signed where a key is named.

    Returns `None` when no repository has it; `notify` hears why of each.
    """
    from knowngood.project.release_signers import load_release_verifiers
    from knowngood.registry import image_pull
    from knowngood.registry.image_reference import Repository
    from knowngood.registry.registry_client import Registry

    verifiers = load_release_verifiers(project.root, project.matrix.publish)
    for repository in repositories:
        try:
            registry = Registry(Repository.parse(repository))
            image = image_pull.check_cell_image(project, registry, cell, verifiers)
            image_pull.pull_checked_image(image, engine, notify)
        except KnowngoodError as error:
            notify(f"not from {repository}: {error}")
            continue
        name = f"knowngood:{cell}"
        actual = image_store.find_image_id(engine, name)
        return RunnableImage(name=name, digest=actual or image.digest, origin=f"pulled from {repository}")
    return None


def describe_build(project: Project, cell: Cell, engine: Engine | None) -> str:
    """Return what building the image of a cell costs, in words."""
    verdict = CellVerdicts(CellAnswers(project), engine, os.environ, pulls=False).judge(cell)
    return f"building {cell}: {verdict.cost}; this is done once"


def build_cell_image(project: Project, cell: Cell, notify: Notify) -> RunnableImage:
    """Build the image of a cell from its lock.

    Raises:
        MissingError: it needs a wheel that nobody publishes and that is not in the wheelhouse, or there is no engine.
        KnowngoodError: the build failed, or gave another image than the recorded one.
    """
    from knowngood.images import pipeline
    from knowngood.lock import cell_locking, wheelhouse
    from knowngood.registry import wheel_supply

    house = wheelhouse.wheelhouse_folder()
    wheel_supply.supply_wheels(project, [cell], house, notify)
    missing = cell_locking.find_missing_wheel(cell, project.matrix, house, cxx11abi=core_facts.load_torch_cxx11abi)
    if missing:
        raise MissingError(f"{missing.message}; or name a repository that has the image in KNOWNGOOD_REGISTRY")
    engine = container_engine.ensure_engine(notify=notify)
    options = pipeline.PipelineOptions(wheelhouse=house, locked=True, prove=False)
    result = pipeline.Pipeline(project, options, engine).run(cell, notify)
    if result.error:
        raise result.error
    if result.image is None:
        raise KnowngoodError(f"{cell}: the build gave no image ({result.note})")
    return RunnableImage(name=result.image.tag, digest=result.image.digest, origin="built here")
