"""What `--dry-run` prints: the exact commands, as a shell would take them, without doing any."""

from __future__ import annotations

import shlex
from pathlib import Path

from knowngood import host, render, smoke
from knowngood.building import build
from knowngood.building.pipeline import Pipeline, log
from knowngood.cell import Cell
from knowngood.engines import embedded
from knowngood.engines import engine as engines
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError, MissingError
from knowngood.locks import locking, resolve
from knowngood.project import cxx11abi
from knowngood.system import base, bases

FOLDER = Path("$KNOWNGOOD_TMP")
"""Stands for the folder of a run."""


def engine() -> Engine:
    """The engine that would be used; the embedded one need not be running."""
    system = engines.find_system()
    if isinstance(system, Engine):
        return system
    if running := engines.find_embedded():
        return running
    if reason := embedded.unsuitable():
        raise MissingError(f"{system.reason}, and {reason}")
    at = embedded.places()
    return Engine(
        host=f"unix://{at.socket}",
        docker=(str(at.docker), "--host", f"unix://{at.socket}"),
        version="",
        buildkit="",
        containerd_store=True,
        embedded=True,
        network="host",
    )


def commands(line: Pipeline, cell: Cell) -> list[str]:
    """The commands for one cell, comments between them."""
    project, matrix = line.project, line.project.matrix
    out = [] if line.engine.version else ["knowngood engine up"]
    if lacks := locking.lacking(cell, matrix, line.options.wheelhouse, cxx11abi=cxx11abi):
        out.append(f"# {lacks.said}")
        cell = cell.without_flash_attn()
        if lacks.package != "flash-attn" or str(cell) not in matrix.entries:
            return out
    locked = project.tree.load(cell)
    entry = matrix.entry(cell)
    house = line.options.wheelhouse if matrix.compiled(cell) else None
    if locked is None or locked.inputs != locking.inputs(entry, matrix):
        out += [
            f"# {cell}: the lock is stale; its layers are not known before it is made",
            shlex.join(resolve.command(locking.request(entry, matrix), FOLDER, house)),
            f"knowngood lock {cell}",
        ]
        return out
    return [*out, f"# {cell}", *_build(line, cell), *_smoke(line, cell)]


def _build(line: Pipeline, cell: Cell) -> list[str]:
    return [shlex.join(build.command(plan(line, cell), line.engine, log(cell, "build").with_suffix(".json")))]


def plan(line: Pipeline, cell: Cell) -> build.Plan:
    """What makes the image of a cell that is locked; nothing is fetched or written for it."""
    project = line.project
    locked = project.tree.load(cell)
    assert locked is not None  # noqa: S101
    context = _base_context(line, locked.base)
    text = render.dockerfile(locked, project.templates)
    contexts = {"base": context, "tools": str(build.tools()), "smoke": str(project.suite)}
    if any(item.made_here for item in locked.distributions):
        contexts["wheelhouse"] = str(line.options.wheelhouse)
    settings = host.settings()
    secrets = dict(settings.files) | ({"env": FOLDER / "env"} if settings.env else {})
    return build.Plan(
        tag=f"knowngood:{cell}",
        dockerfile=project.tree.cell_folder(cell) / "Dockerfile",
        context=project.tree.folder,
        contexts=contexts,
        inputs=line.shape(text, locked, context).inputs,
        secrets=secrets,
    )


def _base_context(line: Pipeline, name: str) -> str:
    wanted = line.project.matrix.bases[name]
    if wanted.image:
        return base.context(wanted.image)
    path = bases.lock_path(line.project, name)
    if not path.exists():
        raise KnowngoodError(f"base {name} has no {path}; run `knowngood lock --base {name}`")
    lock = base.PackagesLock.parse(path.read_text(), file=str(path))
    return f"oci-layout://{base.layout(lock)}@{lock.digest}"


def _smoke(line: Pipeline, cell: Cell) -> list[str]:
    if not line.options.prove:
        return []
    argv = [*line.engine.docker, "run", "--rm", *smoke.run_options(line.options.suite), f"knowngood:{cell}"]
    return [shlex.join([*argv, *smoke.command(cell, line.options.suite)])]
