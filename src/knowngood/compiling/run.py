"""`knowngood compile`: the wheel of a cell, from the wheelhouse, a published one, or compiled; never twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood import paths
from knowngood.building.pipeline import Pipeline
from knowngood.cell import Cell
from knowngood.compiling import failure, pack, plan, published, recipe, record
from knowngood.compiling.order import Options, Order, Result, Status
from knowngood.compiling.place import Place, Planned
from knowngood.compiling.record import Record
from knowngood.errors import KnowngoodError
from knowngood.locks import wheelhouse
from knowngood.project import cxx11abi

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """Compiles for the cells of one project, on this machine's engine or on a builder."""

    line: Pipeline
    options: Options
    place: Place

    def run(self, order: Order, say: Say) -> Result:
        """The wheel in the wheelhouse, whatever that takes."""
        start = time.monotonic()
        there = self._present(order, say)
        if there and not self.options.renew:
            return there
        if there is None and (fetched := self._published(order, say)):
            return replace(fetched, seconds=time.monotonic() - start)
        planned = plan.plan(order, self.line, self.options, self.place, say)
        if there and there.record and there.record.key == planned.key:
            return there
        with paths.locked(planned.work):
            # Another run may have made it while this one waited.
            if (found := self._present(order, say)) and found.record and found.record.key == planned.key:
                return found
            made = self._compile(order, planned, say)
        return replace(made, seconds=time.monotonic() - start)

    def _present(self, order: Order, say: Say) -> Result | None:
        """The wheelhouse's wheel for the cell, if it is the one that its record is of; a damaged one is taken out."""
        wheel, _ = wheelhouse.find(
            order.cell,
            self.options.wheelhouse,
            cxx11abi=self.abi(order.cell),
            package=order.package,
            version=order.version,
        )
        if wheel is None:
            return None
        if damage := record.damage(wheel.path):
            say(f"{damage}: taking it out")
            wheel.path.unlink()
            record.place(wheel.path).unlink(missing_ok=True)
            return None
        known = record.read(wheel.path)
        return Result(
            cell=str(order.cell),
            package=order.package,
            version=order.version,
            status=Status.PRESENT,
            wheel=wheel.path,
            seconds=0.0,
            record=known,
            note="" if known else "it came without a build record and is taken as it is",
        )

    def _published(self, order: Order, say: Say) -> Result | None:
        """A published wheel that fits, in the wheelhouse."""
        if order.sdist:
            return None
        listed = published.listed(self.options.wheels) if self.options.wheels else []
        found = published.find(order.cell, order.package, order.version, listed, cxx11abi=self.abi(order.cell))
        if found is None:
            return None
        say(f"fetching {found.file}")
        wheel, made = published.fetch(found, order.cell, self.options.wheelhouse)
        return Result(
            cell=str(order.cell),
            package=order.package,
            version=order.version,
            status=Status.FETCHED,
            wheel=wheel,
            seconds=0.0,
            record=made,
        )

    @staticmethod
    def abi(cell: Cell) -> bool:
        """The C++ ABI of the cell's torch."""
        return cxx11abi(cell.torch)

    def _compile(self, order: Order, planned: Planned, say: Say) -> Result:
        for note in planned.notes:
            say(note)
        say(f"compiling {order.package} {order.version} for {planned.inputs['architectures']}, {planned.jobs} jobs")
        ended = self.place.compile(planned, say)
        if not ended.result.get("ok"):
            raise failure.failure(ended, self.options.memory_each)
        unpacked = ended.folder / "unpacked"
        found, told = published.architectures(unpacked), list(planned.inputs["architectures"])
        if found and set(found) != set(told):
            raise KnowngoodError(
                f"{order.package} {order.version} was told to compile for {told} and has code for {found} "
                f"(log: {ended.log})"
            )
        built = str(ended.result["wheel"])
        plain = recipe.recipe(order.package).plain
        wheel = pack.pack(unpacked, built, planned.local, self.options.wheelhouse, plain=plain)
        attempts = [record.attempt(path) for path in sorted(ended.folder.glob("attempt-*.json"), key=_number)]
        seen = {key: value for key, value in ended.result.items() if key not in ("ok", "wheel")}
        made = Record(
            wheel=wheel.name,
            sha256=record.sha256(wheel),
            size=wheel.stat().st_size,
            key=planned.key,
            inputs=planned.inputs,
            made={
                **seen,
                "place": self.place.name,
                "code": found,
                "jobs": planned.jobs,
                "attempts": attempts,
                "seconds": round(sum(item["seconds"] for item in attempts), 1),
            },
        )
        record.write(made, wheel)
        for path in (unpacked, ended.folder / "out"):
            shutil.rmtree(path, ignore_errors=True)
        return Result(
            cell=str(order.cell),
            package=order.package,
            version=order.version,
            status=Status.COMPILED,
            wheel=wheel,
            seconds=0.0,
            record=made,
            note="; ".join(planned.notes),
        )


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
