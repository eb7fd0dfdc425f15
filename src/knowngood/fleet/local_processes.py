"""Jobs in environments of this machine: each a process of its own session, which outlives this program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from knowngood.atomic import write_text
from knowngood.engines import daemon
from knowngood.fleet import shell
from knowngood.fleet.job import Cause, Needs, State, Status
from knowngood.fleet.local_containers import LOG
from knowngood.fleet.local_room import Begin

_PROCESS, _NEEDS = "process.json", "needs.json"


class Processes:
    """See `local.Work`."""

    def __init__(self, suite: Path, folder: Path) -> None:
        self._suite, self._folder = suite, folder

    def begin(self, begin: Begin) -> Status | None:
        """Start a job; how it stands when that cannot be."""
        job, folder = begin.job, self._folder / begin.job.key
        python = f"{job.subject.environment}/bin/python"
        if not os.access(python, os.X_OK):
            return Status(state=State.FAILED, cause=Cause.CRASH, text=f"there is no environment: {python} does not run")
        way = shell.Way(name=shell.BARE, python=python, suite=str(self._suite), folder='"$work"')
        write_text(folder / shell.PREDICTIONS, json.dumps(job.predictions))
        write_text(folder / shell.SCRIPT, shell.script(job, str(folder), way))
        write_text(folder / _NEEDS, json.dumps({"needs": vars(job.needs), "device": begin.device}))
        with (folder / LOG).open("w", encoding="utf-8") as log:
            child = subprocess.Popen(
                ["sh", str(folder / shell.SCRIPT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": begin.device or ""},
            )
        daemon.note(child, folder / _PROCESS)
        return None

    def running(self) -> dict[str, tuple[Needs, str | None]]:
        """What is at work, by key."""
        found = {}
        for path in self._folder.glob(f"*/{_PROCESS}"):
            if daemon.load(path):
                stored = json.loads((path.parent / _NEEDS).read_text(encoding="utf-8"))
                found[path.parent.name] = (Needs(**stored["needs"]), stored["device"])
                continue
            path.unlink()
            if not any((path.parent / name).exists() for name in (shell.OUTCOME, shell.END)):
                write_text(path.parent / shell.END, f"{Cause.CRASH}\nits process was killed\n")
        return found

    def stop(self, key: str) -> None:
        """End it and what it started."""
        path = self._folder / key / _PROCESS
        if process := daemon.load(path):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        path.unlink(missing_ok=True)

    def log(self, key: str) -> str:
        """What it has printed so far."""
        path = self._folder / key / LOG
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
