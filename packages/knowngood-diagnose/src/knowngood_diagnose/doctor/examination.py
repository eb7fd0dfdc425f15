"""The doctor's table about an environment or an image. An edge: it reads the facts and rules that the judges need."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.gpus import parse_capability
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture, parse_host
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood_diagnose.doctor.judge_binaries import judge_binaries
from knowngood_diagnose.doctor.judge_environment import judge_environment, judge_variables
from knowngood_diagnose.doctor.judge_host import (
    ExaminedHost,
    choose_host,
    judge_environment_host,
    judge_gpus_and_driver,
    judge_image,
)
from knowngood_diagnose.doctor.judge_machine import judge_system, judge_tools
from knowngood_diagnose.failures.diagnosis import diagnose_log
from knowngood_facts.compat import knowledge, query
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.matrix_cells import packages_of_cell
from knowngood_facts.compat.query import MACHINE
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.driver_reader import DriverFacts
from knowngood_facts.python_environment import list_installed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood_diagnose.doctor.doctor_line import DoctorLine
    from knowngood_diagnose.doctor.system_state import ImageDescription, SystemState
    from knowngood_facts.compat.knowledge import CompatKnowledge


@dataclass(frozen=True, kw_only=True)
class ExaminationContext:
    """What is known about compatibility, and what the user states about another machine (--gpu, --driver, --host)."""

    known: CompatKnowledge
    drivers: Mapping[str, str]
    """CUDA release -> the oldest driver that runs it."""
    gpus: tuple[str, ...] = ()
    """The architectures of the stated GPU."""
    driver: str | None = None
    host: ExaminedHost


def load_examination_context(
    gpu: str | None = None, driver: str | None = None, host: str | None = None
) -> ExaminationContext:
    """Read the facts, rules and GPUs; raises `UsageError` for an unknown GPU or host, or an invalid driver version."""
    stated = parse_host(host) if host else None
    known = knowledge.load_knowledge()
    arm_card = gpu if gpu and known.universe.gpus.has_arm_host(gpu) else None
    return ExaminationContext(
        known=known,
        drivers=load_driver_minimums(),
        gpus=tuple(known.universe.gpus.find_capabilities(gpu)) if gpu else (),
        driver=query.parse_axis_version("driver", driver) if driver else None,
        host=choose_host(detect_host_architecture(), stated=stated, arm_card=arm_card),
    )


def load_driver_minimums() -> dict[str, str]:
    """Return CUDA release -> the oldest driver that runs it, as NVIDIA states it."""
    facts = fact_store.load_facts("drivers", DriverFacts)
    return {cuda: release.facts.minimum for cuda, release in facts.items() if release.facts.minimum}


def examine_environment(state: SystemState, context: ExaminationContext) -> list[DoctorLine]:
    """Return the lines of the table about this machine and an environment, in their order."""
    gpus = context.gpus or state.nvidia.capabilities
    first, *rest = judge_environment(state, check_installed_packages(state, context, gpus))
    return [
        first,
        judge_environment_host(context.host),
        *judge_gpus_and_driver(state, context.gpus, context.driver, context.drivers),
        *rest,
        *judge_binaries(state, gpus, find_incidents_in_log),
        *judge_tools(state),
        *judge_system(state),
        *judge_variables(state, gpus),
    ]


def examine_image(image: ImageDescription, state: SystemState, context: ExaminationContext) -> list[DoctorLine]:
    """Return the lines of the table about an image; of `state` only the driver and its GPUs are used."""
    name = image.labels.get(LABEL_PREFIX + "cell")
    cell = parse_cell(name) if name else None
    return list(
        judge_image(
            image,
            state,
            host=context.host,
            twin=_find_twin(cell, context) if cell else None,
            stated_gpus=context.gpus,
            stated_driver=context.driver,
            minimums=context.drivers,
            answer=check_cell_packages(cell, state, context) if cell else None,
            tier=context.known.published.tier(str(cell)) if cell else None,
        )
    )


def _find_twin(cell: Cell, context: ExaminationContext) -> str | None:
    """Return the id of the same cell for the examined host; `None` when matrix.yaml has none."""
    host = context.host.architecture
    twin = cell.on_host(host) if host else None
    return str(twin) if twin in context.known.published.cells else None


def _machine_condition(host: HostArchitecture | None) -> dict[str, str]:
    """Return the condition of use that a host is; none for x86-64, of which the facts are."""
    return {} if host in (None, DEFAULT_HOST) else {MACHINE: host.machine}


def check_cell_packages(cell: Cell, state: SystemState, context: ExaminationContext) -> CheckAnswer:
    """Return what `knowngood check` answers about the packages of a cell on this machine."""
    pins = packages_of_cell(cell) | dict([cell.framework_pin] if cell.framework_pin else [])
    driver = context.driver or state.nvidia.driver
    gpus = context.gpus or state.nvidia.capabilities
    request = query.Query(
        gpu=next((gpu for gpu in gpus if gpu in context.known.universe.gpus.sections), None),
        axes={"python": cell.python} | ({"driver": driver} if driver else {}),
        conditions=_machine_condition(cell.host),
        packages=tuple(query.pinned_package(name, version) for name, version in pins.items() if version != "none"),
    )
    return check_query(context.known.for_query(request), request, context.known.published)


def check_installed_packages(
    state: SystemState, context: ExaminationContext, gpus: tuple[str, ...]
) -> CheckAnswer | None:
    """Return what `knowngood check` answers about the installed versions; `None` when nothing is installed.

    Of several kinds of GPU the oldest counts, because most rules are about that.
    """
    packages = list_installed_packages(state.packages).packages
    if not packages:
        return None
    known = {gpu for gpu in gpus if gpu in context.known.universe.gpus.sections}
    axes = {
        "python": state.python.version if state.python else "",
        "glibc": state.machine.glibc or "",
        "driver": context.driver or state.nvidia.driver or "",
    }
    request = query.Query(
        gpu=min(known, key=parse_capability, default=None),
        axes={name: value for name, value in axes.items() if value},
        conditions=_machine_condition(context.host.architecture),
        packages=tuple(packages),
    )
    return check_query(context.known.for_query(request), request, context.known.published)


def has_subject(state: SystemState) -> bool:
    """Return whether there was anything to examine: a GPU, torch, or a binary with GPU code."""
    return bool(state.nvidia.gpus or state.torch or any(item.code for item in state.binaries))


def find_incidents_in_log(log: str) -> tuple[str, ...]:
    """Return the ids of the incidents that `knowngood diagnose` recognises in a log, best match first."""
    diagnosis = diagnose_log(io.BytesIO(log.encode()), load_incidents())
    return tuple(match.incident.id for match in diagnosis.matches)
