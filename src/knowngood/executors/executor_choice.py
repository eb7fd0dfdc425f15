"""Finds the executor with the name that `--on` gives, as fleet.yaml describes it."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import UsageError
from knowngood.core.notify import Notify
from knowngood.doctor import probe_gpus
from knowngood.engine import container_engine
from knowngood.executors import fleet_config
from knowngood.executors.fleet_config import ExecutorSection
from knowngood.executors.job import Executor
from knowngood.executors.job_run import state_folder
from knowngood.executors.kubernetes_executor import KubernetesExecutor
from knowngood.executors.local_capacity import LocalMachine
from knowngood.executors.local_executor import LocalExecutor
from knowngood.executors.local_workers import ContainerWorker, LocalWorker, ProcessWorker
from knowngood.executors.slurm_executor import SlurmExecutor

if TYPE_CHECKING:
    from knowngood.project.checkout import Project

FLEET_VARIABLE = "KNOWNGOOD_FLEET"
"""The environment variable with the path of fleet.yaml."""


def find_executor(name: str, project: Project, notify: Notify) -> tuple[Executor, ExecutorSection]:
    """Return the executor with a name, and its section of fleet.yaml.

    Raises `UsageError` when there is none with this name, `InputError` when the file has defects.
    """
    configured = os.environ.get(FLEET_VARIABLE)
    path = project.root / (configured or fleet_config.FLEET_FILE)
    sections: dict[str, ExecutorSection] = {}
    if path.exists() or configured:
        try:
            sections = fleet_config.parse_fleet(read_data_text(path, path.name), path.name)
        except FileNotFoundError:
            raise UsageError(f"{FLEET_VARIABLE} names {path}, and there is no such file") from None
    section = fleet_config.choose_section(sections, name, path.name)
    if isinstance(section, fleet_config.LocalSection):
        return _local_executor(name, notify), section
    if isinstance(section, fleet_config.SlurmSection):
        return SlurmExecutor(name, section), section
    return KubernetesExecutor(name, section), section


def _local_executor(name: str, notify: Notify) -> LocalExecutor:
    folder = state_folder(name) / "jobs"

    def container_worker() -> LocalWorker:
        return ContainerWorker(container_engine.ensure_engine(notify=notify, builds=False), folder)

    return LocalExecutor(
        name,
        folder,
        machine=read_local_machine,
        images=container_worker,
        environments=lambda: ProcessWorker(folder),
    )


def read_local_machine() -> LocalMachine:
    """Return the resources of this machine; its GPUs come from NVML."""
    return LocalMachine(
        name=platform.node(),
        cpus=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus={str(gpu.index): gpu.sm for gpu in probe_gpus.read_nvidia_state().gpus},
    )
