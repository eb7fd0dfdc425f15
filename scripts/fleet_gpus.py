"""The local executor on a machine with GPUs and no engine: more jobs than GPUs, each alone on one, in this environment.

    PYTHONPATH=src python3 scripts/fleet_gpus.py OUT [JOBS]

Every job is the suite's quick part. Writes OUT/fleet.json: when each job began and ended, on which GPU, what it said; a
job is also cancelled, and one is asked of an architecture that is not there. That needs pydantic and nvidia-ml-py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from knowngood import smoke
from knowngood.fleet import engines, local, local_processes
from knowngood.fleet.asking import suite_hash
from knowngood.fleet.job import Job, Needs, State, Status, Subject

SUITE = Path(__file__).resolve().parents[1] / "smoke_tests"


def job(number: int, sm: str) -> Job:
    """The same run as another job each time."""
    return Job(
        cell=f"{sm.replace('_', '')}-this-environment",
        subject=Subject(environment=sys.prefix, content="this environment"),
        suite=suite_hash(SUITE),
        command=tuple(smoke.asked(smoke.Options(quick=True, gpus=True), cell_gpu=sm)),
        predictions={},
        needs=Needs(gpu=sm, gpus=1, seconds=400, memory=8 << 30),
        attempt=number,
    )


def told(status: Status) -> dict[str, str | None]:
    """How a job stands, for the file."""
    return {"state": str(status.state), "cause": status.cause and str(status.cause), "text": status.text}


def main(out: str, count: str = "4") -> None:
    """Run them, and write what was seen."""
    machine = engines.machine()
    folder = Path(tempfile.mkdtemp())
    processes = local_processes.Processes(SUITE, folder)
    executor = local.Local("local", folder, lambda: machine, lambda: processes, lambda: processes)
    sm = next(iter(machine.gpus.values()))
    start = time.monotonic()
    jobs = [job(number, sm) for number in range(1, int(count) + 1)]
    other, ended = replace(jobs[0], needs=replace(jobs[0].needs, gpu="sm_70")), job(99, sm)
    seen = executor.submit([*jobs, other, ended])
    executor.cancel([ended.key])
    again = executor.submit(jobs)
    found = {"machine": {"gpus": dict(machine.gpus), "cpus": machine.cpus}, "at_once": 0, "jobs": {}}
    found["refused"], found["cancelled"] = told(seen[other.key]), told(executor.poll([ended.key])[ended.key])
    found["submitted_again"] = sorted({str(status.state) for status in again.values()})
    begun: dict[str, tuple[float, str | None]] = {}
    while True:
        running = processes.running()
        now = time.monotonic() - start
        for key, (_, device) in running.items():
            begun.setdefault(key, (now, device))
        found["at_once"] = max(found["at_once"], len(running))
        for key, status in executor.poll(item.key for item in jobs).items():
            if status.state.final and key not in found["jobs"]:
                found["jobs"][key] = entry = {
                    "began": begun[key][0],
                    "ended": now,
                    "gpu": begun[key][1],
                    **told(status),
                }
                if status.state is State.ENDED:
                    outcome = executor.result(key)
                    entry["verdict"] = outcome.report["verdict"]
                    entry["environment"] = {
                        name: outcome.report["environment"].get(name) for name in ("gpu", "sm", "uuid", "torch")
                    }
                print(json.dumps(entry), flush=True)
        if len(found["jobs"]) == len(jobs):
            break
        time.sleep(0.5)
    Path(out, "fleet.json").write_text(json.dumps(found, indent=1) + "\n")


main(*sys.argv[1:])
