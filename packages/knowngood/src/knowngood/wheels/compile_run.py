"""`knowngood compile`: take a cell's wheel from the wheelhouse or where its recorded bytes lie, or compile it once."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.core import extensions, local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.images.pipeline import Pipeline
from knowngood.lock import wheelhouse
from knowngood.lock.wheelhouse import WheelRecord
from knowngood.project.core_facts import load_torch_cxx11abi
from knowngood.wheels import compile_container, compile_plan, compile_request, wheel_packing
from knowngood.wheels.compile_request import (
    CompileOptions,
    CompileOutcome,
    CompilePlan,
    WheelRequest,
    WheelResult,
    WheelStatus,
)


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """Provides wheels for the cells of one project, compiling on this machine's engine."""

    line: Pipeline
    options: CompileOptions
    supply: Callable[[WheelRequest, Notify], Path | None]
    """Fetches a wheel whose bytes are recorded into the wheelhouse; `None` when no place has it."""

    def run(self, order: WheelRequest, notify: Notify) -> WheelResult:
        """Return the wheel of a request, after putting it into the wheelhouse if it is not there."""
        start = time.monotonic()
        result = self._provide(order, notify)
        wheel_packing.require_runnable_code(
            result.wheel.name, wheel_packing.read_wheel_code(result.wheel), order.cell.gpu
        )
        if result.record and "sdist" in result.record.inputs:
            matrix, tree = self.line.project.matrix, self.line.project.tree
            if (order.package, order.version) in matrix.compiled_packages(order.cell):
                wheelhouse.record_wheel(tree, result.record)
        return result if result.status is WheelStatus.PRESENT else replace(result, seconds=time.monotonic() - start)

    def _provide(self, order: WheelRequest, notify: Notify) -> WheelResult:
        present = self._present(order, notify)
        if present is None and not order.sdist and self.supply(order, notify):
            present = self._present(order, notify)
            present = present and replace(present, status=WheelStatus.FETCHED)
        if present and not self.options.renew:
            return present
        planned = compile_plan.plan_compile(order, self.line, self.options, notify)
        if present and present.record and present.record.key == planned.key:
            return present
        with local_files.lock_folder(planned.work):
            # Another run may have made it while this one waited.
            if (present := self._present(order, notify)) and present.record and present.record.key == planned.key:
                return present
            return self._compile(order, planned, notify)

    def _present(self, order: WheelRequest, notify: Notify) -> WheelResult | None:
        """Return the wheel that is in the wheelhouse, or `None`; a damaged one is removed."""
        wheel, _ = wheelhouse.find_wheel(
            order.cell,
            self.options.wheelhouse,
            cxx11abi=self.abi(order.cell),
            package=order.package,
            version=order.version,
        )
        if wheel is None:
            return None
        if damage := wheelhouse.find_wheel_damage(wheel.path):
            notify(f"{damage}: removing it")
            wheel.path.unlink()
            wheelhouse.wheel_record_path(wheel.path).unlink(missing_ok=True)
            return None
        record = wheelhouse.read_wheel_record(wheel.path)
        return WheelResult(
            cell=str(order.cell),
            package=order.package,
            version=order.version,
            status=WheelStatus.PRESENT,
            wheel=wheel.path,
            seconds=0.0,
            record=record,
            note="" if record else "it has no build record and is used as it is",
        )

    @staticmethod
    def abi(cell: Cell) -> bool:
        """Return whether the cell's torch has the C++11 ABI."""
        return load_torch_cxx11abi(cell.torch)

    def _compile(self, order: WheelRequest, planned: CompilePlan, notify: Notify) -> WheelResult:
        for note in planned.notes:
            notify(note)
        minutes = compile_request.find_recipe(order.package).estimate_minutes(planned.jobs)
        time_note = f", about {minutes} minutes" if minutes else ""
        architectures = planned.inputs["architectures"]
        notify(f"compiling {order.package} {order.version} for {architectures}, {planned.jobs} jobs{time_note}")
        outcome = compile_container.compile_in_container(planned, self.line.engine, notify)
        if not outcome.result.get("ok"):
            raise compile_error(outcome, self.options.memory_each)
        unpacked = outcome.folder / "unpacked"
        codes, expected = (
            wheel_packing.list_architectures(wheel_packing.read_folder_code(unpacked)),
            list(planned.inputs["architectures"]),
        )
        if codes and set(codes) != set(expected):
            raise KnowngoodError(
                f"{order.package} {order.version} was to be compiled for {expected} and has code for {codes} "
                f"(log: {outcome.log})"
            )
        built = str(outcome.result["wheel"])
        plain = compile_request.find_recipe(order.package).plain
        wheel = wheel_packing.pack_wheel(unpacked, built, planned.local, self.options.wheelhouse, plain=plain)
        attempts = [
            wheelhouse.read_compile_attempt(path)
            for path in sorted(outcome.folder.glob("attempt-*.json"), key=_attempt_number)
        ]
        versions = {key: value for key, value in outcome.result.items() if key not in ("ok", "wheel")}
        record = WheelRecord(
            wheel=wheel.name,
            sha256=wheelhouse.file_sha256(wheel),
            size=wheel.stat().st_size,
            key=planned.key,
            inputs=planned.inputs,
            made={
                **versions,
                "place": f"container, engine {self.line.engine.version}",
                "code": codes,
                "jobs": planned.jobs,
                "attempts": attempts,
                "seconds": round(sum(item["seconds"] for item in attempts), 1),
            },
        )
        wheelhouse.write_wheel_record(record, wheel)
        for path in (unpacked, outcome.folder / "out"):
            shutil.rmtree(path, ignore_errors=True)
        return WheelResult(
            cell=str(order.cell),
            package=order.package,
            version=order.version,
            status=WheelStatus.COMPILED,
            wheel=wheel,
            seconds=0.0,
            record=record,
            note="; ".join(planned.notes),
        )


def _attempt_number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


_KILLED_CODES = (137, 143)  # by SIGKILL, SIGTERM


def compile_error(outcome: CompileOutcome, each: int) -> KnowngoodError:
    """Return the error for a compile that ended without a wheel: memory, or its last errors with known failures."""
    log = outcome.log
    if outcome.out_of_memory or outcome.result.get("killed_for_memory"):
        return MissingError(
            f"the compile was killed because memory ran out ({each / 1e9:.1f} GB for each job); run it again with "
            f"fewer --jobs or more --memory-per-job, finished objects are kept (log: {log})"
        )
    if outcome.code in _KILLED_CODES and not outcome.result:
        return MissingError(
            f"the compile was stopped from outside; run it again, finished objects are kept (log: {log})"
        )
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(?i)\b(error|fatal)\b\s*:|\berror\b.*:", line)]
    last = "\n  ".join((errors or lines)[-6:]) or "it printed nothing"
    return KnowngoodError(f"the compile failed (log: {log}):\n  {last}{_known_failures(log)}")


def _known_failures(log: Path) -> str:
    """Return further lines with the known failures in the log; none where nothing that knows them is installed."""
    explain = extensions.load_extension(extensions.EXPLAIN_LOG)
    return str(explain(log)) if explain else ""
