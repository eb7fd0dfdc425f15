"""``python -m speed_tests --out report.json``: measure points, each in a process of its own, and write the report."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from smoke_tests import environment, nvml, report
from smoke_tests.outcomes import FAIL, NOT_RUN, PASS
from smoke_tests.settings import SETTINGS
from speed_tests.points import PLANS, Point, choose_points, parse_point

SCHEMA = "knowngood/speed-report/1"
_LOSS_TOLERANCE = 0.02
"""By how much the first loss may differ between points of one shape, length and layout; it is near 12."""


def main() -> int:
    """Measure; 0 if every point was measured, 1 if one was not or none was given time, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m speed_tests", description="How fast steps of real sizes are.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report (JSON), written again after each point")
    parser.add_argument("--plan", action="append", default=[], choices=list(PLANS), help="points by the name of a plan")
    parser.add_argument("--point", action="append", default=[], metavar="ID", help="one more point, by its id")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin nothing that may end after this time")
    parser.add_argument("--point-seconds", type=float, default=240, metavar="SECONDS", help="for one point, at most")
    parser.add_argument("--list", action="store_true", help="print the ids of the points and measure nothing")
    arguments = parser.parse_args()
    try:
        points = choose_points(arguments.plan, arguments.point)
    except ValueError as error:
        parser.error(str(error))
    if not points:
        parser.error(f"name a --plan ({', '.join(PLANS)}) or a --point")
    if arguments.list:
        print("\n".join(map(str, points)))
        return 0
    made = measure(points, arguments.out, arguments.budget, arguments.point_seconds)
    return 0 if made["verdict"]["ok"] else 1


