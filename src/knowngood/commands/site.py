"""`knowngood site`: static pages where people find their image, and `catalog.json` for programs."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

from knowngood.cli import Answer


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "-o",
        "--output",
        default="site",
        metavar="FOLDER",
        help="where to write it (default: site); an earlier site there is replaced",
    )
    parser.add_argument("--evidence", metavar="FOLDER", help="of these runs (default: the project's evidence/)")
    parser.add_argument("--repository", metavar="NAME", help="where the images are published, as `publish --to` has it")
    parser.add_argument(
        "--evidence-url", metavar="URL", help="where that folder can be read: the files of runs become links"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Make the site."""
    from knowngood import project
    from knowngood.errors import UsageError
    from knowngood.incidents.files import read
    from knowngood.site import folder, make

    here = project.find()
    evidence = Path(arguments.evidence) if arguments.evidence else here.evidence
    if arguments.evidence and not evidence.is_dir():
        raise UsageError(f"there is no folder {evidence}")
    runs_at = arguments.evidence_url
    if runs_at and not runs_at.startswith(("https://", "http://")):
        raise UsageError(f"--evidence-url {runs_at}: give the address of the folder, as https://HOST/PATH/evidence")
    gc.disable()  # as in its workers: what is made here is kept to the end
    try:
        made = make.make(here, evidence, read(), arguments.repository, runs_at and runs_at.rstrip("/"))
    finally:
        gc.enable()
    changed = folder.write(Path(arguments.output), made.files)
    document = {
        "folder": arguments.output,
        "files": len(made.files),
        "changed": changed,
        "cells": len(made.catalog.cells),
        "left_out": made.catalog.left_out,
    }
    said = f"{arguments.output}: {len(made.files)} files, {len(changed)} of them new or changed"
    return Answer(0, document, "\n".join([said, *(f"left out: {text}" for text in made.catalog.left_out)]))
