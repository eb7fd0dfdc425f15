"""What the Slurm executor adds to a job: from its submission to its evidence, less the suite and Slurm's own latency.

    python benchmarks/fleet.py [JOBS ...]

Runs batches of JOBS (default 1, 20 and 200) on the Slurm of three nodes that the integration tests make, with a
stand-in for the suite that says when it began and ended. For each job it adds up: submission until sbatch is called,
the script's start until the suite's, the suite's end until the outcome is written, and from there until the evidence.
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

from knowngood import evidence
from knowngood.evidence import Evidence
from knowngood.fleet import config, slurm_commands
from knowngood.fleet.job import Job, Needs, Subject
from knowngood.fleet.run import Run
from knowngood.fleet.slurm import Slurm
from knowngood.fleet.slurm_commands import Done
from knowngood.fleet.state import State

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
    """One batch."""
    called: dict[str, list[float]] = {}
    stored: dict[str, tuple[float, Evidence]] = {}

    def run(words: Sequence[str]) -> Done:
        called.setdefault(words[0], []).append(time.time())
        return slurm_commands.run(words)

    def store(found: Evidence) -> str:
        path = evidence.store(found, folder / "evidence")
        stored[found.cell] = time.time(), found
        return str(path)

    environment = f"{cluster.folder}/environment"
    site = config.Slurm(
        engine="slurm", folder=str(cluster.shared), run="environment", environments="/{cell}", partition="main"
    )
    jobs = [
        Job(
            cell=f"cell{count}-{number}",
            subject=Subject(environment=environment, content="sha256:1"),
            suite=SUITE,
            command=(),
            predictions={},
            needs=Needs(cpus=1, memory=10 << 20, seconds=60),
        )
        for number in range(count)
    ]
    lab = Slurm("lab", site, Path(environment), run)
    began = time.time()
    Run(executor=lab, kept=State(folder / "state"), store=store, say=str, wait=600).run(jobs)
    took = time.time() - began
    added = []
    for job in jobs:
        place = cluster.shared / "jobs" / job.key
        when, found = stored[job.cell]
        before = called["sbatch"][0] - began
        on_node = found.report["began"] - (place / "began").stat().st_mtime
        written = (place / "outcome.json").stat().st_mtime - found.report["ended"]
        added.append((before, on_node + written, when - (place / "outcome.json").stat().st_mtime))
    whole = sorted(sum(parts) for parts in added)
    parts = [statistics.median(column) for column in zip(*added, strict=True)]
    asked = ", ".join(f"{len(times)} {command}" for command, times in sorted(called.items()))
    print(
        f"{count:4} jobs in {took:5.1f} s ({asked}): added to a job {statistics.median(whole):.2f} s (median), "
        f"{whole[-1]:.2f} s (most): before sbatch {parts[0]:.2f}, script {parts[1]:.2f}, seen and stored {parts[2]:.2f}"
    )


def main() -> None:
    """Measure all sizes."""
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
