"""The folder that a Slurm cluster and this machine share: what jobs are given, and what they leave.

`jobs/KEY/` has a job's script and its result, `batches/NAME/` an array's script, keys and logs, `suites/` the suite.
Nothing here looks at a clock or at a file's time: two machines' clocks may be an hour apart.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood import smoke
from knowngood.atomic import write_text
from knowngood.fleet import shell, slurm_script
from knowngood.fleet.config import Slurm as Settings
from knowngood.fleet.job import Job

_BATCH, _ARRAY = "batch", "array"


@dataclass(frozen=True)
class Storage:
    """Its files, for one executor."""

    settings: Settings

    def job(self, key: str) -> Path:
        """A job's folder."""
        return Path(slurm_script.job_folder(self.settings, key))

    def batch(self, name: str) -> Path:
        """An array's folder."""
        return Path(slurm_script.batch_folder(self.settings, name))

    def suite(self, digest: str) -> Path:
        """Where the copy of a suite lies, for environments."""
        return Path(self.settings.folder) / "suites" / digest[:16] / "smoke_tests"

    def script(self, job: Job) -> str:
        """What a node runs."""
        suite = str(self.suite(job.suite))
        way = slurm_script.way(job, self.settings, suite_in_image=smoke.SUITE_IN_IMAGE, suite=suite)
        return shell.script(job, str(self.job(job.key)), way)

    def give(self, batch: Sequence[Job], there: frozenset[str]) -> Path:
        """Write all that an array needs; returns its script. `there`: the nodes of the cluster.

        Nobody reads it before sbatch is called, and what a killed program left half written is written again: so these
        are plain writes, since hundreds of files that are each forced to a shared disk take long.
        """
        name = slurm_script.name(batch)
        folder = self.batch(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for index, job in enumerate(batch):
            place = self.job(job.key)
            place.mkdir(parents=True, exist_ok=True)
            for old in (shell.OUTCOME, shell.END, shell.BEGAN):
                (place / old).unlink(missing_ok=True)
            (place / shell.PREDICTIONS).write_text(json.dumps(job.predictions), encoding="utf-8")
            (place / shell.SCRIPT).write_text(self.script(job), encoding="utf-8")
            (place / _BATCH).write_text(f"{name} {index}\n", encoding="utf-8")
        (folder / "keys").write_text("".join(f"{job.key}\n" for job in batch), encoding="utf-8")
        path = folder / "script.sh"
        path.write_text(slurm_script.script(batch, self.settings, batch[0].avoid & there), encoding="utf-8")
        return path

    def keep_array(self, name: str, array: str) -> None:
        """The number that Slurm gave to an array."""
        write_text(self.batch(name) / _ARRAY, array + "\n")

    def array(self, name: str) -> str:
        """The number of an array; empty where none was kept."""
        return read(self.batch(name) / _ARRAY).strip()

    def place(self, key: str) -> tuple[str, int] | None:
        """The array's name and the job's index in it; `None` for a job that was never given."""
        name, _, index = read(self.job(key) / _BATCH).strip().partition(" ")
        return (name, int(index)) if index.isdecimal() else None

    def log(self, key: str) -> str:
        """What a job has printed, as far as the shared file system shows it."""
        place = self.place(key)
        return read(self.batch(place[0]) / f"{place[1]}.log") if place else ""

    def last_words(self, key: str) -> str:
        """The end of the log, for a sentence."""
        lines = [line for line in self.log(key).splitlines() if line.strip() and not line.startswith("knowngood: ")]
        return f"its last words: {lines[-1].strip() if lines else 'none'}"

    def bring_suites(self, jobs: Iterable[Job], suite: Path) -> None:
        """A copy of the suite for environments, whole as soon as it exists."""
        for digest in {job.suite for job in jobs if job.subject.environment}:
            folder = self.suite(digest).parent
            if folder.exists():
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=folder.parent))
            shutil.copytree(suite, part / "smoke_tests", ignore=shutil.ignore_patterns("__pycache__", ".*"))
            part.chmod(0o755)
            with contextlib.suppress(OSError):  # another program was quicker
                part.rename(folder)
            shutil.rmtree(part, ignore_errors=True)


def read(path: Path) -> str:
    """A file's text; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
