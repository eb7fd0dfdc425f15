"""The folder of one job: what a node is given, and what it leaves there for this machine to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import write_atomically
from knowngood.executors import job_script
from knowngood.executors.job import FailureCause, JobOutcome, JobStatus, SuiteJob


@dataclass(frozen=True)
class JobFolder:
    """The folder of the job whose key is its name."""

    path: Path

    def prepare(self, job: SuiteJob, script: str) -> None:
        """Write the job's script and predictions, and remove what an earlier submission left.

        These are plain writes. Nothing reads the files before the job is submitted, a killed program writes them again,
        and forcing hundreds of files to a shared disk takes long.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for name in (job_script.OUTCOME_FILE, job_script.FAILURE_FILE, job_script.NODE_FILE):
            (self.path / name).unlink(missing_ok=True)
        (self.path / job_script.PREDICTIONS_FILE).write_text(json.dumps(job.predictions), encoding="utf-8")
        (self.path / job_script.SCRIPT_FILE).write_text(script, encoding="utf-8")

    def has_outcome(self) -> bool:
        """Return whether the suite ran to its end and the result has arrived."""
        return (self.path / job_script.OUTCOME_FILE).exists()

    def read_outcome(self) -> JobOutcome:
        """Return the result. Raises `KnowngoodError` when it is missing, incomplete, damaged or another job's."""
        try:
            data = (self.path / job_script.OUTCOME_FILE).read_bytes()
        except FileNotFoundError:
            raise KnowngoodError(f"job {self.path.name}: there is no result in {self.path}") from None
        return job_script.parse_outcome(data, self.path.name)

    def write_failure(self, cause: FailureCause, text: str) -> None:
        """Record why there will be no outcome."""
        write_atomically(self.path / job_script.FAILURE_FILE, f"{cause}\n{text}\n")

    def read_failure(self) -> JobStatus | None:
        """Return why there will be no outcome, or `None` where nothing is recorded."""
        return job_script.parse_failure(self.read_text(job_script.FAILURE_FILE))

    def read_node(self) -> str | None:
        """Return the name of the node that started the job."""
        return self.read_text(job_script.NODE_FILE).strip() or None

    def read_text(self, name: str) -> str:
        """Return the text of a file in the folder; empty where there is none."""
        return read_text_or_empty(self.path / name)


def read_text_or_empty(path: Path) -> str:
    """Return a file's text; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
