"""`knowngood verify`: a cell built again from nothing, and compared with its committed record, layer by layer."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import paths
from knowngood.building import build, imagediff, ownership, records
from knowngood.building.pipeline import Pipeline, log
from knowngood.engines import embedded, imagestore, sdk
from knowngood.engines import engine as engines
from knowngood.errors import KnowngoodError, MissingError

if TYPE_CHECKING:
    from knowngood.building.record import Record
    from knowngood.cell import Cell
    from knowngood.engines.engine import Engine

Say = Callable[[str], None]


class Outcome(StrEnum):
    """How a comparison came out."""

    SAME = "same"
    DIFFERENT = "different"
    STALE = "stale"
    """What shapes the image has changed since it was recorded."""
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A layer (or `config`, `manifest`) that came out in other bytes."""

    name: str
    files: tuple[str, ...]
    """A line each; one that says why, where the recorded bytes are not at hand."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one cell."""

    cell: str
    outcome: Outcome
    recorded: str | None = None
    """The digest that the record says."""
    rebuilt: str | None = None
    """The digest that came out."""
    differences: tuple[Difference, ...] = ()
    note: str = ""
    seconds: float = 0


def verify(line: Pipeline, cell: Cell, say: Say, *, cold: bool) -> Verdict:
    """Build the cell again without any cache and compare; `cold` in an engine and a cache folder of their own."""
    began = time.monotonic()
    project, written = line.project, log(cell, "verify")
    locked, cell, note = line.lock(cell, say)
    recorded = project.tree.load_record(cell)
    if recorded is None:
        return Verdict(cell=str(cell), outcome=Outcome.UNRECORDED, note=note)
    with contextlib.ExitStack() as stack:
        again = stack.enter_context(_cold(line, say)) if cold else line
        stack.enter_context(ownership.held(f"verify-{cell}", wait=line.options.wait, say=say))
        plan = again.plan(locked, say)
        shape = again.shape(plan.dockerfile.read_text(encoding="utf-8"), locked, plan.contexts["base"])
        if changed := shape.changes(recorded.shape):
            said = f"changed since it was recorded: {', '.join(changed)}"
            note = "; ".join(filter(None, [note, said]))
            return Verdict(cell=str(cell), outcome=Outcome.STALE, recorded=recorded.manifest.digest, note=note)
        secrets = stack.enter_context(build.host_secrets())
        plan = replace(plan, tag=f"knowngood-verify:{cell}", secrets=secrets, cached=False)
        image = build.build(plan, again.engine, log=written, say=say)
        stack.callback(_remove, again.engine, image.tag)
        made = records.take(again.engine, image, locked, shape)
        sides = (_Side(engine=line.engine, tag=f"knowngood:{cell}"), _Side(engine=again.engine, tag=image.tag))
        found = tuple(_compare(recorded, made, *sides, say))
    return Verdict(
        cell=str(cell),
        outcome=Outcome.DIFFERENT if found else Outcome.SAME,
        recorded=recorded.manifest.digest,
        rebuilt=made.manifest.digest,
        differences=found,
        note=note,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, kw_only=True)
class _Side:
    """An engine, and the image in it that has the bytes of one side, if any has."""

    engine: Engine
    tag: str

    def blob(self, digest: str, scratch: Path) -> Path | None:
        with contextlib.suppress(KnowngoodError):  # the engine has no such image
            return imagestore.blob(self.engine, self.tag, digest, scratch)
        return None


def _compare(recorded: Record, made: Record, had: _Side, has: _Side, say: Say) -> Iterator[Difference]:
    """Each layer that differs with its files."""
    old = {layer.name: layer.digest for layer in recorded.layers} | {"config": recorded.config.digest}
    new = {layer.name: layer.digest for layer in made.layers} | {"config": made.config.digest}
    for name in recorded.differences(made):
        say(f"comparing {name}")
        if name not in old or name not in new:
            yield Difference(name=name, files=("it is in one of the two only",))
            continue
        with paths.scratch() as scratch:
            before, after = had.blob(old[name], scratch), has.blob(new[name], scratch)
            if before is None or after is None:
                said = f"{old[name]} -> {new[name]}; the recorded bytes are not in the engine, so no file can be named"
                yield Difference(name=name, files=(said,))
            elif name == "config":
                yield Difference(
                    name=name, files=tuple(imagediff.config_differences(before.read_bytes(), after.read_bytes()))
                )
            else:
                lines = imagediff.differences(imagediff.members(before), imagediff.members(after))
                yield Difference(name=name, files=tuple(lines))


@contextlib.contextmanager
def _cold(line: Pipeline, say: Say) -> Iterator[Pipeline]:
    """The same line with an engine, a data root and a cache that were empty; they go afterwards."""
    folder = paths.cache_dir().with_name(paths.cache_dir().name + "-cold")
    with ownership.held("cold", wait=line.options.wait, say=say), paths.other_cache(folder):
        embedded.down(say)  # what a killed run left
        shutil.rmtree(folder, ignore_errors=True)
        try:
            embedded.up(say)
            engine = engines.find_embedded()
            if engine is None:
                raise MissingError(f"the engine of {folder} came up and stopped answering: see {embedded.places().log}")
            yield replace(line, engine=engine)
        finally:
            embedded.down(say)
            shutil.rmtree(folder, ignore_errors=True)


def _remove(engine: Engine, tag: str) -> None:
    with contextlib.suppress(KnowngoodError), sdk.client(engine) as client:
        client.images.remove(tag, force=True)
