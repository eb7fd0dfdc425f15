"""Plan a compile: the cell in whose image it runs, the source, the toolkit, and the key that follows from them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from knowngood.core.cell import NO_FRAMEWORK, Cell
from knowngood.core.local_files import cache_folder
from knowngood.core.matrix import Matrix
from knowngood.core.notify import Notify
from knowngood.images.pipeline import Pipeline
from knowngood.lock import cell_locking, wheelhouse
from knowngood.lock.lock_tree import CellLock, LockTree
from knowngood.project.checkout import Project
from knowngood.project.core_facts import load_torch_cxx11abi, load_torch_cxx_minimum
from knowngood.wheels import compile_container, compile_inside, compile_request, cuda_toolkit
from knowngood.wheels.compile_request import CompileHost, CompileOptions, CompilePlan, WheelRequest

_FORMAT = 1
"""Raised by one when the same inputs give another wheel."""


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
