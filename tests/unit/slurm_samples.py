"""A job and a section of fleet.yaml, for the tests of the Slurm executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from knowngood.executors import fleet_config
from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob

SUITE = "ab" * 32
SUITE_FOLDER = Path(__file__).parents[2] / "smoke_tests"
DIGEST = "sha256:" + "0" * 64


def job(cell="c", **changes):
    made = SuiteJob(
        cell=cell,
        subject=JobSubject(image=f"registry.example/team/knowngood@{DIGEST}", content=DIGEST),
        suite=SUITE,
        suite_folder=SUITE_FOLDER,
        command=("-q", "--quick"),
        predictions={"a/*": {"outcome": "refused"}},
        needs=JobNeeds(gpu="sm_90", gpus=1, memory=12 << 30, seconds=1200),
    )
    return replace(made, **changes)


def settings(**changes):
    given = {"engine": "slurm", "folder": "/shared/knowngood", "run": "apptainer"}
    given |= {"images": "registry.example/team/knowngood"}
    return fleet_config.SlurmSection(**given | changes)


def bare(**changes):
    return settings(run="environment", images=None, environments="/e/{cell}", **changes)
