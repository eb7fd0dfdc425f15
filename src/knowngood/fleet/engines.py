"""The executor that a section of fleet.yaml names. Edge."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from knowngood.errors import InputError, Problem
from knowngood.fleet import config, state
from knowngood.fleet.executor import Executor
from knowngood.fleet.local_room import Machine

if TYPE_CHECKING:
    from knowngood.fleet.local import Work
    from knowngood.project import Project

VARIABLE = "KNOWNGOOD_FLEET"


@dataclass(frozen=True, kw_only=True)
class Named:
    """An executor, and how it is to be used."""

    executor: Executor
    section: config.Executor
    longest: float
    """Seconds between two polls at most: less where asking costs nothing."""


def find(name: str, here: Project, say: Callable[[str], None]) -> Named:
    """The executor of a name; `UsageError` where there is none, `InputError` for a file with defects."""
    path = here.root / config.FILE
    if given := os.environ.get(VARIABLE):
        path = path.parent / given
    sections: dict[str, config.Executor] = {}
    if path.exists() or given:
        try:
            sections = config.parse(path.read_text(encoding="utf-8-sig"), path.name)
        except UnicodeDecodeError:
            raise InputError([Problem(file=path.name, line=1, column=1, text="the file is not UTF-8")]) from None
    section = config.choose(sections, name, path.name)
    if isinstance(section, config.Local):
        return Named(executor=_local(name, here, say), section=section, longest=0.5)
    if isinstance(section, config.Slurm):
        from knowngood.fleet.slurm import Slurm

        return Named(executor=Slurm(name, section, here.suite), section=section, longest=0.5)
    return Named(executor=_kubernetes(name, section), section=section, longest=5)


def _local(name: str, here: Project, say: Callable[[str], None]) -> Executor:
    from knowngood.fleet.local import Local

    folder = state.folder(name) / "jobs"

    def images() -> Work:
        from knowngood.engines import engine
        from knowngood.fleet.local_containers import Containers

        return Containers(engine.ensure(say=say, builds=False), folder)

    def environments() -> Work:
        from knowngood.fleet.local_processes import Processes

        return Processes(here.suite, folder)

    return Local(name, folder, machine, images, environments)


def machine() -> Machine:
    """The one at hand, its GPUs by NVML."""
    from knowngood.doctor import nvml

    return Machine(
        name=platform.node(),
        cpus=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus={str(gpu.index): gpu.sm for gpu in nvml.look().gpus},
    )


def _kubernetes(name: str, section: config.Kubernetes) -> Executor:
    from knowngood.fleet.kubernetes import Kubernetes
    from knowngood.fleet.kubernetes_manifest import Settings

    known = {field.name for field in fields(Settings)}
    given = {key: getattr(section, key) for key in type(section).model_fields if key in known}
    return Kubernetes(Settings(**{**given, "name": name}))
