"""`knowngood verify [SELECT]`: does a build from nothing give the recorded bytes, and if not, which files differ."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.building.verify import Verdict
    from knowngood.errors import KnowngoodError

_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_wheelhouse(parser)
    parser.add_argument(
        "--cold",
        action="store_true",
        help="with an empty engine, data root and cache folder of their own; the base is bootstrapped again too",
    )
    parser.add_argument("--no-wait", action="store_true", help="leave a cell that another run verifies")


def run(arguments: argparse.Namespace) -> Answer:
    """Verify the selected cells (default: all); one that fails does not stop the others."""
    from knowngood import progress, select
    from knowngood.building import pipeline, verify
    from knowngood.engines import engine
    from knowngood.errors import KnowngoodError
    from knowngood.locks import wheelhouse

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    with progress.reporter("engine") as say:
        found = engine.ensure(say=say)
    house = wheelhouse.folder(arguments.wheelhouse)
    options = pipeline.Options(wheelhouse=house, locked=True, wait=not arguments.no_wait)
    line = pipeline.Pipeline(here, options, found)
    verdicts: list[Verdict] = []
    failed: dict[str, KnowngoodError] = {}
    for number, cell in enumerate(cells, 1):
        with progress.reporter(f"[{number}/{len(cells)}] {cell}") as say:
            try:
                verdicts.append(verify.verify(line, cell, say, cold=arguments.cold))
            except KnowngoodError as error:
                failed[str(cell)] = error
    document = {
        "cells": [
            {**vars(item), "outcome": str(item.outcome), "differences": [vars(one) for one in item.differences]}
            for item in verdicts
        ],
        "failed": {cell: str(error) for cell, error in failed.items()},
    }
    return Answer(_code(verdicts, failed), document, text(verdicts, failed))


def _code(verdicts: list[Verdict], failed: Mapping[str, KnowngoodError]) -> int:
    from knowngood.building.verify import Outcome

    codes = {Outcome.SAME: 0, Outcome.DIFFERENT: 1, Outcome.STALE: 1, Outcome.UNRECORDED: 3}
    found = [codes[item.outcome] for item in verdicts]
    found += [error.exit_code for error in failed.values()]
    return 1 if 1 in found else max(found, default=0)


def text(verdicts: list[Verdict], failed: Mapping[str, KnowngoodError]) -> str:
    """The table, and below it what differs."""
    from knowngood import table

    rows = [
        [item.cell, str(item.outcome), (item.recorded or "-")[:19], (item.rebuilt or "-")[:19], f"{item.seconds:.0f} s"]
        for item in verdicts
    ]
    rows += [[cell, "failed", "-", "-", "-"] for cell in failed]
    lines = [table.text(["cell", "", "recorded", "built again", "time"], rows)]
    lines += [f"{item.cell}: {item.note}" for item in verdicts if item.note]
    for item in verdicts:
        for one in item.differences:
            lines += [f"{item.cell}: {one.name}:", *(f"  {file}" for file in one.files[:_SHOWN])]
            more = len(one.files) - _SHOWN
            lines += [f"  and {more} more; --json has them all"] if more > 0 else []
    return "\n".join([*lines, *(f"{cell}: {error}" for cell, error in failed.items())])
