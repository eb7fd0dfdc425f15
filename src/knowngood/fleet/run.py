"""Jobs carried out by an executor: submitted, waited for, collected, tried elsewhere, judged.

One job's failure or refusal stops no other. Whatever has ended is kept at once; a program that was killed, or that
stopped waiting, takes up its jobs where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from knowngood.errors import KnowngoodError, MissingError
from knowngood.evidence import Evidence, Where
from knowngood.fleet import course
from knowngood.fleet.course import End, Line, Try, Verdict
from knowngood.fleet.executor import Executor, Outcome
from knowngood.fleet.job import Job, State, Status
from knowngood.fleet.ledger import Seen
from knowngood.fleet.state import State as Kept

SHORTEST = 0.25
"""Seconds between two polls at first; each that brings nothing new makes it half as much again."""
PATIENCE = 600.0
"""Seconds for which an engine may not answer, once the jobs are with it."""


@dataclass(kw_only=True)
class Run:
    """The jobs of one command, and who carries them out."""

    executor: Executor
    kept: Kept
    store: Callable[[Evidence], str]
    """Keeps a run of the suite, however often it is given; returns its file's name for people."""
    say: Callable[[str], None]
    wait: float
    """Seconds until the rest is left to the engine."""
    longest: float = 0.5
    """Seconds between two polls at most."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    polls: int = 0
    _works: dict[str, Job] = field(default_factory=dict)
    """What is not settled, as it was asked for, by the key of its present try."""
    _new: dict[str, Job] = field(default_factory=dict)
    """Tries that are not handed in yet."""

    def run(self, jobs: Sequence[Job]) -> list[Line]:
        """Every job's line, in the order given. `MissingError` when the engine does not answer."""
        lines: dict[str, Line] = {}
        for work in jobs:
            self._begin(work)
        self.kept.save()
        said = self._submit()
        deadline, pause = self.clock() + self.wait, SHORTEST
        silent = self.clock()
        while self._works:
            moved = self._settle(said, lines)
            self.kept.save()
            if not self._works or self.clock() >= deadline:
                break
            pause = SHORTEST if moved else min(pause * 1.5, self.longest)
            self.sleep(min(pause, max(0.0, deadline - self.clock())))
            try:
                said = self._ask()
                silent = self.clock()
            except MissingError as error:
                if self.clock() - silent > PATIENCE:
                    raise MissingError(f"{error}; the jobs go on, and the same command takes them up again") from None
                self.say(f"{error}; asks again")
                said = {}
        for key, work in self._works.items():
            lines[work.key] = self._waiting(work, said.get(key))
        return [lines[work.key] for work in jobs]

    def _begin(self, work: Job) -> None:
        job = self.kept.begin(work).job(work)
        self._works[job.key] = work
        self._new[job.key] = job

    def _submit(self) -> Mapping[str, Status]:
        """Hand in what is new; it stays new until the engine has answered."""
        if not self._new:
            return {}
        self.say(f"{len(self._new)} job{'s' * (len(self._new) > 1)} to {self.executor.name}")
        said = self.executor.submit(list(self._new.values()))
        self._new.clear()
        return said

    def _ask(self) -> Mapping[str, Status]:
        self.polls += 1
        old = self._works.keys() - self._new.keys()
        return {**(self.executor.poll(sorted(old)) if old else {}), **self._submit()}

    def _settle(self, said: Mapping[str, Status], lines: dict[str, Line]) -> bool:
        """Collect what has ended; whether anything has."""
        ended = [key for key in self._works if key in said and said[key].state.final and key not in self._new]
        for key in ended:
            self._end(key, said[key], lines)
        if ended:
            self.say(f"{len(lines)} done, {len(self._works)} to go")
        return bool(ended)

    def _end(self, key: str, status: Status, lines: dict[str, Line]) -> None:
        work = self._works[key]
        track = self.kept.tracks[work.key]
        try:
            one = self._try(track.job(work), status)
        except MissingError as error:  # the result is there, and whoever has it does not answer
            self.say(f"{error}; asks again")
            return
        del self._works[key]
        if status.state is State.REFUSED:
            self.executor.cancel([key])  # some engines would hold it for ever
        tries = (*track.tries, one)
        match course.decide(tries):
            case Verdict() as verdict:
                self.kept.tracks[work.key] = track.model_copy(update={"tries": tries, "settled": True})
                lines[work.key] = Line(job=work, verdict=verdict, tries=tries)
            case again:
                self.say(f"{work.cell}: once more: {again.because}")
                avoid = tuple(sorted(again.avoid))
                update = {"tries": tries, "attempt": track.attempt + 1, "avoid": avoid}
                self.kept.tracks[work.key] = track.model_copy(update=update)
                self._begin(work)

    def _try(self, job: Job, status: Status) -> Try:
        """What came of a try; the run of the suite is kept."""
        seen = Try(
            attempt=job.attempt,
            avoid=tuple(sorted(job.avoid)),
            state=status.state,
            cause=status.cause,
            text=status.text,
            node=status.node,
            queued=status.queued,
            ran=status.ran,
        )
        if status.state is not State.ENDED:
            if seen.red:
                self._note(job, seen, good=False, when="")
            return seen
        try:
            outcome = self.executor.result(job.key)
            run = evidence(job, outcome)
            path = self.store(run)
        except MissingError:
            raise
        except KnowngoodError as error:
            return seen.model_copy(update={"domain": course.DAMAGED, "text": str(error)})
        verdict = run.report["verdict"]
        domain = "none" if run.ok else str(verdict["domain"])
        seen = seen.model_copy(update={"domain": domain, "text": str(verdict["text"]), "evidence": path})
        if seen.good or seen.red:
            self._note(job, seen, good=seen.good, when=outcome.when)
        return seen

    def _note(self, job: Job, seen: Try, *, good: bool, when: str) -> None:
        """Into the ledger, where the engine says which node it was."""
        if seen.node:
            one = Seen(node=seen.node, cell=job.cell, content=job.subject.content, good=good, text=seen.text, when=when)
            self.kept.ledger = self.kept.ledger.with_(one)

    def _waiting(self, work: Job, status: Status | None) -> Line:
        told = f"{status.state}: {status.text}".removesuffix(": ") if status else "with an engine that does not answer"
        verdict = Verdict(end=End.WAITING, text=f"still {told}; the same command takes it up again")
        return Line(job=work, verdict=verdict, tries=self.kept.tracks[work.key].tries)


def evidence(job: Job, outcome: Outcome) -> Evidence:
    """An outcome as evidence; `KnowngoodError` when it is another suite's."""
    found = Evidence(
        cell=job.cell,
        where=_where(job, outcome),
        image=None if job.subject.environment else job.subject.content,
        when=outcome.when,
        node=outcome.node,
        command=("python", "-m", "pytest", "smoke_tests", *job.command),
        report=outcome.report,
    )
    if found.suite != job.suite:
        raise KnowngoodError(
            f"{job.cell}: the report is of the suite {found.suite[:12]}, {job.suite[:12]} was asked for; "
            "is the image older than this checkout?"
        )
    return found


def _where(job: Job, outcome: Outcome) -> Where:
    if job.subject.environment:
        return Where.BARE
    return Where.CONTAINER_GPU if outcome.gpu else Where.CONTAINER_CPU
