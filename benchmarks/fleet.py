"""Measure what the Slurm executor adds to a job, without the time of the suite and Slurm's own latency.

    python benchmarks/fleet.py [JOBS ...]

Runs batches of JOBS (default 1, 20 and 200) on the Slurm cluster of three nodes that the integration tests create. A
replacement for the suite reports when it started and ended. For each job these times are added: from submission to the
call of sbatch, from the start of the job's script to the start of the suite, from the end of the suite until the
outcome is written, and from then until the evidence is stored.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/integration"))

import os

import slurm_cluster

from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.executors import fleet_config, slurm_commands
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob
from knowngood.executors.job_run import FleetState, JobRun
from knowngood.executors.slurm_commands import SlurmAnswer
from knowngood.executors.slurm_executor import SlurmExecutor

SUITE = "5" * 64
STAND_IN = """\
#!/bin/sh
began=$(date +%s.%N)
while [ "$1" != --report ]; do shift; done
sleep 1
printf '{"suite_hash": "SUITE", "environment": {"sm": null}, "checks": [], ' > "$2"
printf '"verdict": {"ok": true, "domain": "none", "text": ""}, "began": %s, ' "$began" >> "$2"
printf '"ended": %s}' "$(date +%s.%N)" >> "$2"
"""


def measure(cluster: slurm_cluster.Cluster, folder: Path, count: int) -> None:
    """Measure one batch of `count` jobs and print its line."""
    called: dict[str, list[float]] = {}
    stored: dict[str, tuple[float, Evidence]] = {}

    def run(words: Sequence[str]) -> SlurmAnswer:
        called.setdefault(words[0], []).append(time.time())
        return slurm_commands.run_slurm_command(words)

    def store(run: Evidence) -> str:
        path = run_evidence.store_evidence(run, folder / "evidence")
        stored[run.cell] = time.time(), run
        return str(path)

    environment = f"{cluster.folder}/environment"
    site = fleet_config.SlurmSection(
        engine="slurm", folder=str(cluster.shared), run="environment", environments="/{cell}", partition="main"
    )
    jobs = [
        SuiteJob(
            cell=f"cell{count}-{number}",
            subject=JobSubject(environment=environment, content="sha256:1"),
            suite=SUITE,
            command=(),
            predictions={},
            needs=JobNeeds(cpus=1, memory=10 << 20, seconds=60),
        )
        for number in range(count)
    ]
    lab = SlurmExecutor("lab", site, Path(environment), run)
    began = time.time()
    JobRun(executor=lab, state=FleetState(folder / "state"), store=store, notify=str, wait=600).run_jobs(jobs)
    took = time.time() - began
    added = []
    for job in jobs:
        place = cluster.shared / "jobs" / job.key
        when, run_result = stored[job.cell]
        before = called["sbatch"][0] - began
        on_node = run_result.report["began"] - (place / "began").stat().st_mtime
        written = (place / "outcome.json").stat().st_mtime - run_result.report["ended"]
        added.append((before, on_node + written, when - (place / "outcome.json").stat().st_mtime))
    whole = sorted(sum(parts) for parts in added)
    parts = [statistics.median(column) for column in zip(*added, strict=True)]
    calls = ", ".join(f"{len(times)} {command}" for command, times in sorted(called.items()))
    print(
        f"{count:4} jobs in {took:5.1f} s ({calls}): added to a job {statistics.median(whole):.2f} s (median), "
        f"{whole[-1]:.2f} s (maximum): before sbatch {parts[0]:.2f}, script {parts[1]:.2f}, "
        f"polled and stored {parts[2]:.2f}"
    )


def main() -> None:
    """Measure all batch sizes."""
    sizes = [int(word) for word in sys.argv[1:]] or [1, 20, 200]
    with tempfile.TemporaryDirectory(prefix="knowngood-fleet-") as name:
        folder = Path(name)
        (folder / "slurm").mkdir()
        with slurm_cluster.Cluster(folder / "slurm") as cluster:
            os.environ.update(cluster.environment)
            python = cluster.folder / "environment/bin/python"
            python.parent.mkdir(parents=True)
            python.write_text(STAND_IN.replace("SUITE", SUITE))
            python.chmod(0o755)
            for size in sizes:
                measure(cluster, folder, size)


if __name__ == "__main__":
    main()
