"""Try the local executor on a machine with GPUs and no engine: more jobs than GPUs, each alone on one GPU.

    PYTHONPATH=src python3 scripts/fleet_gpus.py OUT [JOBS]

Every job runs the suite's quick part in the environment of this script. One further job is cancelled, and one needs an
architecture that this machine does not have. Writes OUT/fleet.json: when each job began and ended, on which GPU, and
its verdict. It needs pydantic and nvidia-ml-py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from knowngood.executors import executor_choice, local_executor, local_workers
from knowngood.executors.job import JobNeeds, JobState, JobStatus, JobSubject, SuiteJob
from knowngood.smoke import suite_command
from knowngood.smoke.suite_files import hash_suite

SUITE = Path(__file__).resolve().parents[1] / "smoke_tests"


def job(number: int, sm: str) -> SuiteJob:
    """Return the same run as a different job for each number."""
    return SuiteJob(
        cell=f"{sm.replace('_', '')}-this-environment",
        subject=JobSubject(environment=sys.prefix, content="this environment"),
        suite=hash_suite(SUITE),
        command=tuple(suite_command.suite_arguments(suite_command.SuiteOptions(quick=True, gpus=True), cell_gpu=sm)),
        predictions={},
        needs=JobNeeds(gpu=sm, gpus=1, seconds=400, memory=8 << 30),
        attempt=number,
    )


def status_document(status: JobStatus) -> dict[str, str | None]:
    """Return a job's state as it is written to the file."""
    return {"state": str(status.state), "cause": status.cause and str(status.cause), "text": status.text}


def main(out: str, count: str = "4") -> None:
    """Run all jobs and write the results."""
    machine = executor_choice.read_local_machine()
    folder = Path(tempfile.mkdtemp())
    processes = local_workers.ProcessWorker(SUITE, folder)
    executor = local_executor.LocalExecutor("local", folder, lambda: machine, lambda: processes, lambda: processes)
    sm = next(iter(machine.gpus.values()))
    start = time.monotonic()
    jobs = [job(number, sm) for number in range(1, int(count) + 1)]
    other, cancelled = replace(jobs[0], needs=replace(jobs[0].needs, gpu="sm_70")), job(99, sm)
    submitted = executor.submit([*jobs, other, cancelled])
    executor.cancel([cancelled.key])
    again = executor.submit(jobs)
    document = {"machine": {"gpus": dict(machine.gpus), "cpus": machine.cpus}, "at_once": 0, "jobs": {}}
    document["refused"] = status_document(submitted[other.key])
    document["cancelled"] = status_document(executor.poll([cancelled.key])[cancelled.key])
    document["submitted_again"] = sorted({str(status.state) for status in again.values()})
    begun: dict[str, tuple[float, str | None]] = {}
    while True:
        running = processes.running_jobs()
        now = time.monotonic() - start
        for key, (_, device) in running.items():
            begun.setdefault(key, (now, device))
        document["at_once"] = max(document["at_once"], len(running))
        for key, status in executor.poll(item.key for item in jobs).items():
            if status.state.is_final and key not in document["jobs"]:
                document["jobs"][key] = entry = {
                    "began": begun[key][0],
                    "ended": now,
                    "gpu": begun[key][1],
                    **status_document(status),
                }
                if status.state is JobState.ENDED:
                    outcome = executor.result(key)
                    entry["verdict"] = outcome.report["verdict"]
                    entry["environment"] = {
                        name: outcome.report["environment"].get(name) for name in ("gpu", "sm", "uuid", "torch")
                    }
                print(json.dumps(entry), flush=True)
        if len(document["jobs"]) == len(jobs):
            break
        time.sleep(0.5)
    Path(out, "fleet.json").write_text(json.dumps(document, indent=1) + "\n")


main(*sys.argv[1:])
