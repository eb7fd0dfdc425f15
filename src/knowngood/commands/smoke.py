"""`knowngood smoke [SELECT]`: the suite in the images of cells, on another engine (--on), or --here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import build_matrix, common
from knowngood.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from knowngood.fleet.asking import Asked
    from knowngood.fleet.engines import Named
    from knowngood.project import Project


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments of `build-matrix`, `--here` and `--on`."""
    build_matrix.configure(parser, quick=False)
    parser.add_argument(
        "--here", metavar="CELL", help="run in the current environment (VIRTUAL_ENV), as evidence for this cell id"
    )
    parser.add_argument("--on", metavar="NAME", help="run on an executor of fleet.yaml, or on `local`")
    parser.add_argument("--cancel", action="store_true", help="with --on: end the jobs of these cells")


def run(arguments: argparse.Namespace) -> Answer:
    """Run the suite and store what it saw."""
    if arguments.cancel and not arguments.on:
        raise UsageError("--cancel ends jobs of an executor; say which with --on NAME")
    if arguments.on and arguments.here:
        raise UsageError("--here and --on are two places; give one of them")
    if arguments.on:
        return _on(arguments)
    if arguments.here:
        return _here(arguments)
    arguments.again = True
    return build_matrix.run(arguments)


def _here(arguments: argparse.Namespace) -> Answer:
    from knowngood import cell, evidence, predictions, progress, smoke
    from knowngood.building import pipeline

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


def _on(arguments: argparse.Namespace) -> Answer:
    """On an executor; the worst outcome decides the exit code."""
    from knowngood import progress, select
    from knowngood.building import ownership
    from knowngood.fleet import asking, engines

    here = project.find()
    words = arguments.select or ([] if arguments.all else ["default"])
    cells = select.select(here.matrix.cells, here.matrix.aliases, words)
    with progress.reporter(arguments.on) as say:
        named = engines.find(arguments.on, here, say)
        options = common.suite_options(arguments)
        asked = asking.ask(here, cells, named.section, options, again=arguments.again or arguments.cancel)
        if arguments.dry_run:
            commands = [
                *named.executor.rehearse(asked.jobs),
                *(f"# {said}" for said in map(str, asked.refused.values())),
            ]
            return Answer(0, {"commands": commands}, "\n".join(commands))
        with ownership.held(f"fleet-{arguments.on}", wait=not arguments.no_wait, say=say):
            return _cancelled(named, asked) if arguments.cancel else _carried_out(here, named, asked, say)


def _carried_out(here: Project, named: Named, asked: Asked, say: Callable[[str], None]) -> Answer:
    from knowngood import evidence, table
    from knowngood.evidence import Evidence
    from knowngood.fleet.answer import HEADER, Told
    from knowngood.fleet.run import Run
    from knowngood.fleet.state import State, folder

    def store(run: Evidence) -> str:
        return str(evidence.store(run, here.evidence).relative_to(here.root))

    kept = State(folder(named.executor.name))
    run = Run(
        executor=named.executor,
        kept=kept,
        store=store,
        say=say,
        wait=named.section.wait,
        longest=named.longest,
    )
    told = Told(
        executor=named.executor.name,
        lines=run.run(asked.jobs) if asked.jobs else (),
        proven=asked.proven,
        refused=asked.refused,
        avoided=kept.ledger.suspects(),
        notes=[kept.note] if kept.note else (),
    )
    return Answer(told.code, told.document(), "\n".join([table.text(HEADER, told.rows()), *told.sentences()]))


def _cancelled(named: Named, asked: Asked) -> Answer:
    from knowngood.fleet.state import State, folder

    kept = State(folder(named.executor.name))
    ended = []
    for work in asked.jobs:
        track = kept.tracks.get(work.key)
        if track and not track.settled:
            named.executor.cancel([track.job(work).key])
            kept.tracks[work.key] = track.model_copy(update={"settled": True})
            ended.append(work.cell)
    kept.save()
    return Answer(0, {"cancelled": ended}, "\n".join(f"{cell}: cancelled" for cell in ended) or "no job was running")
