"""`knowngood export ID --format FORMAT`: print or write a cell's lock for tools other than Docker."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import UsageError, strip_user_information
from knowngood.core.local_files import write_atomically
from knowngood.index.package_index import SimpleIndex
from knowngood.launch import run_host
from knowngood.launch.container_files import render_compose_file, render_devcontainer
from knowngood.launch.container_run import ContainerRun
from knowngood.lock import lock_exports, wheelhouse
from knowngood.lock.lock_exports import ExportFormat
from knowngood.lock.lock_tree import CellLock
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import find_project
from knowngood.registry import image_release
from knowngood.registry.image_reference import ImageReference

_OF_IMAGE = (ExportFormat.APPTAINER, ExportFormat.COMPOSE, ExportFormat.DEVCONTAINER)
_NAMED = ", ".join(_OF_IMAGE)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_one_cell(parser)
    parser.add_argument(
        "--format", default="requirements", choices=[str(item) for item in ExportFormat], help="(default: %(default)s)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="(default: standard output)")
    parser.add_argument("--image", metavar="IMAGE", help=f"the published image; only for {_NAMED}")


def run(arguments: argparse.Namespace) -> Answer:
    """Write the lock of one cell in the requested format."""
    project = find_project()
    cell = shared_arguments.select_one_cell([arguments.cell], project.matrix)
    form = ExportFormat(arguments.format)
    if arguments.image and form not in _OF_IMAGE:
        raise UsageError(f"--image has no meaning for {form}, which is made from the lock alone; it is for {_NAMED}")
    image = str(ImageReference.parse(arguments.image)) if arguments.image else None
    _, broken = split_broken_cells(project, [cell])
    for error in broken.values():
        raise error
    locked = image_release.require_lock(project, cell)
    if form is ExportFormat.REQUIREMENTS:
        text = lock_exports.render_requirements(locked)
    elif form is ExportFormat.PYLOCK:
        text = lock_exports.render_pylock(locked, _urls(locked))
    elif form is ExportFormat.CYCLONEDX:
        text = image_release.render_cell_sbom(project, cell)
    elif form in (ExportFormat.COMPOSE, ExportFormat.DEVCONTAINER):
        folder = run_host.find_working_folder()
        container = ContainerRun(
            image=image or f"knowngood:{locked.cell}",
            program=("python", "train.py"),
            user=run_host.read_user_ids(folder),
            folder=folder,
            shared_memory=run_host.half_of_memory(),
        )
        is_compose = form is ExportFormat.COMPOSE
        text = (render_compose_file if is_compose else render_devcontainer)(locked.cell, container)
    else:
        text = lock_exports.render_apptainer_definition(locked, image_release.require_base_lock(project, locked), image)
    document = {"id": str(locked.cell), "format": str(form), "file": arguments.output}
    if arguments.output:
        write_atomically(Path(arguments.output), text)
        return Answer(0, document, f"{arguments.output}: {form} of {locked.cell}")
    return Answer(0, {**document, "text": text}, text.rstrip("\n"))


def _urls(locked: CellLock) -> Mapping[str, str]:
    """Return the address of each wheel of the lock, by its SHA-256; an address contains no login of the index."""
    with report_progress(str(locked.cell)) as notify:
        notify(f"asking the index where {len(locked.distributions)} wheels are")
        files = wheelhouse.locate_wheels(locked.distributions, SimpleIndex())
    return {sha256: strip_user_information(file.url) for sha256, file in files.items()}
