"""All that a compile is, decided before the compiler runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from knowngood.building import dryrun
from knowngood.building.pipeline import Pipeline
from knowngood.compiling import environment, inside, place, recipe, record, source, toolkit
from knowngood.compiling.order import Options, Order
from knowngood.compiling.place import Host, Place, Planned
from knowngood.locks import locking, wheelhouse
from knowngood.paths import cache_dir
from knowngood.project import cxx11abi

_FORMAT = 1
"""Counts up when what is made of the same inputs changes."""

Say = Callable[[str], None]


def plan(order: Order, line: Pipeline, options: Options, where: Place, say: Say) -> Planned:
    """Sdist, environment, toolkit and tools at hand, and what follows from them."""
    cell, matrix = order.cell, line.project.matrix
    say("looking at the sdist")
    sdist = order.sdist or source.from_registry(order.package, order.version)
    target = recipe.target(order.package, order.version, sdist.setup(), cell.gpu)
    power = where.power(cell, say)
    jobs = recipe.jobs(power.processors, power.memory, options.memory_each, options.jobs)
    builder, locked = environment.locked(cell, line, say)
    request = locking.request(matrix.entry(cell), matrix)
    pins = [(item.name, item.version) for item in locked.distributions]
    cuda = toolkit.toolkit(cell, request, pins, say)
    toolkit.knows(cuda, target.codes)
    needed = recipe.recipe(order.package)
    tools = toolkit.builders([*recipe.TOOLS, *needed.requires], request, say)
    host = Host(line=builder, locked=locked, plan=builder.plan(locked, say))
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
        "base": host.plan.contexts["base"].rpartition("@")[2],
        "python": cell.python,
        "torch": environment.headers(locked),
        "toolkit": list(cuda.contents),
        "tools": tools.document(),
    }
    folder = record.key(inputs)
    inputs |= {"local": local, "script": record.sha256(Path(inside.__file__))}
    if needed.plain:
        inputs["plain"] = True
    return Planned(
        name=f"knowngood-compile-{folder[:16]}",
        host=host,
        sdist=sdist,
        work=cache_dir() / "compile" / folder[:32],
        toolkit=cuda.folder,
        tools=tools.folder,
        env=place.environment(cuda.home, jobs, env),
        power=power,
        jobs=jobs,
        inputs=inputs,
        local=local,
        notes=tuple(filter(None, (target.note, cuda.note))),
    )


def commands(order: Order, line: Pipeline, options: Options, where: Place) -> list[str]:
    """What `--dry-run` prints; the sdist is read, since it says what its setup takes."""
    cell = order.cell
    wheel, _ = wheelhouse.find(
        cell, options.wheelhouse, cxx11abi=cxx11abi(cell.torch), package=order.package, version=order.version
    )
    if wheel and not options.renew:
        return [f"# {cell}: {order.package} {order.version} is there: {wheel.path}"]
    sdist = order.sdist or source.from_registry(order.package, order.version)
    target = recipe.target(order.package, order.version, sdist.setup(), cell.gpu)
    power = where.power(cell, lambda _: None)
    jobs = recipe.jobs(power.processors, power.memory, options.memory_each, options.jobs)
    env = dict(recipe.recipe(order.package).env) | dict(target.env)
    image = environment.nearest(cell, line.project.matrix)
    said = [f"# {cell}: {order.package} {order.version}", *([f"# {target.note}"] if target.note else [])]
    locked = line.project.tree.load(image)
    if locked is None:
        return [*said, f"# in the image of {image}, which is not locked: what is run is not known before it is"]
    planned = Planned(
        name="knowngood-compile-$KEY",
        host=Host(line=line, locked=locked, plan=dryrun.plan(line, image)),
        sdist=sdist,
        work=Path("$KNOWNGOOD_CACHE/compile/$KEY"),
        toolkit=Path("$TOOLKIT"),
        tools=Path("$TOOLS"),
        env=place.environment(f"nvidia/cu{cell.cuda.split('.')[0]}", jobs, env),
        power=power,
        jobs=jobs,
        inputs={},
        local="",
        notes=(),
    )
    return [*said, *where.command(planned)]
