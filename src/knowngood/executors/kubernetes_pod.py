"""The program in the pod: runs the suite under a time limit, then prints its report. It needs only a Python 3.9.

The manifest contains this file's text as the container's command, so the file imports nothing from this project. The
report leaves through the log, compressed, between two lines with its job's key and its digest. Both are also in the
pod's termination message, so that a log that was cut off is noticed.
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
SUITE = "/knowngood/suite"
FOLDER = "/tmp/knowngood"  # noqa: S108  # an emptyDir of the pod
TERMINATION = "/dev/termination-log"
STOPPED = 143
"""Exit code: the pod was stopped before the suite ended. The other codes are in the jobs file."""
_LINE_LENGTH = 3000
_STOP_SECONDS = 20


def run_pod_job(jobs: str = JOBS, suite: str = SUITE, folder: str = FOLDER, termination: str = TERMINATION) -> int:
    """Run the job of this pod's index. Returns 0 when the suite ran to its end, red or green, and its report is out."""
    payload = json.loads(Path(jobs).read_text(encoding="utf-8"))
    job = payload["jobs"][int(os.environ.get("JOB_COMPLETION_INDEX", "0"))]
    Path(folder).mkdir(parents=True, exist_ok=True)
    report = Path(folder) / "report.json"
    predictions = Path(folder) / "predictions.json"
    unpack_suite(Path(suite).read_text(encoding="ascii"), Path(folder))
    predictions.write_text(json.dumps(payload["predictions"][job["predictions"]]), encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", f"{folder}/smoke_tests", *job["command"]]
    argv += ["--report", str(report), "--predictions", str(predictions)]
    code, stopped = run_pod_suite(argv, payload["seconds"], payload["timed-out"])
    if stopped or code < 0 or not report.exists():  # a report of a suite that was stopped says nothing about the image
        return stopped or (128 - code if code < 0 else payload["no-report"])
    digest = deliver_report(report.read_bytes(), job["key"], payload["begin"], payload["end"])
    message = {"key": job["key"], "sha256": digest, "exit": code, "node": node_facts()}
    with contextlib.suppress(OSError):  # outside Kubernetes there is no such file
        Path(termination).write_text(json.dumps(message), encoding="utf-8")
    return 0


def unpack_suite(text: str, folder: Path) -> None:
    """Write the files of the suite, which the manifest carries as one word, below a folder."""
    for name, content in json.loads(zlib.decompress(base64.b64decode(text))).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def run_pod_suite(argv: list[str], seconds: float, timed_out: int) -> tuple[int, int]:
    """Return the suite's exit code, and ours if it had to be stopped, else 0. It can end itself before it is killed."""
    suite = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    stopped = []

    def stop(why: int) -> None:
        stopped.append(why)
        suite.terminate()

    signal.signal(signal.SIGTERM, lambda *_: stop(STOPPED))
    try:
        suite.wait(seconds)
    except subprocess.TimeoutExpired:
        stop(timed_out)
    with contextlib.suppress(subprocess.TimeoutExpired):
        suite.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)  # and what it started
    return suite.wait(), stopped[0] if stopped else 0


def deliver_report(report: bytes, key: str, begin: str, end: str) -> str:
    """Print the report and return its digest."""
    digest = hashlib.sha256(report).hexdigest()
    text = base64.b64encode(zlib.compress(report, 9)).decode()
    lines = [text[place : place + _LINE_LENGTH] for place in range(0, len(text), _LINE_LENGTH)]
    print("", f"{begin} {key} {digest} {len(lines)}", *lines, f"{end} {key}", sep="\n", flush=True)
    return digest


def node_facts() -> dict[str, object]:
    """Return facts about the machine that may matter; the executor adds the name as a hash."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "memory": memory}


if __name__ == "__main__":
    sys.exit(run_pod_job())
