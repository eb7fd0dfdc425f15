"""`knowngood plan [SELECT]`: what a build would do, in which order, before anything is done; for CI systems too."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common
from knowngood.errors import UsageError

if TYPE_CHECKING:
    from knowngood.building.planning import CellPlan, LayerPlan, Plan
    from knowngood.cell import Cell
    from knowngood.engines.engine import Engine

FORMATS = ("github", "gitlab", "buildkite", "bake", "json")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    common.add_wheelhouse(parser)
    parser.add_argument("--offline", action="store_true", help="ask no engine: nothing counts as built")
    parser.add_argument(
        "--published", metavar="REPOSITORY", help="leave a cell whose image stands there, seen green, as `build` does"
    )
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, to a registry on this machine only")
    parser.add_argument(
        "--changed-since", metavar="REF", help="only cells whose lock, Dockerfile, base, recipe or suite changed (git)"
    )
    ci = parser.add_argument_group("the plan for a CI system (docs/ci.md)")
    ci.add_argument("--format", choices=FORMATS, help="as a matrix, a pipeline, a bake file, or all of it as JSON")
    ci.add_argument("--stage", choices=("wheels", "images"), help="for github: whose matrix (default: images)")
    ci.add_argument("--gpus", metavar="ARCH,...", default="", help="architectures that have runners, sm_90,sm_80")
    ci.add_argument("--runner", metavar="LABEL,...", help="of the jobs that need no GPU (default: by the system)")


def run(arguments: argparse.Namespace) -> Answer:
    """Show the plan for the selected cells (default: all)."""
    from knowngood import select
    from knowngood.building import survey
    from knowngood.locks import wheelhouse

    here = project.find()
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    if arguments.changed_since is not None:
        cells = _changed(here, cells, arguments.changed_since)
    if arguments.format:
        if arguments.published:
            raise UsageError(
                "--published and --format do not go together: a CI system's jobs ask the registry themselves"
            )
        return _for_ci(arguments, here, cells)
    if arguments.stage or arguments.gpus or arguments.runner:
        raise UsageError("--stage, --gpus and --runner belong to --format: `knowngood plan --format github`")
    engine = None if arguments.offline else _engine()
    standing = _standing(here, cells, arguments.published, insecure=arguments.insecure) if arguments.published else {}
    made = survey.plan(here, cells, wheelhouse.folder(arguments.wheelhouse), engine, standing)
    seen = f"the engine at {engine.host}" if engine else None
    return Answer(0, {"engine": engine.host if engine else None, **made.document()}, text(made, seen))


def _standing(here: project.Project, cells: list[Cell], repository: str, *, insecure: bool) -> dict[str, str]:
    """Where the cells stand, for which there is nothing to do."""
    from knowngood.publishing import release
    from knowngood.registries.reference import Repository
    from knowngood.registries.registry import Registry

    registry = Registry(Repository.parse(repository), insecure=insecure)
    found = release.standing(here, registry, cells)
    return {name: f"it stands as {registry.repository}@{digest}" for name, (digest, _) in found.items()}


def _changed(here: project.Project, cells: list[Cell], ref: str) -> list[Cell]:
    """Those of the cells that changed since a commit; one that has no lock, when matrix.yaml did."""
    from knowngood.ci import changed, diff

    paths = diff.files(here.root, ref)
    locked = {cell: here.tree.load(cell) for cell in cells}
    found = set(changed.concerned(filter(None, locked.values()), paths, uv=diff.uv(here.root, ref)))
    new = project.MATRIX in paths
    return [cell for cell, lock in locked.items() if str(cell) in found or (new and lock is None)]


def _for_ci(arguments: argparse.Namespace, here: project.Project, cells: list[Cell]) -> Answer:
    import json

    import yaml

    from knowngood.building import planning, survey
    from knowngood.ci import bake, buildkite, github, gitlab
    from knowngood.ci.jobs import Stage, architectures, jobs, labels

    kind = arguments.format
    if arguments.stage and kind != "github":
        raise UsageError(f"--stage is for --format github; {kind} has all stages in one document")
    ordered = planning.order(list(survey.asked(here, cells, None)), planning.Holdings())
    if kind == "bake":
        commands = _commands(arguments, here, [item.cell for item in ordered])
        document = bake.document(commands)
        return Answer(0, document, json.dumps(document, indent=2))
    limits = {"github": github.LIMIT, "gitlab": gitlab.LIMIT, "buildkite": buildkite.LIMIT, "json": len(cells) * 2 + 2}
    compiled = {str(cell): here.matrix.compiled(cell) for cell in cells}
    made = jobs(ordered, compiled, gpus=architectures(arguments.gpus), limit=limits[kind])
    runner = {"runner": labels(arguments.runner)} if arguments.runner else {}
    if kind == "github":
        document = github.matrix(made, Stage(arguments.stage or Stage.IMAGES), **runner)
        return Answer(0, document, github.text(document))
    if kind == "json":
        plan = survey.plan(here, cells, None, None)
        document = {**plan.document(), "jobs": [job.document() for job in made]}
        return Answer(0, document, json.dumps(document, indent=1))
    document = (gitlab if kind == "gitlab" else buildkite).document(made, **runner)
    return Answer(0, document, yaml.safe_dump(document, sort_keys=False, width=10**6).rstrip())


def _commands(arguments: argparse.Namespace, here: project.Project, cells: list[str]) -> dict[str, list[str]]:
    """What builds each cell here, as `knowngood build --dry-run` has it, by the Dockerfile that is there."""
    import shlex

    from knowngood import cell, render
    from knowngood.building import dryrun, pipeline
    from knowngood.errors import KnowngoodError
    from knowngood.locks import wheelhouse

    options = pipeline.Options(wheelhouse=wheelhouse.folder(arguments.wheelhouse), prove=False)
    line = pipeline.Pipeline(here, options, dryrun.engine())
    found: dict[str, list[str]] = {}
    for name in cells:
        lines = dryrun.commands(line, cell.parse(name))
        build = next((argv for text in lines if "buildx" in (argv := shlex.split(text, comments=True))), None)
        if build is None:
            raise KnowngoodError(f"{name} cannot be built from here: {'; '.join(lines)}")
        file = Path(build[build.index("--file") + 1])
        locked = here.tree.load(cell.parse(file.parent.name))  # the `fa0` twin's where a wheel is not at hand
        if locked is None or render.stale({file: render.dockerfile(locked, here.templates)}, []):
            raise KnowngoodError(f"{file} is stale; run `knowngood render`")
        found[file.parent.name] = build
    return found


def _engine() -> Engine | None:
    from knowngood.engines import engine

    system = engine.find_system()
    return system if isinstance(system, engine.Engine) else engine.find_embedded()


def text(made: Plan, engine: str | None) -> str:
    """The plan for people: cells in their order, layers in theirs, and what it comes to."""
    from knowngood import table, units
    from knowngood.building.planning import Action

    lines = [
        table.text(
            ["", "cell", "action", "fetches", "adds to a registry", "layers only it has"],
            [_cell(number, cell) for number, cell in enumerate(made.cells, 1)],
        ),
        "",
        table.text(["layer", "action", "fetches", "in a registry", "cells"], [_layer(layer) for layer in made.layers]),
        "",
    ]
    lines += [f"{cell.cell}: {cell.note}" for cell in made.cells if cell.note]
    lines += [
        f"base {digest}: bootstrapped first, from Debian packages"
        for digest, action in made.bases.items()
        if action is Action.BUILD
    ]
    building, reusing = (
        [layer for layer in made.layers if layer.action is action] for action in (Action.BUILD, Action.REUSE)
    )
    lines.append(
        f"{len(building)} layers to build, {_sum(made.size)} in a registry; {units.text(made.download)} of wheels "
        f"to fetch; {len(reusing)} layers reused, {_sum(made.reused)}"
    )
    lines.append(
        f"reused is what {engine} has" if engine else "no engine was asked or answers: nothing counts as built"
    )
    return "\n".join(lines)


def _cell(number: int, cell: CellPlan) -> list[str]:
    from knowngood import units

    return [
        str(number),
        cell.cell,
        str(cell.action),
        units.text(cell.download),
        units.text(cell.adds),
        _listed(cell.only),
    ]


def _layer(layer: LayerPlan) -> list[str]:
    from knowngood import units

    return [layer.name, str(layer.action), units.text(layer.download), units.text(layer.size), str(len(layer.cells))]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "none"


def _sum(size: tuple[int, int]) -> str:
    from knowngood import units

    total, unknown = size
    if not unknown:
        return units.text(total)
    return f"{units.text(total)} and {unknown} of unknown size" if total else "unknown"
