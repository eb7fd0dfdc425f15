"""`knowngood harvest [PACKAGE ...]`: facts out of the registry's artefacts."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="all known packages by default")
    parser.add_argument("--refresh", action="store_true", help="read again what was read already")


def run(arguments: argparse.Namespace) -> Answer:
    """Harvest into `facts/`."""
    from packaging.version import Version

    from knowngood import matrix, progress
    from knowngood.harvest import harvest

    here = project.find()
    text = (here.root / project.MATRIX).read_text(encoding="utf-8")
    floors = {name: Version(floor) for name, floor in matrix.floors(text, project.MATRIX).items()}

    with progress.reporter("harvest") as say:
        report = harvest(
            arguments.packages, folder=here.root / "facts", floors=floors, say=say, refresh=arguments.refresh
        )
    problems = [f"{name}: {why}" for name, why in {**report.failed, **report.unknown}.items()]
    text = "\n".join([f"{len(report.new)} releases read, {report.unchanged} known before", *problems])
    document = {
        "new": report.new,
        "unchanged": report.unchanged,
        "unknown": report.unknown,
        "failed": report.failed,
    }
    return Answer(report.exit_code, document, text)
