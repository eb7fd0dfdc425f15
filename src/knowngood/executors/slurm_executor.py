"""The executor for a Slurm cluster: one array per batch; states from squeue, sacct and the files that jobs leave."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from knowngood.core.errors import MissingError
from knowngood.executors import job_script, slurm_commands, slurm_script, slurm_states
from knowngood.executors.fleet_config import SlurmSection
from knowngood.executors.job import FailureCause, JobOutcome, JobState, JobStatus, SuiteJob
from knowngood.executors.job_folder import JobFolder
from knowngood.executors.slurm_commands import RunCommand, SlurmCommands, sbatch_command
from knowngood.executors.slurm_states import PollPace, TaskId
from knowngood.executors.slurm_storage import SharedFolder
from knowngood.smoke import suite_run

_LATE_POLLS = 5
"""Polls for which a result may still be on its way through the shared file system after Slurm reported the end."""
_SLURM_CAUSES = (FailureCause.TIME_LIMIT, FailureCause.MEMORY, FailureCause.NODE)
"""Causes that Slurm knows better than the job's script."""


class SlurmExecutor:
    """Runs jobs as tasks of arrays; see `job.Executor`."""

    longest_pause = 0.5  # a poll mostly looks at the shared folder; `PollPace` limits the questions to Slurm

    def __init__(
        self,
        name: str,
        section: SlurmSection,
        run: RunCommand = slurm_commands.run_slurm_command,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._section = section
        self._files = SharedFolder(name, section)
        self._commands = SlurmCommands(name, run)
        self._tasks: dict[str, TaskId] = {}
        self._final: dict[str, JobStatus] = {}
        self._late: dict[str, int] = {}
        self._pace = PollPace(clock=clock)

    def submit(self, jobs: Sequence[SuiteJob]) -> Mapping[str, JobStatus]:
        """Call sbatch once for all jobs with the same needs; jobs that the cluster has are left as they are."""
        answers = dict(self.poll(job.key for job in jobs))
        new = [job for job in jobs if answers[job.key].state is JobState.LOST]
        if not new:
            return answers
        with self._files.report_errors():
            self._files.copy_suites(new)
            nodes = self._commands.read_nodes() if any(job.avoid for job in new) else frozenset()
            for batch in slurm_script.slurm_batches(new):
                answers |= self._submit(batch, nodes)
        return answers

    def rehearse(self, jobs: Sequence[SuiteJob]) -> Sequence[str]:
        """Return the script and the command of each array, and the scripts of its jobs."""
        lines = []
        for batch in slurm_script.slurm_batches(jobs):
            folder = self._files.batch(slurm_script.array_name(batch))
            keys = "\n".join(job.key for job in batch)
            lines += [f"# {folder}/keys\n{keys}"]
            lines += [
                f"# {self._files.job(job.key).path}/{job_script.SCRIPT_FILE}\n{self._files.render_job(job)}"
                for job in batch
            ]
            script = slurm_script.render_array_script(batch, self._section, batch[0].avoid)
            lines += [f"# {folder}/script.sh\n{script}", shlex.join(sbatch_command(folder / "script.sh"))]
        return lines

    def poll(self, keys: Iterable[str]) -> Mapping[str, JobStatus]:
        """Look at the shared folder, and from time to time ask squeue about all unfinished jobs at once."""
        wanted = list(keys)
        unfinished = [key for key in wanted if key not in self._final]
        with self._files.report_errors():
            tasks = {key: task for key in unfinished if (task := self._find_task(key))}
            fresh, failure = False, None
            if tasks and self._pace.is_due(set(tasks.values())):
                try:
                    open_tasks = {self._tasks[key] for key in self._tasks.keys() - self._final.keys()}
                    self._pace.add_records(self._commands.read_records(open_tasks))
                    fresh = True
                except MissingError as error:  # the files that jobs leave count all the same
                    failure = error
            statuses = {key: JobStatus(state=JobState.LOST) for key in unfinished}
            statuses |= {key: self._status(key, task, fresh=fresh) for key, task in tasks.items()}
        finished = {key: status for key, status in statuses.items() if status.state.is_final}
        if failure and not finished:
            raise failure
        self._final |= {key: status for key, status in finished.items() if status.state is not JobState.LOST}
        return {key: statuses.get(key) or self._final[key] for key in wanted}

    def cancel(self, keys: Iterable[str]) -> None:
        """Call scancel once for all jobs."""
        with self._files.report_errors():
            tasks = [task for key in keys if (task := self._find_task(key))]
        if tasks:
            self._commands.cancel_tasks(tasks)
            self._pace.poll_soon()

    def result(self, key: str) -> JobOutcome:
        """Return what the job left in its folder; the node's name is hashed."""
        outcome = self._files.job(key).read_outcome()
        facts = {name: value for name, value in outcome.node.items() if name != "name"}
        node = suite_run.machine_fingerprint(str(outcome.node["name"]), {**facts, "engine": "slurm"})
        return replace(outcome, node=node)

    def _submit(self, batch: Sequence[SuiteJob], nodes: frozenset[str]) -> dict[str, JobStatus]:
        array = self._commands.submit_array(self._files.write_batch(batch, nodes))
        if isinstance(array, JobStatus):
            refused = {job.key: array for job in batch}
            self._final |= refused
            return refused
        self._files.write_array_number(slurm_script.array_name(batch), array)
        self._tasks |= {job.key: (array, index) for index, job in enumerate(batch)}
        return {job.key: JobStatus(state=JobState.QUEUED, text=f"array {array} of Slurm") for job in batch}

    def _status(self, key: str, task: TaskId, *, fresh: bool) -> JobStatus:
        """Return how a job stands. What it left in its folder counts more than what Slurm reports, or reported."""
        folder, record = self._files.job(key), self._pace.records.get(task)
        status = slurm_states.status_from_record(record) if record else _status_without_record(folder, fresh=fresh)
        status = replace(status, node=status.node or folder.read_node())
        if folder.has_outcome():
            return replace(status, state=JobState.ENDED, cause=None, text="")
        if (record and status.state is JobState.QUEUED) or status.cause in _SLURM_CAUSES:
            return status
        if failure := folder.read_failure():
            text = f"{failure.text}; {self._files.last_words(key)}"
            return replace(status, state=JobState.FAILED, cause=failure.cause, text=text)
        if status.state is JobState.ENDED:
            return self._status_without_result(key, status, fresh=fresh)
        if status.cause is FailureCause.CRASH:
            return replace(status, text=f"{status.text}; {self._files.last_words(key)}")
        return status

    def _status_without_result(self, key: str, status: JobStatus, *, fresh: bool) -> JobStatus:
        """Slurm reports the end, but there is no result: at first, the file system may only be slow."""
        self._late[key] = self._late.get(key, 0) + fresh
        if self._late[key] <= _LATE_POLLS:
            return replace(status, state=JobState.RUNNING, text="it has ended, but its result is not visible here yet")
        text = f"it has ended, but there is no result in {self._files.job(key).path}; {self._files.last_words(key)}"
        return replace(status, state=JobState.FAILED, cause=FailureCause.CRASH, text=text)

    def _find_task(self, key: str) -> TaskId | None:
        """Return the job's array and index. Only Slurm knows the array if we were killed after sbatch."""
        if key not in self._tasks and (position := self._files.find_batch(key)):
            name, index = position
            array = self._files.read_array_number(name)
            if not array and (array := self._commands.find_array(name)):
                self._files.write_array_number(name, array)
            if array:
                self._tasks[key] = array, index
        return self._tasks.get(key)


def _status_without_record(folder: JobFolder, *, fresh: bool) -> JobStatus:
    """Return how a job stands that Slurm has not mentioned; `fresh`: Slurm was asked just now."""
    if not fresh:
        return JobStatus(state=JobState.QUEUED, text="submitted")
    node = folder.read_node()
    started = f"; it started on {node} and left nothing" if node else ""
    return JobStatus(state=JobState.LOST, text=f"the cluster has no record of it any more{started}")
