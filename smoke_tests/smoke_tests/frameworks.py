"""A framework's own way of training Qwen2, where one is installed: every check in a process of its own.

A framework replaces methods of transformers' classes, and where kernels cannot run a stand-in of their package is put
in its place (``stand_in.py``; the check's entry says so). Neither may outlive its check.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from smoke_tests import outcomes
from smoke_tests.outcomes import Elsewhere, Failed, NotRun

MODULES = {
    "xtuner": "smoke_tests.framework_xtuner",
    "openrlhf": "smoke_tests.framework_openrlhf",
    "transformer-engine": "smoke_tests.framework_transformer_engine",
}


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Run the check in a child and take over what it found."""
    name = check["detail"]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotRun(f"{name} is not installed") from None
    report["framework"] = f"{name} {version}"
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        argv = [sys.executable, "-u", "-m", "smoke_tests.frameworks", json.dumps(check), str(answer)]
        status = subprocess.run(argv, check=False).returncode
        if not answer.exists():
            raise Failed(f"crash: the framework's process ended with status {status}")
        found = json.loads(answer.read_text(encoding="utf-8"))
    ended = {key: found.pop(key) for key in ("outcome", "reason", "exception", "message") if key in found}
    for key, value in found.items():
        report[key] = value  # noqa: PERF403 - a report tells of every entry
    if ended["outcome"] != outcomes.PASS:
        raise Elsewhere(ended)


def main() -> None:
    """The child: run one check and write what came of it."""
    check, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    report: dict[str, Any] = {}
    ended: dict[str, Any] = {"outcome": outcomes.PASS, "reason": ""}
    try:
        importlib.import_module(MODULES[check["detail"]]).run(check, report)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is an outcome
        traceback.print_exc()
        ended = outcomes.from_exception(error)
    answer.write_text(json.dumps({**report, **ended}), encoding="utf-8")


def dotted(function: Any) -> str:
    """A bound method's function by its full name."""
    plain = getattr(function, "__func__", function)
    return f"{plain.__module__}.{plain.__qualname__}"


if __name__ == "__main__":
    main()
