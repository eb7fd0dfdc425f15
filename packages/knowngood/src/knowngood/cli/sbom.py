"""`knowngood sbom ID`: print a cell's bill of materials from committed files, without engine and network."""

from __future__ import annotations

import argparse
import json

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.project.checkout import Project, find_project
from knowngood.registry import bill_of_materials, image_release


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_one_cell(parser)
    parser.add_argument(
        "--refresh-licences",
        action="store_true",
        help="only read the licences of all locked wheels from the package index",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Print the bill of materials of one cell."""
    project = find_project()
    if arguments.refresh_licences:
        return _refresh_licences(project)
    cell = shared_arguments.select_one_cell([arguments.cell], project.matrix)
    text = image_release.render_cell_sbom(project, cell)
    return Answer(0, json.loads(text), text.rstrip("\n"))


def _refresh_licences(project: Project) -> Answer:
    locks = [locked for cell in project.matrix.cells if (locked := project.tree.load(cell))]
    wheels = {item.sha256: item for locked in locks for item in locked.distributions}
    with report_progress("licences") as notify:
        known, changed = bill_of_materials.refresh_licences(project.root, list(wheels.values()), notify)
    state = "written" if changed else "unchanged"
    text = f"{known} of {len(wheels)} wheels name a licence; {bill_of_materials.licences_path(project.root)} {state}"
    return Answer(0, {"wheels": len(wheels), "named": known, "changed": changed}, text)
