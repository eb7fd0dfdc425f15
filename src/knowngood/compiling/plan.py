"""All that a compile is, decided before the compiler runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowngood import locking, wheelhouse
from knowngood.compiling import container, environment, inside, recipe, record, source, toolkit
from knowngood.compiling.order import Options, Order
from knowngood.errors import MissingError
from knowngood.paths import cache_dir
from knowngood.pipeline import Pipeline
from knowngood.project import cxx11abi

_FORMAT = 1
"""Counts up when what is made of the same inputs changes."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """All that is known before the compiler runs."""

    job: container.Job
    sdist: source.Sdist
    inputs: Mapping[str, Any]
    local: str
    jobs: int
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of everything that shapes the wheel."""
        return record.key(self.inputs)


def plan(order: Order, line: Pipeline, options: Options, say: Say) -> Planned:
    """Sdist, environment, toolkit and tools at hand, and what follows from them."""
    cell, matrix = order.cell, line.project.matrix
    say("looking at the sdist")
    sdist = order.sdist or source.from_registry(order.package, order.version)
    target = recipe.target(order.package, order.version, sdist.setup(), cell.gpu)
    free = _available()
    jobs = recipe.jobs(os.cpu_count() or 1, free, options.memory_each, options.jobs)
    builder, locked = environment.locked(cell, line, say)
    request = locking.request(matrix.entry(cell), matrix)
    pins = [(item.name, item.version) for item in locked.distributions]
    cuda = toolkit.toolkit(cell, request, pins, say)
    toolkit.knows(cuda, target.codes)
    needed = recipe.recipe(order.package)
    tools = toolkit.builders([*recipe.TOOLS, *needed.requires], request, say)
    image_plan = builder.plan(locked, say)
    image = builder.image(image_plan, locked, say)
    env = dict(needed.env) | dict(target.env)
    local = recipe.local_version(cell, target.codes, cxx11abi=cxx11abi(cell.torch))
    # What shapes the objects names their folder; what is done to the wheel afterwards only the wheel's key.
    inputs: dict[str, Any] = {
        "format": _FORMAT,
        "package": order.package,
        "version": order.version,
        "sdist": {"file": sdist.file, "sha256": sdist.sha256},
        "architectures": list(target.codes),
        "env": env,
        "base": image_plan.contexts["base"].rpartition("@")[2],
        "python": cell.python,
        "torch": environment.headers(locked),
        "toolkit": list(cuda.contents),
        "tools": tools.document(),
    }
    folder = record.key(inputs)
    inputs |= {"local": local, "script": record.sha256(Path(inside.__file__))}
    if needed.plain:
        inputs["plain"] = True
    job = container.Job(
        name=f"knowngood-compile-{folder[:16]}",
        image=image.tag,
        work=cache_dir() / "compile" / folder[:32],
        toolkit=cuda.folder,
        tools=tools.folder,
        env=container.environment(cuda.home, jobs, env),
        memory=free,
        user=f"{os.getuid()}:{os.getgid()}",
    )
    notes = tuple(filter(None, (target.note, cuda.note)))
    return Planned(job=job, sdist=sdist, inputs=inputs, local=local, jobs=jobs, notes=notes)


def commands(order: Order, line: Pipeline, options: Options) -> list[str]:
    """What `--dry-run` prints; the sdist is read, since it says what its setup takes."""
    cell = order.cell
    wheel, _ = wheelhouse.find(
        cell, options.wheelhouse, cxx11abi=cxx11abi(cell.torch), package=order.package, version=order.version
    )
    if wheel and not options.renew:
        return [f"# {cell}: {order.package} {order.version} is there: {wheel.path}"]
    sdist = order.sdist or source.from_registry(order.package, order.version)
    target = recipe.target(order.package, order.version, sdist.setup(), cell.gpu)
    free = _available()
    jobs = recipe.jobs(os.cpu_count() or 1, free, options.memory_each, options.jobs)
    env = dict(recipe.recipe(order.package).env) | dict(target.env)
    image = environment.nearest(cell, line.project.matrix)
    job = container.Job(
        name="knowngood-compile-$KEY",
        image=f"knowngood:{image}",
        work=Path("$KNOWNGOOD_CACHE/compile/$KEY"),
        toolkit=Path("$TOOLKIT"),
        tools=Path("$TOOLS"),
        env=container.environment(f"nvidia/cu{cell.cuda.split('.')[0]}", jobs, env),
        memory=free,
        user=f"{os.getuid()}:{os.getgid()}",
    )
    notes = [f"# {target.note}"] if target.note else []
    made = [f"knowngood build {image}", shlex.join(job.argv(line.engine.docker, 1))]
    return [f"# {cell}: {order.package} {order.version}", *notes, *made]


def _available() -> int:
    """Bytes of memory that are free for a compile."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MissingError("this machine does not say how much memory is free")
