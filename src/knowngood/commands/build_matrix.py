"""`knowngood build-matrix [SELECT]`: everything, from matrix.yaml to evidence; what `nox -s build-matrix` runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from knowngood.pipeline import Options, Result


def configure(parser: argparse.ArgumentParser, *, quick: bool = True) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument("--all", action="store_true", help="every cell (without SELECT: the alias default)")
    common.add_wheelhouse(parser)
    common.add_locked(parser)
    common.add_smoke(parser, quick=quick)
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands and do nothing")


def run(arguments: argparse.Namespace, *, smoke: bool = True, words: list[str] | None = None) -> Answer:
    """Build and prove the selected cells; the first cell that fails decides the exit code."""
    from knowngood import engine, pipeline, progress, select

    here = project.find()
    matrix = here.matrix
    words = words or arguments.select or ([] if arguments.all else ["default"])
    cells = select.select(matrix.cells, matrix.aliases, words)
    if arguments.dry_run:
        from knowngood import dryrun

        line = pipeline.Pipeline(here, options(arguments, smoke=smoke), dryrun.engine())
        commands = [command for cell in cells for command in dryrun.commands(line, cell)]
        return Answer(0, {"commands": commands}, "\n".join(dict.fromkeys(commands)))
    with progress.reporter("engine") as say:
        found = engine.ensure(say=say)
        say(f"docker {found.version} at {found.host}")
    line = pipeline.Pipeline(here, options(arguments, smoke=smoke), found)
    results: list[Result] = []
    for number, cell in enumerate(cells, 1):
        with progress.reporter(f"[{number}/{len(cells)}] {cell}") as say:
            results.append(line.run(cell, say))
        result = results[-1]
        if result.error:
            print(f"{result.cell}: {result.error}", file=sys.stderr)
    code = next((result.error.exit_code for result in results if result.error), 0)
    return Answer(code, {"cells": [_document(result, here) for result in results]}, summary(results, here))


def options(arguments: argparse.Namespace, *, smoke: bool) -> Options:
    """The run's options from the command line's."""
    from knowngood import pipeline, wheelhouse

    return pipeline.Options(
        wheelhouse=wheelhouse.folder(arguments.wheelhouse),
        locked=arguments.locked,
        prove=smoke,
        suite=common.suite_options(arguments),
        force_smoke=arguments.again,
    )


def summary(results: list[Result], here: project.Project) -> str:
    """The table at the end: id, how it came out, tier, digest, size, seconds, evidence; notes below it."""
    from knowngood import table

    rows = [
        [
            result.cell,
            str(result.status),
            str(result.tier),
            result.image.digest[:19] if result.image else "-",
            f"{result.image.size / 1e9:.2f} GB" if result.image else "-",
            f"{result.seconds:.0f} s",
            str(result.evidence.relative_to(here.root)) if result.evidence else "-",
        ]
        for result in results
    ]
    header = ["cell", "status", "tier", "image", "size", "time", "evidence"]
    notes = [f"{result.cell}: {result.note}" for result in results if result.note]
    errors = [f"{result.cell}: FAILED: {result.error}" for result in results if result.error]
    return "\n".join([table.text(header, rows), *notes, *errors])


def _document(result: Result, here: project.Project) -> dict[str, object]:
    image = result.image
    return {
        "id": result.cell,
        "status": str(result.status),
        "tier": str(result.tier),
        "image": {"tag": image.tag, "digest": image.digest, "bytes": image.size, "built": image.built}
        if image
        else None,
        "seconds": round(result.seconds, 1),
        "evidence": str(result.evidence.relative_to(here.root)) if result.evidence else None,
        "note": result.note,
        "error": str(result.error) if result.error else None,
    }
