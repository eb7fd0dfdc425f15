"""Starts one process for each rank, collects what each answers, and ends them all when one is lost.

The ways of training get processes of their own, because they replace parts of torch and transformers, and because an
error leaves the other ranks waiting. The checks of one way share them: importing is most of a check's time on a CPU.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke_tests.outcomes import FAIL
from smoke_tests.runner import START_TIMEOUT, TAIL, describe_death, worker_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smoke_tests.catalogue import Check

RANK_MODULE = "parallel_tests.rank_worker"
GRACE = 5.0  # seconds for the others to answer after one rank has failed
STACK_WAIT = 3.0  # seconds that a rank has to write down where it is


class Rank:
    """The process of one rank, with its log and what it has answered."""

    def __init__(self, number: int, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.number, self.log = number, folder / f"rank-{number}.log"
        self.answers, theirs = os.pipe()
        self.unread, self.ended, self.ended_at = b"", False, math.inf
        self.lines: list[dict[str, Any]] = []
        self.known: dict[str, Any] = {}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command[:3], str(theirs), *command[3:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                env=environment,
                cwd=folder,  # Python looks for modules in the working folder first
                start_new_session=True,
            )
        os.close(theirs)

    def receive(self) -> None:
        """Take what is in the pipe; an empty pipe says that the process has closed it."""
        block = os.read(self.answers, 1 << 16)
        if not block:
            self.ended, self.ended_at = True, time.monotonic()
        *lines, self.unread = (self.unread + block).split(b"\n")
        for line in map(json.loads, lines):
            if "known" in line:
                self.known.update(line["known"])
            else:
                self.lines.append({**line, "at": time.monotonic()})
                self.known = {}  # what comes next is of the next check

    def close(self) -> None:
        """End the process and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.answers)

    def stack(self) -> str:
        """Where the process is, as its fault handler says."""
        before = self.log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
        deadline, frame = time.monotonic() + STACK_WAIT, None
        while frame is None and time.monotonic() < deadline:
            time.sleep(0.05)
            frame = re.search(r'File "([^"]*)", line (\d+) in (\S+)', self.tail(before))
        return f"{frame[3]} ({Path(frame[1]).name}:{frame[2]})" if frame else "an unknown place"

    def tail(self, start: int = 0) -> str:
        """The end of what the process has printed."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode("utf-8", "replace")[-TAIL:]


class Group:
    """The processes of all ranks, for the checks of one way of training."""

    def __init__(self, size: int, backend: str, checks: list[Check], module: str = RANK_MODULE) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="parallel-ranks-")
        folder = Path(self.scratch.name)
        command = [sys.executable, "-m", module, backend]
        command.append(json.dumps([check.__dict__ for check in checks]))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size)}
        self.ranks = []
        for number in range(size):
            environment = {**worker_environment(self.scratch.name), **place}
            environment.update(RANK=str(number), LOCAL_RANK=str(number), LOCAL_WORLD_SIZE=str(size))
            environment["NCCL_DEBUG_FILE"] = str(folder / f"nccl-{number}.log")
            environment.setdefault("NCCL_DEBUG", "INFO")
            for family in ("GLOO", "NCCL"):  # one machine: no other interface is needed, and a container may have none
                environment.setdefault(f"{family}_SOCKET_IFNAME", "lo")
            self.ranks.append(Rank(number, command, environment, folder))

    def collect(self, timeout: float) -> dict[int, dict[str, Any]]:
        """Wait for the next line of every rank; the lines by rank, without those of ranks that gave none.

        It ends early when a rank is lost or has raised an error, because the others may wait for it.
        """
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                if not rank.ended:
                    selector.register(rank.answers, selectors.EVENT_READ, rank)
            while time.monotonic() < deadline and any(not rank.lines and not rank.ended for rank in self.ranks):
                for key, _ in selector.select(min(1.0, max(0.0, deadline - time.monotonic()))):
                    key.data.receive()
                    if key.data.ended:
                        selector.unregister(key.fileobj)
                lost = [rank for rank in self.ranks if rank.ended and not rank.lines]
                if lost or any(rank.lines and _left(rank.lines[0]) for rank in self.ranks):
                    deadline = min(deadline, time.monotonic() + GRACE)
        return {rank.number: rank.lines.pop(0) for rank in self.ranks if rank.lines}

    def describe_silence(self, number: int, timeout: float) -> str:
        """Say how a rank that gave no answer ended, or where it is."""
        rank = self.ranks[number]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return describe_death(rank.process.wait(timeout=1.0 if rank.ended else 0.05), timeout)
        return f"no answer; it is in {rank.stack()}"

    def close(self) -> None:
        """Kill the ranks that still run, and remove the folder that they shared."""
        for rank in self.ranks:
            rank.close()
        self.scratch.cleanup()


def run_checks(
    checks: list[Check], size: int, backend: str, module: str = RANK_MODULE
) -> Iterator[tuple[Check, dict[int, dict[str, Any]]]]:
    """Run the checks of one way of training; each with what every rank answered.

    A rank that gave no answer has one with the outcome ``fail`` and ``silent``. After that the rest of the checks run
    in new processes.
    """
    rest = list(checks)
    while rest:
        group = Group(size, backend, rest, module)
        try:
            ready = group.collect(START_TIMEOUT)
            alive = len(ready) == size
            if not alive:
                yield rest.pop(0), _with_silent(group, {}, START_TIMEOUT)
            while rest and alive:
                check = rest.pop(0)
                results = group.collect(check.timeout)
                alive = len(results) == size and not any(map(_left, results.values()))
                yield check, _with_silent(group, results, check.timeout)
        finally:
            group.close()


def _with_silent(group: Group, results: dict[int, dict[str, Any]], timeout: float) -> dict[int, dict[str, Any]]:
    whole = dict(results)
    for rank in group.ranks:
        if rank.number not in whole:
            reason = group.describe_silence(rank.number, timeout)
            whole[rank.number] = {**rank.known, "outcome": FAIL, "reason": reason, "silent": True}
            whole[rank.number]["at"] = rank.ended_at
            whole[rank.number]["log_tail"] = rank.tail()
    return dict(sorted(whole.items()))


def _left(result: dict[str, Any]) -> bool:
    """Whether a rank left the check where the others may wait for it."""
    return bool(result.get("exception") or result.get("left"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
