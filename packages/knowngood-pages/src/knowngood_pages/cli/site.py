"""`knowngood site`: write static pages where people find their image, and `catalog.json` for programs."""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

from knowngood.cli.main import Answer
from knowngood.core.errors import MissingError
from knowngood.project.checkout import Project, find_project
from knowngood.reports import git_history
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_pages import browser_program, site_build, site_files, site_pages


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "-o",
        "--output",
        default="site",
        metavar="FOLDER",
        help="where to write the site (default: %(default)s); an earlier site there is replaced",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Render the site and write the files that changed."""
    project = find_project()
    program, missing = _read_program(project)
    places = site_pages.SitePlaces(
        repository=os.environ.get("KNOWNGOOD_REPOSITORY") or project.matrix.publish.repository,
        licence=(project.root / "LICENSE").is_file(),
        source=git_history.find_source_address(project.root),
        made_from=git_history.describe_commit(project.root),
        program=program,
    )
    gc.disable()  # as in its worker processes: nothing that is site here is freed before the end
    try:
        site = site_build.build_site(project, project.evidence, load_incidents(), places)
    finally:
        gc.enable()
    changed = site_files.write_site(Path(arguments.output), site.files)
    document = {
        "folder": arguments.output,
        "files": len(site.files),
        "changed": changed,
        "cells": len(site.catalog.cells),
    }
    summary = f"{arguments.output}: {len(site.files)} files, {len(changed)} of them new or changed"
    left_out = [*site.catalog.left_out, *missing]
    return Answer(0, document | {"left_out": left_out}, "\n".join([summary, *(f"left out: {it}" for it in left_out)]))


def _read_program(project: Project) -> tuple[dict[str, bytes], list[str]]:
    """Return the program for the page that diagnoses, or why the site is without it."""
    try:
        return browser_program.browser_files(site_build.site_templates_folder(project)), []
    except MissingError as error:
        return {}, [f"diagnose.html only names the command: {error}"]
