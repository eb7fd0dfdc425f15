"""The executor for a Slurm cluster: one array a batch, states from squeue, sacct and the files that jobs leave."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from knowngood import smoke
from knowngood.errors import KnowngoodError, MissingError
from knowngood.fleet import shell, slurm_commands, slurm_script, slurm_states
from knowngood.fleet.config import Slurm as Settings
from knowngood.fleet.executor import Outcome
from knowngood.fleet.job import Cause, Job, State, Status
from knowngood.fleet.slurm_commands import Done, Run
from knowngood.fleet.slurm_pace import Pace
from knowngood.fleet.slurm_states import Place, Said
from knowngood.fleet.slurm_storage import Storage, read

_LATE = 5
"""Polls for which a result may be on its way through the shared file system, after Slurm said that the job is over."""
_SURE = (Cause.TIME_LIMIT, Cause.MEMORY, Cause.NODE)
"""Causes that Slurm knows better than the script."""


class Slurm:
    """See `executor.Executor`."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        suite: Path,
        run: Run = slurm_commands.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.settings = settings
        self._files = Storage(settings)
        self._suite, self._run = suite, run
        self._places: dict[str, Place] = {}
        self._final: dict[str, Status] = {}
        self._late: dict[str, int] = {}
        self._pace = Pace(clock=clock)
        self._accounts = True

    def submit(self, jobs: Sequence[Job]) -> Mapping[str, Status]:
        """One sbatch for all jobs that need the same; those that the cluster has are left as they are."""
        answers = dict(self.poll(job.key for job in jobs))
        new = [job for job in jobs if answers[job.key].state is State.LOST]
        if not new:
            return answers
        with self._storage():
            self._files.bring_suites(new, self._suite)
            there = self._nodes() if any(job.avoid for job in new) else frozenset()
            for batch in slurm_script.batches(new):
                answers |= self._submit(batch, there)
        return answers

    def rehearse(self, jobs: Sequence[Job]) -> Sequence[str]:
        """The script and the command of each array, and what each of its jobs runs."""
        found = []
        for batch in slurm_script.batches(jobs):
            folder = self._files.batch(slurm_script.name(batch))
            keys = "\n".join(job.key for job in batch)
            found += [f"# {folder}/keys\n{keys}"]
            found += [f"# {self._files.job(job.key)}/{shell.SCRIPT}\n{self._files.script(job)}" for job in batch]
            found += [f"# {folder}/script.sh\n{slurm_script.script(batch, self.settings, batch[0].avoid)}"]
            found += [shlex.join(_sbatch(folder / "script.sh"))]
        return found

    def poll(self, keys: Iterable[str]) -> Mapping[str, Status]:
        """One squeue for all that is not final, now and then; between, what they have left is looked at."""
        wanted = list(keys)
        open_ = [key for key in wanted if key not in self._final]
        found = {key: self._final[key] for key in wanted if key in self._final}
        with self._storage():
            places = {key: place for key in open_ if (place := self._place(key))}
            fresh, silent = False, None
            if places and self._pace.due(set(places.values())):
                try:
                    self._pace.heard(self._ask({self._places[key] for key in self._places.keys() - self._final.keys()}))
                    fresh = True
                except MissingError as error:  # what jobs leave is to be seen all the same
                    silent = error
            for key in open_:
                status = Status(state=State.LOST)
                if key in places:
                    status = self._status(key, places[key], fresh=fresh)
                if status.state.final and status.state is not State.LOST:
                    self._final[key] = status
                found[key] = status
        if silent and not any(found[key].state.final for key in open_):
            raise silent
        return found

    def cancel(self, keys: Iterable[str]) -> None:
        """One scancel for all."""
        with self._storage():
            places = [place for key in keys if (place := self._place(key))]
        if places:
            done = self._run(["scancel", *(f"{array}_{index}" for array, index in places)])
            if done.code and slurm_states.unanswered(done.err):
                raise self._unanswered(done)
            self._pace.soon()

    def logs(self, key: str) -> str:
        """What the job has printed."""
        with self._storage():
            return self._files.log(key)

    def result(self, key: str) -> Outcome:
        """What the job left in its folder."""
        path = self._files.job(key) / shell.OUTCOME
        try:
            left = shell.outcome(path.read_bytes(), key)
        except FileNotFoundError:
            raise KnowngoodError(f"job {key}: there is no result in {path.parent}") from None
        facts = {name: value for name, value in left.node.items() if name != "name"}
        return Outcome(
            report=left.report,
            node=smoke.fingerprint(str(left.node["name"]), {**facts, "engine": "slurm"}),
            when=left.when,
            gpu=left.report.get("environment", {}).get("sm") is not None,
        )

    def _submit(self, batch: Sequence[Job], there: frozenset[str]) -> dict[str, Status]:
        done = self._run(_sbatch(self._files.give(batch, there)))
        if done.code and slurm_states.unanswered(done.err):
            raise self._unanswered(done)
        array = done.out.strip().partition(";")[0]  # of a federation it says the cluster too
        if done.code or not array.isdecimal():
            status = slurm_states.refusal(done.err or done.out)
            self._final |= {job.key: status for job in batch}
            return {job.key: status for job in batch}
        self._files.keep_array(slurm_script.name(batch), array)
        self._places |= {job.key: (array, index) for index, job in enumerate(batch)}
        return {job.key: Status(state=State.QUEUED, text=f"array {array} of Slurm") for job in batch}

    def _status(self, key: str, place: Place, *, fresh: bool) -> Status:
        """How a job stands: what it left in its folder comes before what Slurm says, or said a while ago."""
        folder, said = self._files.job(key), self._pace.said.get(place)
        status = slurm_states.status(said) if said else self._unknown(key, fresh=fresh)
        status = replace(status, node=status.node or read(folder / shell.BEGAN).strip() or None)
        if (folder / shell.OUTCOME).exists():
            return replace(status, state=State.ENDED, cause=None, text="")
        if (said and status.state is State.QUEUED) or status.cause in _SURE:
            return status
        if end := shell.end(read(folder / shell.END)):
            text = f"{end.text}; {self._files.last_words(key)}"
            return replace(status, state=State.FAILED, cause=end.cause, text=text)
        if status.state is State.ENDED:
            return self._ended(key, status, fresh=fresh)
        if status.cause is Cause.CRASH:
            return replace(status, text=f"{status.text}; {self._files.last_words(key)}")
        return status

    def _unknown(self, key: str, *, fresh: bool) -> Status:
        if not fresh:
            return Status(state=State.QUEUED, text="handed in")
        node = read(self._files.job(key) / shell.BEGAN).strip()
        began = f"; it began on {node} and left nothing" if node else ""
        return Status(state=State.LOST, text=f"the cluster does not know it any more{began}")

    def _ended(self, key: str, status: Status, *, fresh: bool) -> Status:
        """Slurm says it is over, and there is no result: for a while that may be the file system."""
        self._late[key] = self._late.get(key, 0) + fresh
        if self._late[key] <= _LATE:
            return replace(status, state=State.RUNNING, text="it is over, and its result is not to be seen here yet")
        text = f"it is over, and there is no result in {self._files.job(key)}; {self._files.last_words(key)}"
        return replace(status, state=State.FAILED, cause=Cause.CRASH, text=text)

    def _place(self, key: str) -> Place | None:
        """The job's array and index. The array's number is Slurm's alone if we were killed right after sbatch."""
        if key not in self._places and (given := self._files.place(key)):
            name, index = given
            array = self._files.array(name)
            if not array:
                done = self._run(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F"])
                if done.code:
                    raise self._unanswered(done)
                array = next(iter(done.out.split()), "")
                if array:
                    self._files.keep_array(name, array)
            if array:
                self._places[key] = array, index
        return self._places.get(key)

    def _ask(self, places: set[Place]) -> dict[Place, Said]:
        """What squeue says, and sacct of what squeue has forgotten."""
        done = self._run([*slurm_states.SQUEUE, _arrays(places)])
        if done.code and "Invalid job id" not in done.err:
            raise self._unanswered(done)
        found = dict(slurm_states.read(done.out))
        if self._accounts and (forgotten := places - found.keys()):
            done = self._run([*slurm_states.SACCT, _arrays(forgotten)])
            self._accounts = not done.code  # a cluster without accounting says so once
            if self._accounts:
                found = {**dict(slurm_states.read_accounts(done.out)), **found}
        return found

    def _nodes(self) -> frozenset[str]:
        """The cluster's nodes: sbatch refuses a batch that avoids one that there is not."""
        done = self._run(["sinfo", "--noheader", "--Node", "--format=%N"])
        if done.code:
            raise self._unanswered(done)
        return frozenset(done.out.split())

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """The folder on shared storage; that it fails is no word on the jobs."""
        try:
            Path(self.settings.folder).mkdir(exist_ok=True)
            yield
        except OSError as error:
            said = f"the shared folder {self.settings.folder} cannot be used: {error.strerror or error}"
            raise MissingError(f"{self.name}: {said}") from None

    def _unanswered(self, done: Done) -> MissingError:
        hint = ""
        if re.search("authentication|munge", done.err, re.IGNORECASE):
            hint = "; is the clock of this machine right? Slurm refuses credentials that seem old"
        return MissingError(f"{self.name}: Slurm does not answer: {done.err or done.out.strip()}{hint}")


def _sbatch(script: Path) -> list[str]:
    return ["sbatch", "--parsable", str(script)]


def _arrays(places: Iterable[Place]) -> str:
    return "--jobs=" + ",".join(sorted({array for array, _ in places}, key=int))
