"""Runs checks in a worker process that may hang, crash or eat the memory, and is then replaced."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smoke_tests.outcomes import FAIL

START_TIMEOUT = 180.0  # importing torch from a cold disk
TAIL = 2000  # characters of a dead worker's output that are kept


class Runner:
    """A worker process and the right to replace it."""

    def __init__(self, command: list[str] | None = None) -> None:
        self.command = command or [sys.executable, "-u", "-m", "smoke_tests.worker"]
        self.scratch = tempfile.TemporaryDirectory(prefix="smoke-")
        self.log = Path(self.scratch.name, "worker.log")
        self.process: subprocess.Popen[bytes] | None = None
        self.answers = -1
        self.unread = b""

    def run(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The worker's result, or what is known of a worker that gave none."""
        started, known = time.monotonic(), {}
        self.log.touch()
        logged = self.log.stat().st_size
        if self.process is None or self.process.poll() is not None:
            self._start()
            timeout_now, ready = START_TIMEOUT, self._read(START_TIMEOUT)
        else:
            timeout_now, ready = timeout, {}
        result = None
        if ready is not None:
            timeout_now, deadline = timeout, time.monotonic() + timeout
            self._send(request)
            while result is None or "outcome" not in result:
                result = self._read(deadline - time.monotonic())
                if result is None:
                    break
                known.update(result.get("known", {}))
        alive = result is not None
        result = result or {**known, **self._post_mortem(time.monotonic() - started, timeout_now)}
        if result["outcome"] == FAIL:
            result.setdefault("log_tail", self._tail(logged))
            if not alive or result.get("exception"):  # dead, or poisoned by an error
                self.close()
        return result

    def kill(self) -> None:
        """Kill the worker and everything it started; a check that it is at ends as a crash."""
        if self.process is not None:
            _kill_group(self.process)

    def close(self) -> None:
        """End the worker and everything it started."""
        if self.process is None:
            return
        _kill_group(self.process)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        os.close(self.answers)
        self.process = None

    def _start(self) -> None:
        self.close()
        self.unread = b""
        self.answers, theirs = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(theirs,),
                env=worker_environment(self.scratch.name),
                start_new_session=True,
            )
        os.close(theirs)

    def _send(self, request: dict[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer that does not come says it
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self, timeout: float) -> dict[str, Any] | None:
        """The next line of the worker's answers; None if it died or gave none in time."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(self.answers, 1 << 16) if ready else b""
            if not block:
                return None
            self.unread += block
        line, _, self.unread = self.unread.partition(b"\n")
        return json.loads(line)

    def _post_mortem(self, seconds: float, timeout: float) -> dict[str, Any]:
        assert self.process is not None
        try:
            status: int | None = self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            status = None
        reason = describe_death(status, timeout)
        return {"outcome": FAIL, "reason": reason, "seconds": round(seconds, 3), "peak_memory": None}

    def _tail(self, start: int) -> str:
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode("utf-8", "replace")[-TAIL:]


def describe_death(status: int | None, timeout: float) -> str:
    """Say how a worker that gave no answer ended; None is a worker that still runs."""
    if status is None:
        return f"hang: no answer within {timeout:.0f} s; killed"
    if status == -signal.SIGKILL:
        return "crash: killed by SIGKILL, as the kernel does when the host's memory is exhausted"
    if status < 0:
        return f"crash: {signal.Signals(-status).name}"
    return f"crash: the worker exited with status {status} and no answer"


def worker_environment(scratch: str) -> dict[str, str]:
    """The environment of a worker: offline, one OpenMP thread, caches in places that can be written."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    environment.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    # measured: two OpenMP threads on two busy cores train the tiny model 30 times slower than one
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Inductor starts a process for each core, up to 32, which every worker of the suite would have
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "8")
    # the default paths ask for the user's name, which a container's bare uid does not have
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{scratch}/inductor")
    environment.setdefault("TRITON_CACHE_DIR", f"{scratch}/triton")
    return environment


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
