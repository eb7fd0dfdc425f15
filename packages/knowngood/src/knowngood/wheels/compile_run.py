"""`knowngood compile`: take a cell's wheel from the wheelhouse or where its recorded bytes lie, or compile it once.

A plan names the cell in whose image the compile runs, the source, the toolkit, and the key that follows from them.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from knowngood.core import extensions, local_files
from knowngood.core.cell import NO_FRAMEWORK, Cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.local_files import cache_folder
from knowngood.core.matrix import Matrix
from knowngood.core.notify import Notify
from knowngood.images.pipeline import Pipeline
from knowngood.lock import cell_locking, wheelhouse
from knowngood.lock.lock_tree import CellLock, LockTree
from knowngood.lock.wheelhouse import WheelRecord
from knowngood.project.checkout import Project
from knowngood.project.core_facts import load_torch_cxx11abi, load_torch_cxx_minimum
from knowngood.wheels import compile_container, compile_inside, compile_request, cuda_toolkit, wheel_packing
from knowngood.wheels.compile_request import (
    CompileHost,
    CompileOptions,
    CompileOutcome,
    CompilePlan,
    WheelRequest,
    WheelResult,
    WheelStatus,
)

_FORMAT = 1
"""Raised by one when the same inputs give another wheel."""


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
        if present:
            return present
        planned = plan_compile(order, self.line, self.options, notify)
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


def plan_compile(order: WheelRequest, line: Pipeline, options: CompileOptions, notify: Notify) -> CompilePlan:
    """Fetch the source, lock the host cell, install toolkit and tools, and return the plan that follows from them."""
    cell, matrix = order.cell, line.project.matrix
    notify("reading the sdist")
    sdist = order.sdist or compile_request.fetch_sdist(order.package, order.version)
    compile_request.check_cxx_standard(sdist, cell.torch, load_torch_cxx_minimum(cell.torch))
    target = compile_request.choose_target(order.package, order.version, sdist.setup(), cell.gpu)
    power = compile_container.measure_capacity()
    jobs = compile_request.choose_jobs(power.processors, power.memory, options.memory_each, options.jobs)
    builder, locked = lock_host_cell(cell, line, notify)
    request = cell_locking.resolver_request(matrix.entry(cell), matrix)
    pins = [(item.name, item.version) for item in locked.distributions]
    cuda = cuda_toolkit.install_cuda_toolkit(cell, request, pins, notify)
    cuda_toolkit.check_toolkit_codes(cuda, target.codes)
    needed = compile_request.find_recipe(order.package)
    tools = cuda_toolkit.install_build_tools([*compile_request.BUILD_REQUIREMENTS, *needed.requires], request, notify)
    host = CompileHost(line=builder, locked=locked, plan=builder.plan(locked, notify))
    env = dict(needed.env) | dict(target.env) | {"NVCC_APPEND_FLAGS": cuda.flags}
    local = compile_request.wheel_local_version(cell, target.codes, cxx11abi=load_torch_cxx11abi(cell.torch))
    # What shapes the objects names their folder. What happens to the wheel afterwards is only in the wheel's key.
    inputs: dict[str, Any] = {
        "format": _FORMAT,
        "package": order.package,
        "version": order.version,
        "sdist": {"file": sdist.file, "sha256": sdist.sha256},
        "architectures": list(target.codes),
        "env": env,
        "base": host.plan.contexts["base"].rpartition("@")[2],
        "python": cell.python,
        "torch": header_distributions(locked),
        "toolkit": list(cuda.contents),
        "tools": tools.document(),
    }
    folder = wheelhouse.wheel_key(inputs)
    inputs |= {"local": local, "script": wheelhouse.file_sha256(Path(compile_inside.__file__))}
    if needed.plain:
        inputs["plain"] = True
    return CompilePlan(
        name=f"knowngood-compile-{folder[:16]}",
        host=host,
        sdist=sdist,
        work=cache_folder() / "compile" / folder[:32],
        toolkit=cuda.folder,
        tools=tools.folder,
        env=compile_request.compile_variables(cuda.home, jobs, env),
        power=power,
        jobs=jobs,
        inputs=inputs,
        local=local,
        notes=tuple(filter(None, (target.note, cuda.note))),
    )


def nearest_plain_cell(cell: Cell, matrix: Matrix) -> Cell:
    """Return a cell without compiled wheels but with the same torch and base: itself, its twin, or another. Pure."""
    base = matrix.entry(cell).base
    twin = cell.without_flash_attn().without_framework()
    fits = [
        other.cell
        for other in matrix.entries.values()
        if other.base == base
        and (other.cell.torch, other.cell.cuda, other.cell.python) == (cell.torch, cell.cuda, cell.python)
        and other.cell.flash_attn_package != "flash-attn"
        and other.cell.framework == NO_FRAMEWORK
    ]
    return min(fits, key=lambda other: (other != cell, other != twin, str(other)), default=twin)


def lock_host_cell(cell: Cell, line: Pipeline, notify: Notify) -> tuple[Pipeline, CellLock]:
    """Return the pipeline that builds the image for a compile, and the lock of its cell.

    A cell of matrix.yaml is taken where there is one, so that no image is made for this alone; otherwise the twin is
    locked in the cache.
    """
    matrix = line.project.matrix
    near = nearest_plain_cell(cell, matrix)
    if str(near) in matrix.entries:
        host_lock, _ = line.lock(near, notify)
        return line, host_lock
    entry = matrix.entry(cell)
    project = SideProject(line.project.root)
    project.prepare(line.project)
    place = cell_locking.LockingPlace(
        matrix=matrix,
        tree=project.tree,
        wheel_folder=line.options.wheelhouse,
        cxx11abi=load_torch_cxx11abi,
        notify=notify,
    )
    result = cell_locking.lock_cell(replace(entry, cell=near, companions=(), below=None, moves=(), retired=None), place)
    return replace(line, project=project, options=replace(line.options, locked=False)), result.lock


def header_distributions(lock: CellLock) -> list[dict[str, str]]:
    """Return the distributions whose headers and libraries an extension of torch uses, by file and hash. Pure."""
    return [
        {"file": item.file, "sha256": item.sha256}
        for item in sorted(lock.distributions)
        if item.name == "torch" or item.name.startswith("nvidia-")
    ]


class SideProject(Project):
    """The project with another `docker/`, in the cache, for a cell that is not in matrix.yaml."""

    @cached_property
    def tree(self) -> LockTree:
        """Return the folder of locks that are not committed."""
        return LockTree(cache_folder() / "compile" / "aside")

    def prepare(self, project: Project) -> None:
        """Copy what the images of all cells share."""
        for part in ("recipe", "bases"):
            shutil.copytree(project.tree.folder / part, self.tree.folder / part, dirs_exist_ok=True)
