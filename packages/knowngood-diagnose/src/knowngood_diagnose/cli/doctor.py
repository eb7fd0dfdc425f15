"""`knowngood doctor`: examine this machine, an environment or an image, in one table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable

from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import UsageError
from knowngood.core.formatting import format_table
from knowngood.core.notify import Notify
from knowngood.engine import probe_gpus
from knowngood_diagnose.doctor import doctor_line, examination, probe
from knowngood_diagnose.doctor.doctor_line import DoctorLine, DoctorVerdict
from knowngood_diagnose.doctor.system_state import SystemState


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter or the folder of an environment (default: VIRTUAL_ENV's, else the first python on PATH)",
    )
    parser.add_argument("--image", metavar="REF", help="an image, or a cell's id or alias, in place of an environment")
    parser.add_argument("--gpu", metavar="GPU", help="judge for this GPU, in place of the machine's: H100, sm_90")
    parser.add_argument(
        "--driver", metavar="VERSION", help="judge for this driver version, in place of the machine's: 580.65.06"
    )
    parser.add_argument(
        "--host",
        metavar="ARCH",
        help="judge for a host of this processor, x86-64 or aarch64 (default: the card's, or this machine's)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Read the state of this machine, an environment or an image, and judge it."""
    if arguments.image and arguments.python:
        raise UsageError("--image and --python examine different things; give one of them")
    start = time.monotonic()
    with report_progress("doctor") as notify:
        examine = _examine_image if arguments.image else _examine_environment
        lines, subject = examine(arguments, notify)
    code = doctor_line.doctor_exit_code(lines)
    if subject is None and code != 1:
        code = 4
        print("knowngood: nothing to examine: no GPU, no torch, no binary with GPU code", file=sys.stderr)
    document = {
        "verdict": str(doctor_line.overall_verdict(lines)),
        "subject": subject,
        "lines": [item.document() for item in lines],
        "seconds": round(time.monotonic() - start, 2),
    }
    return Answer(code, document, _text(lines))


def _examine_environment(arguments: argparse.Namespace, notify: Notify) -> tuple[list[DoctorLine], str | None]:
    """Return the lines, and the path of the interpreter, or `None` when there was nothing to examine."""
    context = examination.load_examination_context(arguments.gpu, arguments.driver, arguments.host)
    state = probe.read_system_state(arguments.python, os.environ, notify)
    notify("judging")
    python = state.python.path if state.python else None
    return examination.examine_environment(state, context), python if examination.has_subject(state) else None


def _examine_image(arguments: argparse.Namespace, notify: Notify) -> tuple[list[DoctorLine], str]:
    from knowngood_diagnose.doctor import probe_image  # not at the top: it imports docker and requests

    context = examination.load_examination_context(arguments.gpu, arguments.driver, arguments.host)
    image = probe_image.describe_image(arguments.image, notify, host=context.host.architecture)
    return examination.examine_image(image, SystemState(nvidia=probe_gpus.read_nvidia_state()), context), image.name


def _text(lines: Iterable[DoctorLine]) -> str:
    """Return the table; a line that is not fine has its reason and its remedy below it."""
    return format_table(["verdict", "what", "seen"], [_row(item) for item in lines])


def _row(item: DoctorLine) -> list[str]:
    cell = [item.observation]
    if item.verdict is not DoctorVerdict.OK or item.id == "driver":
        cell += [f"because {item.because}"] if item.because else []
        cell += [f"fix: {fix}" for fix in item.fix]
        cell += [f"leads to: {', '.join(item.incidents)}"] if item.incidents else []
    return [str(item.verdict), item.subject, "\n".join(cell)]
