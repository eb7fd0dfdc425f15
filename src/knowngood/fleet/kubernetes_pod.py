"""What runs in the pod: the suite under a time limit, then its report at the end of the log. Needs only a Python 3.9.

The manifest carries this file's text as the container's command, so it imports nothing of this project. The report
leaves through the log, compressed, between two lines that say of what key it is and what it hashes to; the same two
things go into the pod's termination message, so that a log that was cut is seen to be.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import zlib
from pathlib import Path

JOBS = "/knowngood/jobs.json"
FOLDER = "/tmp/knowngood"  # noqa: S108  # an emptyDir of the pod
TERMINATION = "/dev/termination-log"
TOLD_TO_END = 143
"""Exit code: the pod was told to end before the suite did. The others come with the jobs."""
_LINE = 3000
_PATIENCE = 20


def main(jobs: str = JOBS, folder: str = FOLDER, termination: str = TERMINATION) -> int:
    """Run the job of this pod's index; 0 when the suite came to an end and its report is out, whatever it says."""
    told = json.loads(Path(jobs).read_text(encoding="utf-8"))
    job = told["jobs"][int(os.environ.get("JOB_COMPLETION_INDEX", "0"))]
    Path(folder).mkdir(parents=True, exist_ok=True)
    report = Path(folder) / "report.json"
    predictions = Path(folder) / "predictions.json"
    predictions.write_text(json.dumps(told["predictions"][job["predictions"]]), encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", told["suite"], *job["command"]]
    argv += ["--report", str(report), "--predictions", str(predictions)]
    code, stopped = run(argv, told["seconds"], told["timed-out"])
    if stopped or code < 0 or not report.exists():  # what a suite leaves that was stopped is no verdict on the image
        return stopped or (128 - code if code < 0 else told["no-report"])
    digest = deliver(report.read_bytes(), job["key"], told["begin"], told["end"])
    said = {"key": job["key"], "sha256": digest, "exit": code, "node": node()}
    with contextlib.suppress(OSError):  # outside Kubernetes there is none
        Path(termination).write_text(json.dumps(said), encoding="utf-8")
    return 0


def run(argv: list[str], seconds: float, timed_out: int) -> tuple[int, int]:
    """The suite's exit code, and ours where it had to be stopped (else 0). It is told before it is killed."""
    suite = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    stopped = []

    def stop(why: int) -> None:
        stopped.append(why)
        suite.terminate()

    signal.signal(signal.SIGTERM, lambda *_: stop(TOLD_TO_END))
    try:
        suite.wait(seconds)
    except subprocess.TimeoutExpired:
        stop(timed_out)
    with contextlib.suppress(subprocess.TimeoutExpired):
        suite.wait(_PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)  # and what it started
    return suite.wait(), stopped[0] if stopped else 0


def deliver(report: bytes, key: str, begin: str, end: str) -> str:
    """Print the report; its digest."""
    digest = hashlib.sha256(report).hexdigest()
    text = base64.b64encode(zlib.compress(report, 9)).decode()
    lines = [text[place : place + _LINE] for place in range(0, len(text), _LINE)]
    print("", f"{begin} {key} {digest} {len(lines)}", *lines, f"{end} {key}", sep="\n", flush=True)
    return digest


def node() -> dict[str, object]:
    """What may matter of the machine; the executor adds its name as a hash."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "memory": memory}


if __name__ == "__main__":
    sys.exit(main())
