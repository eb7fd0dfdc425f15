"""What the doctor says before `run` starts a program: the lines about this machine and the cell that matter.

The extension `knowngood.examine_run`. An edge: it reads the drivers' facts.
"""

from __future__ import annotations

from knowngood.core.cell import Cell
from knowngood.core.hosts import detect_host_architecture
from knowngood.engine.probe_gpus import NvidiaState
from knowngood_diagnose.doctor.doctor_line import NOT_APPLICABLE, OK, DoctorLine
from knowngood_diagnose.doctor.examination import ExaminationContext, examine_image, load_driver_minimums
from knowngood_diagnose.doctor.judge_host import choose_host
from knowngood_diagnose.doctor.probe_image import describe_cell_by_id
from knowngood_diagnose.doctor.system_state import SystemState
from knowngood_facts.compat import knowledge

_ABOUT_GPUS = ("gpu", "driver")
"""The lines that are printed even when they are fine: a person should see which card and which driver are used."""


def examine_before_run(nvidia: NvidiaState, cell: Cell) -> list[DoctorLine]:
    """Return the lines that matter about the GPUs of this machine, their driver, and the cell on them.

    What the engine can give a container is not among them: the engine says it itself.
    """
    host = choose_host(detect_host_architecture())
    context = ExaminationContext(known=knowledge.load_knowledge(), drivers=load_driver_minimums(), host=host)
    lines = examine_image(describe_cell_by_id(cell), SystemState(nvidia=nvidia), context)
    return [
        line for line in lines if line.verdict not in (OK, NOT_APPLICABLE) or line.id.partition(":")[0] in _ABOUT_GPUS
    ]