def measure(points: list[Point], file: Path | None, budget: float | None, most: float) -> dict[str, Any]:
    """Measure the parts of the machine, then the points, and write the report after each."""
    started, clock = _now(), time.monotonic()
    end = clock + budget if budget else float("inf")
    made: dict[str, Any] = {"schema": SCHEMA, "suite_hash": suite_hash(), "started": started, "checks": []}
    made["arguments"] = [word for point in points for word in ("--point", str(point))]
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:12]  # evidence is public
    made["node"] = {"name": name, "kernel": platform.release(), "cpus": os.cpu_count()}
    folder = tempfile.mkdtemp()
    try:
        made["environment"] = {**environment.static(), "driver": nvml.driver(), **_describe()}
        made["parts"] = _run_trial("parts", {}, most)
        made["points"] = {}
        for point in points:
            left = end - time.monotonic()
            missing = _find_missing(point)
            if made["environment"]["sm"] is None and point.shape != "tiny":
                result = {
                    "outcome": NOT_RUN,
                    "reason": "torch sees no GPU, and on a CPU only the tiny shape is measured",
                }
            elif missing:
                result = {"outcome": NOT_RUN, "reason": f"{missing} cannot be imported"}
            elif left < 45:
                result = {"outcome": NOT_RUN, "reason": "the time given to the run was used up"}
            else:
                result = _run_trial(str(point), _variables(point, folder), min(most, left))
            made["points"][str(point)] = result
            _compare_losses(made["points"])
            print(_line(str(point), result), flush=True)
            _write(file, made, clock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # compilers that outlive their point may still write there
    _write(file, made, clock)
    print(made["verdict"]["text"])
    return made


def suite_hash() -> str:
    """One hash over these files and those of the smoke suite that they use."""
    own = environment.suite_hash(Path(__file__).parent)
    return hashlib.sha256(f"{own} {environment.suite_hash()}".encode()).hexdigest()


def _describe() -> dict[str, Any]:
    words = "import json; from smoke_tests import environment as e; r = {}; e.run({}, r); print(json.dumps(r))"
    done = _start(["-c", words], {}, 120)
    if done.returncode:
        sys.exit(f"torch or transformers cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    described: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["environment"]
    return described


def _find_missing(point: Point) -> str | None:
    """Return the module that a point needs and that is not there."""
    setting = SETTINGS.get(point.setting)
    loops = {"": None, "trainer": "accelerate"}
    needed = [setting and setting.module, "peft" if point.tuned else None, loops.get(point.loop, point.loop)]
    for module in filter(None, needed):
        try:
            present = importlib.util.find_spec(module) is not None
        except ImportError:
            present = False
        if not present:
            return module
    return None


def _variables(point: Point, folder: str) -> dict[str, str]:
    """Return the variables of a point: caches of compilers that are empty, or those of the same point before."""
    name = hashlib.sha256(str(point).replace("/warm", "").encode()).hexdigest()[:16]
    caches = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {key: f"{folder}/{name}/{place}" for key, place in caches.items()}


def _run_trial(what: str, variables: dict[str, str], seconds: float) -> dict[str, Any]:
    others = nvml.processes()  # this process has none on the card
    clock = time.monotonic()
    try:
        done = _start([*_words(what), what], variables, seconds)
    except subprocess.TimeoutExpired:
        return {"outcome": NOT_RUN, "reason": f"it did not end within {seconds:.0f} s"}
    lines = done.stdout.strip().splitlines()
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        result = {"outcome": FAIL, "reason": f"exit code {done.returncode}", "message": said[:500]}
    if result["outcome"] != PASS:
        print(done.stderr[-3000:], file=sys.stderr)
    if others and result["outcome"] == PASS:
        result["faults"].append("another process was on the card before")
    return {**result, "seconds": round(time.monotonic() - clock, 1)}


def _words(what: str) -> list[str]:
    """Return how Python starts a trial; unsloth patches what is imported after it."""
    if "unsloth" not in what.split("/"):
        return ["-m", "speed_tests.trial"]
    return ["-c", "import unsloth, runpy; runpy.run_module('speed_tests.trial', run_name='__main__')"]


def _start(words: list[str], variables: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, offline and with the suites on its path."""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]))
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": paths, **variables}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **settings},
    )


def _compare_losses(points: dict[str, dict[str, Any]]) -> None:
    """Add a fault to points whose first loss is not that of the others on the same shape, length and layout."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for name, result in points.items():
        point = parse_point(name)
        if result["outcome"] == PASS:
            key = (point.shape, point.length, point.rows, point.layout, point.tuned)
            groups.setdefault(key, []).append(result)
    for results in groups.values():
        middle = sorted(result["losses"][0] for result in results)[len(results) // 2]
        for result in results:
            result["faults"] = [fault for fault in result["faults"] if not fault.startswith("its first loss")]
            if not abs(result["losses"][0] - middle) < _LOSS_TOLERANCE:
                result["faults"].append(f"its first loss is {result['losses'][0]}, that of others {middle}")


def _write(file: Path | None, made: dict[str, Any], clock: float) -> None:
    outcomes = [result["outcome"] for result in made["points"].values()]
    measured, faulty = outcomes.count(PASS), sum(bool(one.get("faults")) for one in made["points"].values())
    text = f"{measured} of {len(outcomes)} points measured" + (f", {faulty} not to be compared" if faulty else "")
    made["verdict"] = {"ok": measured == len(outcomes), "domain": "none" if measured else "suite", "text": text}
    made.update(finished=_now(), seconds=round(time.monotonic() - clock, 1))
    if file is not None:
        report.write(file, made)


def _line(name: str, result: dict[str, Any]) -> str:
    if result["outcome"] != PASS:
        return f"{name}: {result['outcome']}: {result['reason']} {result.get('message', '')}"[:300]
    share = result["share_of_limit"]
    words = [f"{result['tokens_a_second']:.0f} tokens/s", f"{result['step_ms']} ms"]
    words += [f"{share:.1%} of the limit"] if share else []
    words += [f"{result['share_of_product']:.1%} of a product", f"first step {result['first_step_seconds']} s"]
    words += [f"{result['peak_bytes'] / 2**30:.1f} GiB"] if result["peak_bytes"] else []
    return f"{name}: {', '.join([*words, *result['families'], *result['faults']])} ({result['seconds']} s)"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main())
