"""The executor for this machine: its engine for images, a process for an environment; one job a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from knowngood import smoke
from knowngood.atomic import write_text
from knowngood.errors import KnowngoodError
from knowngood.fleet import local_room, shell
from knowngood.fleet.executor import Outcome
from knowngood.fleet.job import Cause, Job, Needs, State, Status
from knowngood.fleet.local_room import Begin, Machine

_KIND = "kind"


class Work(Protocol):
    """What carries jobs out here. What a job leaves lies in its folder, as `shell` names it."""

    def begin(self, begin: Begin) -> Status | None:
        """Start a job; how it stands when that cannot be."""

    def running(self) -> Mapping[str, tuple[Needs, str | None]]:
        """What is at work, by key: what it takes, and its GPU."""

    def stop(self, key: str) -> None:
        """End it."""

    def log(self, key: str) -> str:
        """What it has printed so far; empty for one that it does not know."""


class Local:
    """See `executor.Executor`. What is queued is known to this program only: started again, it submits it again."""

    def __init__(
        self,
        name: str,
        folder: Path,
        machine: Callable[[], Machine],
        images: Callable[[], Work],
        environments: Callable[[], Work],
    ) -> None:
        self.name = name
        self._folder = folder
        self._machine, self._makers = machine, {"image": images, "environment": environments}
        self._known: Machine | None = None
        self._works: dict[str, Work] = {}
        self._queue: dict[str, Job] = {}
        self._final: dict[str, Status] = {}
        self._running: set[str] = set()

    def submit(self, jobs: Sequence[Job]) -> Mapping[str, Status]:
        """Queue them; as many as there is room for begin at once."""
        known = self.poll(job.key for job in jobs)
        for job in jobs:
            if known[job.key].state is not State.LOST:
                continue
            self._final.pop(job.key, None)
            if why := local_room.refusal(job, self._here):
                self._final[job.key] = Status(state=State.REFUSED, cause=Cause.NO_NODE, text=why)
            else:
                self._queue[job.key] = job
        return self.poll(job.key for job in jobs)

    def rehearse(self, jobs: Sequence[Job]) -> Sequence[str]:
        """The command of each job, as a shell would take it."""
        return [_command(job) for job in jobs]

    def poll(self, keys: Iterable[str]) -> Mapping[str, Status]:
        """How they stand; what there is room for begins."""
        wanted = list(keys)
        self._recall(wanted)
        self._advance()
        return {key: self._status(key) for key in wanted}

    def cancel(self, keys: Iterable[str]) -> None:
        """Take them out of the queue, or end them."""
        for key, status in self.poll(keys).items():
            if status.state.final:
                continue
            self._queue.pop(key, None)
            for work in self._all():
                work.stop(key)
            self._running.discard(key)
            self._final[key] = Status(state=State.CANCELLED, node=self._here.name)

    def logs(self, key: str) -> str:
        """What the job has printed."""
        kept = self._folder / key / "log"
        if kept.exists():
            return kept.read_text(encoding="utf-8", errors="replace")
        return next((text for work in self._all() if (text := work.log(key))), "")

    def result(self, key: str) -> Outcome:
        """What the job left in its folder."""
        path = self._folder / key / shell.OUTCOME
        if not path.exists():
            raise KnowngoodError(f"job {key}: there is no result in {path.parent}")
        left = shell.outcome(path.read_bytes(), key)
        node = dict(left.node)
        if node.get("runtime") == shell.BARE:  # by the script, which has no hash of a name
            node = smoke.fingerprint(str(node["name"]), {"kernel": node["kernel"], "cpus": node["cpus"]})
        gpu = left.report.get("environment", {}).get("sm") is not None
        return Outcome(report=left.report, node=node, when=left.when, gpu=gpu)

    @property
    def _here(self) -> Machine:
        if self._known is None:
            self._known = self._machine()
        return self._known

    def _recall(self, keys: Iterable[str]) -> None:
        """Find out by whom jobs are carried out that another run of this program began."""
        for key in keys:
            path = self._folder / key / _KIND
            if key not in self._final and path.exists():
                self._worker(path.read_text(encoding="utf-8"))

    def _worker(self, kind: str) -> Work:
        if kind not in self._works:
            self._works[kind] = self._makers[kind]()
        return self._works[kind]

    def _all(self) -> list[Work]:
        return list(self._works.values())

    def _advance(self) -> None:
        for job in self._queue.values():
            self._worker(_kind(job))
        running = {key: item for work in self._all() for key, item in work.running().items()}
        for key in running.keys() & self._queue.keys():  # by a program that was killed: it goes on
            del self._queue[key]
        queued = list(self._queue.values())
        for begin in local_room.choose(queued, running.values(), self._here) if queued else []:
            write_text(self._folder / begin.job.key / _KIND, _kind(begin.job))
            refused = self._worker(_kind(begin.job)).begin(begin)
            if refused:
                self._final[begin.job.key] = refused
            else:
                running[begin.job.key] = (begin.job.needs, begin.device)
            del self._queue[begin.job.key]
        self._running = set(running)

    def _status(self, key: str) -> Status:
        folder, node = self._folder / key, self._here.name
        if key in self._final:
            return self._final[key]
        if key in self._queue:
            return Status(state=State.QUEUED, text="waits for room on this machine")
        if (folder / shell.OUTCOME).exists():
            return Status(state=State.ENDED, node=node)
        if key in self._running:
            return Status(state=State.RUNNING, node=node)
        if (folder / shell.END).exists() and (end := shell.end((folder / shell.END).read_text(encoding="utf-8"))):
            return Status(state=State.FAILED, cause=end.cause, text=end.text, node=node)
        return Status(state=State.LOST, text="this machine does not know it")


def _kind(job: Job) -> str:
    return "environment" if job.subject.environment else "image"


def _command(job: Job) -> str:
    if job.subject.environment:
        words = [f"{job.subject.environment}/bin/python", "-m", "pytest", "smoke_tests", *job.command]
        return shlex.join(["timeout", "--kill-after=10", str(job.needs.seconds), *words])
    gpus = job.needs.gpu is not None
    options = smoke.Options(gpus=gpus, seconds=job.needs.seconds, memory=f"{job.needs.memory >> 20}m")
    asked = smoke.inside(job.command, job.needs.seconds)
    run = [word.replace("all", "device=GPU") if gpus and word == "all" else word for word in smoke.run_options(options)]
    return shlex.join(["docker", "run", "--rm", *run, str(job.subject.image), *asked])
