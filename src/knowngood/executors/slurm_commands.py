"""Runs Slurm's own commands: sbatch, squeue, sacct, scancel, sinfo."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import MissingError
from knowngood.executors import slurm_states
from knowngood.executors.job import JobStatus
from knowngood.executors.slurm_states import SlurmRecord, TaskId

ANSWER_SECONDS = 60
_IGNORED_VARIABLES = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SLURM_TIME_FORMAT")
"""Prefixes of the user's environment variables that would change what the commands do or print."""


@dataclass(frozen=True, kw_only=True)
class SlurmAnswer:
    """The exit code and the output of a command that has ended."""

    code: int
    out: str
    err: str


RunCommand = Callable[[Sequence[str]], SlurmAnswer]


def run_slurm_command(argv: Sequence[str]) -> SlurmAnswer:
    """Run a command. Raises `MissingError` when it is not installed or does not answer in time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_IGNORED_VARIABLES)}
    try:
        process = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_SECONDS,
            env={**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
            preexec_fn=end_with_parent(),
        )
    except FileNotFoundError:
        raise MissingError(f"there is no {argv[0]} here; run this on a machine that has Slurm's commands") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"{argv[0]} did not answer within {ANSWER_SECONDS} s") from None
    return SlurmAnswer(code=process.returncode, out=process.stdout, err=process.stderr.strip())


class SlurmCommands:
    """The questions and orders to one cluster. Each method raises `MissingError` when Slurm does not answer."""

    def __init__(self, name: str, run: RunCommand) -> None:
        self._name, self._run = name, run
        self._has_accounting = True

    def submit_array(self, script: Path) -> str | JobStatus:
        """Submit an array; return its number, or how sbatch refused it."""
        answer = self._ask(sbatch_command(script), is_answer=lambda errors: not slurm_states.is_unanswered(errors))
        array = answer.out.strip().partition(";")[0]  # in a federation the name of the cluster follows
        if answer.code or not array.isdecimal():
            return slurm_states.status_from_refusal(answer.err or answer.out)
        return array

    def find_array(self, name: str) -> str:
        """Return the number of the array with a name, or an empty text."""
        answer = self._ask(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F"])
        return next(iter(answer.out.split()), "")

    def read_records(self, tasks: set[TaskId]) -> dict[TaskId, SlurmRecord]:
        """Return what squeue reports, and what sacct reports of the tasks that squeue has forgotten."""
        answer = self._ask([*slurm_states.SQUEUE, _arrays(tasks)], is_answer=lambda errors: "Invalid job id" in errors)
        records = dict(slurm_states.parse_squeue(answer.out))
        if self._has_accounting and (forgotten := tasks - records.keys()):
            answer = self._run([*slurm_states.SACCT, _arrays(forgotten)])
            self._has_accounting = not answer.code  # a cluster without accounting is asked only once
            if self._has_accounting:
                records = {**dict(slurm_states.parse_sacct(answer.out)), **records}
        return records

    def cancel_tasks(self, tasks: Iterable[TaskId]) -> None:
        """End tasks; those that have ended already do not matter."""
        words = ["scancel", *(f"{array}_{index}" for array, index in tasks)]
        self._ask(words, is_answer=lambda errors: not slurm_states.is_unanswered(errors))

    def read_nodes(self) -> frozenset[str]:
        """Return the names of the cluster's nodes."""
        return frozenset(self._ask(["sinfo", "--noheader", "--Node", "--format=%N"]).out.split())

    def _ask(self, argv: Sequence[str], is_answer: Callable[[str], bool] = lambda _: False) -> SlurmAnswer:
        """Run a command; when it fails, `is_answer` says whether its errors are an answer all the same."""
        answer = self._run(argv)
        if not answer.code or is_answer(answer.err):
            return answer
        hint = ""
        if re.search("authentication|munge", answer.err, re.IGNORECASE):
            hint = "; is the clock of this machine right? Slurm refuses credentials that seem old"
        raise MissingError(f"{self._name}: Slurm does not answer: {answer.err or answer.out.strip()}{hint}")


def sbatch_command(script: Path) -> list[str]:
    """Return the command that submits an array."""
    return ["sbatch", "--parsable", str(script)]


def _arrays(tasks: Iterable[TaskId]) -> str:
    return "--jobs=" + ",".join(sorted({array for array, _ in tasks}, key=int))
