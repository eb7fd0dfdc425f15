"""A job of the smoke suite, for the tests of executors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from knowngood.executors.job import JobNeeds, JobSubject, SuiteJob

SUITE = "ab" * 32
CELL = "sm90-cu130-torch2.11.0-tf5.17.0-fa0-triton3.6.0-py311"


def job(cell=CELL, **changes):
    made = SuiteJob(
        cell=cell,
        subject=JobSubject(image="r.example/k@sha256:1", content="sha256:1"),
        suite=SUITE,
        suite_folder=Path(),
        command=("-q",),
        predictions={},
        needs=JobNeeds(gpu="sm_90", gpus=1),
    )
    return replace(made, **changes)
