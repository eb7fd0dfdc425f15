"""`knowngood smoke [SELECT]`: the suite in the images of cells, or --here."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import build_matrix, common


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `build-matrix`, and `--here`."""
    build_matrix.configure(parser, quick=False)
    parser.add_argument(
        "--here", metavar="CELL", help="run in the current environment (VIRTUAL_ENV), as evidence for this cell id"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Run the suite and store what it saw."""
    if not arguments.here:
        arguments.again = True
        return build_matrix.run(arguments)
    from knowngood import cell, evidence, pipeline, predictions, progress, smoke

    here = project.find()
    wanted = cell.parse(arguments.here)
    with progress.reporter(str(wanted)) as say:
        found = smoke.here(
            wanted,
            here.suite,
            common.suite_options(arguments),
            predictions=predictions.predict(here.predictions, wanted, gpu=arguments.gpus),
            log=pipeline.log(wanted, "here"),
            say=say,
        )
    path = evidence.store(found, here.evidence)
    verdict = found.report["verdict"]
    return Answer(
        0 if found.ok else 1,
        {"evidence": str(path), "ok": found.ok, "outcomes": found.outcomes},
        f"{verdict['text']}\nevidence: {path}",
    )
