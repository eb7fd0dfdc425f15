"""The folder that a Slurm cluster and this machine share: what jobs are given, and what they leave.

`jobs/KEY/` has a job's script and its result; `batches/NAME/` the script, the keys and the logs of an array; `suites/`
the copies of the suite. Nothing here compares times of files or clocks: those of two machines may be an hour apart.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from knowngood.core.errors import MissingError
from knowngood.core.local_files import write_atomically
from knowngood.executors import job_script, slurm_script
from knowngood.executors.fleet_config import SlurmSection
from knowngood.executors.job import SuiteJob
from knowngood.executors.job_folder import JobFolder, read_text_or_empty
from knowngood.smoke import suite_files

_BATCH_FILE, _ARRAY_FILE, _KEYS_FILE = "batch", "array", "keys"


class SharedFolder:
    """The files of one executor on the storage that it shares with the cluster."""

    def __init__(self, name: str, section: SlurmSection) -> None:
        self._name, self._section = name, section

    @contextlib.contextmanager
    def report_errors(self) -> Iterator[None]:
        """Turn an `OSError` into a `MissingError`: a storage failure says nothing about the jobs."""
        try:
            Path(self._section.folder).mkdir(exist_ok=True)
            yield
        except OSError as error:
            text = f"the shared folder {self._section.folder} cannot be used: {error.strerror or error}"
            raise MissingError(f"{self._name}: {text}") from None

    def job(self, key: str) -> JobFolder:
        """Return the folder of a job."""
        return JobFolder(Path(slurm_script.job_folder(self._section, key)))

    def batch(self, name: str) -> Path:
        """Return the folder of an array."""
        return Path(slurm_script.batch_folder(self._section, name))

    def suite(self, digest: str) -> Path:
        """Return the folder with the copy of a suite."""
        return Path(self._section.folder) / "suites" / digest[:16] / "smoke_tests"

    def render_job(self, job: SuiteJob) -> str:
        """Return the script that a node runs for a job."""
        suite = str(self.suite(job.suite))
        launch = slurm_script.suite_launch(job, self._section, suite)
        return job_script.render_job_script(job, str(self.job(job.key).path), launch)

    def write_batch(self, batch: Sequence[SuiteJob], nodes: frozenset[str]) -> Path:
        """Write everything that an array needs, and return the path of its script.

        `nodes` are the nodes of the cluster: sbatch refuses to avoid one that does not exist.
        """
        name = slurm_script.array_name(batch)
        folder = self.batch(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for index, job in enumerate(batch):
            job_folder = self.job(job.key)
            job_folder.prepare(job, self.render_job(job))
            (job_folder.path / _BATCH_FILE).write_text(f"{name} {index}\n", encoding="utf-8")
        (folder / _KEYS_FILE).write_text("".join(f"{job.key}\n" for job in batch), encoding="utf-8")
        path = folder / "script.sh"
        path.write_text(
            slurm_script.render_array_script(batch, self._section, batch[0].avoid & nodes), encoding="utf-8"
        )
        return path

    def write_array_number(self, name: str, array: str) -> None:
        """Store the number that Slurm gave to an array."""
        write_atomically(self.batch(name) / _ARRAY_FILE, array + "\n")

    def read_array_number(self, name: str) -> str:
        """Return the number of an array; empty where none is stored."""
        return read_text_or_empty(self.batch(name) / _ARRAY_FILE).strip()

    def find_batch(self, key: str) -> tuple[str, int] | None:
        """Return the name of a job's array and its index there; `None` for a job that was never submitted."""
        name, _, index = self.job(key).read_text(_BATCH_FILE).strip().partition(" ")
        return (name, int(index)) if index.isdecimal() else None

    def read_log(self, key: str) -> str:
        """Return what a job has printed, as far as the shared file system shows it."""
        position = self.find_batch(key)
        return read_text_or_empty(self.batch(position[0]) / f"{position[1]}.log") if position else ""

    def last_words(self, key: str) -> str:
        """Return the last line of the log, for a sentence."""
        lines = [
            line for line in self.read_log(key).splitlines() if line.strip() and not line.startswith("knowngood: ")
        ]
        return f"its last words: {lines[-1].strip() if lines else 'none'}"

    def copy_suites(self, jobs: Iterable[SuiteJob]) -> None:
        """Copy the suites of jobs to shared storage; a copy appears whole or not at all."""
        for digest, suite in {job.suite: job.suite_folder for job in jobs}.items():
            folder = self.suite(digest).parent
            if folder.exists():
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=folder.parent))
            (part / suite_files.SUITE_FOLDER).mkdir()
            for name, data in suite_files.read_suite_files(suite).items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                (part / name).write_bytes(data)
            part.chmod(0o755)
            with contextlib.suppress(OSError):  # another program was quicker
                part.rename(folder)
            shutil.rmtree(part, ignore_errors=True)
