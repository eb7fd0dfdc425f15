"""`knowngood doctor`: examine this machine, an environment or an image, in one table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable

from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import MissingError, UsageError
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
    parser.add_argument(
        "--speed",
        action="store_true",
        help="take a minute to measure the card, its memory and link, and a training step (with VIRTUAL_ENV's torch), "
        "and compare with known-good nodes",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Read the state of this machine, an environment or an image, and judge it."""
    if arguments.image and arguments.python:
        raise UsageError("--image and --python examine different things; give one of them")
    if arguments.speed and (arguments.image or arguments.python):
        raise UsageError(
            "--speed measures with the torch of VIRTUAL_ENV; in a cell's image: `knowngood bench --plan node`"
        )
    start = time.monotonic()
    with report_progress("doctor") as notify:
        examine = _examine_image if arguments.image else _examine_environment
        lines, subject = examine(arguments, notify)
        lines += _measure_speed(notify) if arguments.speed else []
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


def _measure_speed(notify: Notify) -> list[DoctorLine]:
    """Run the speed suite's plan for a node here, and judge it against the other nodes in the project's evidence.

    Raises `MissingError` where the suite leaves no report, for lack of torch or transformers.
    """
    from knowngood.evidence import speed_runs
    from knowngood.project.checkout import find_project
    from knowngood.smoke import suite_run
    from knowngood_diagnose.doctor.judge_speed import judge_speed

    project, python = find_project(), suite_run.find_environment_python()
    notify(f"measuring with {python}")
    with local_files.scratch_folder() as folder:
        path = folder / "report.json"
        argv = [python, "-m", project.speed_suite.name, "--plan", "node", "--out", str(path)]
        environment = os.environ | {"PYTHONPATH": str(project.suites), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, check=False, preexec_fn=end_with_parent()
        )
        if not path.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise MissingError(f"the speed of this machine was not measured with {python}: {last}")
        report = json.loads(path.read_bytes())
    runs, _ = speed_runs.load_speed_runs(project.evidence, project.seal)
    here = speed_runs.find_machine(report, report["node"])
    others = [run for _, run in runs if speed_runs.find_machine(run.report, run.node) != here]
    return list(judge_speed(report, speed_runs.known_good_parts(others, str(report["environment"].get("gpu")))))


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
