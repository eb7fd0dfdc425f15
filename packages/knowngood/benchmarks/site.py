"""Measure the site with 500 cells and 5,000 runs: seconds to write it, bytes of its first page.

    python benchmarks/site.py [--cells N] [--runs N] [--json FILE]

The runs are this project's own, each assigned to another cell and day. They keep their whole reports, about 300 KB per
file, so it needs 2 GB for temporary files. Three times are measured: with nothing cached, with one run added (as after
a nightly run), and with nothing changed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import run
from typing import Any

from knowngood.core import cell as cells
from knowngood.evidence import sealed_files

ROOT = Path(__file__).resolve().parents[3]
LIMITS = {"all anew, seconds": 10, "one run more, seconds": 10, "nothing new, seconds": 10, "first page, bytes": 300e3}
GPUS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_75", "sm_70")


def project(folder: Path, count: int) -> list[str]:
    """Write a project with `count` cells; return their ids."""
    releases = list(json.loads((ROOT / "packages/knowngood-facts/facts/transformers.json").read_bytes())["releases"])
    torches = ("2.11.0", "2.10.0", "2.6.0")
    chosen = list(itertools.islice(itertools.product(torches, GPUS, releases), count))
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    begin = text.index("\ncells:\n")
    entries = [
        f"  - {{gpu: {gpu}, torch: {torch}, transformers: {release}, base: debian12}}" for torch, gpu, release in chosen
    ]
    (folder / "matrix.yaml").write_text("\n".join([text[:begin], "cells:", *entries, ""]), encoding="utf-8")
    (folder / "templates").symlink_to(ROOT / "templates")
    cuda = {"2.11.0": ("13.0", "3.6.0"), "2.10.0": ("12.8", "3.6.0"), "2.6.0": ("12.4", "3.2.0")}
    return [
        str(
            cells.Cell(
                gpu=gpu, cuda=cuda[torch][0], torch=torch, triton=cuda[torch][1], transformers=release, python="3.11"
            )
        )
        for torch, gpu, release in chosen
    ]


def evidence(folder: Path, names: list[str], count: int, *, whole: bool = True) -> int:
    """Write `count` runs with the reports of real ones, or without most of their checks; return their bytes."""
    real = [json.loads(path.read_bytes()) for path in sorted((ROOT / "evidence").glob("sm*/*.json"))]
    if not whole:
        for stored in real:
            stored["report"]["checks"] = few(stored["report"]["checks"])
    reports = [json.dumps(stored["report"], indent=1) for stored in real]
    written = 0
    for number in range(count):
        stored = {key: value for key, value in real[number % len(real)].items() if key != "report"}
        suite = real[number % len(real)]["report"]["suite_hash"]
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number // len(names), seconds=number)
        stored |= {"cell": names[number % len(names)], "when": when.isoformat(), "where": "container-gpu"}
        stored["image"] = f"sha256:{number // 3000:064x}"
        data = f'{json.dumps(stored)[:-1]}, "report": {reports[number % len(real)]}}}\n'.encode()
        path = (
            folder
            / "evidence"
            / stored["cell"]
            / sealed_files.sealed_name(f"{when.strftime('%Y%m%dT%H%M%SZ')}-{suite[:12]}", data)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        written += path.write_bytes(data)
    return written


def few(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first check of each setting and outcome, and the checks with figures."""
    first = {(check["setting"], check["outcome"]): number for number, check in reversed(list(enumerate(checks)))}
    return [it for number, it in enumerate(checks) if it["topic"] == "speed" or number in first.values()]


def make(folder: Path) -> tuple[float, float]:
    """Run `knowngood site`; return its elapsed seconds and the processor seconds of all its processes."""
    kept = {**os.environ, "KNOWNGOOD_CACHE": str(folder / "cache")}
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "knowngood", "site", "-o", "public"]
    output = run(program, cwd=folder, env=kept, check=True, capture_output=True, text=True).stdout
    print("  " + output.splitlines()[0], file=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_page(site: Path) -> int:
    """Return the bytes that a browser loads for one answer: the page, its files, and the largest GPU table."""
    text = (site / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', text)
    tables = [path.stat().st_size for path in (site / "data").glob("sm_*.js")]
    return len(text.encode()) + sum((site / name).stat().st_size for name in named) + max(tables)


def main() -> int:
    """Measure; return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="knowngood-site-") as place:
        folder = Path(place)
        names = project(folder, arguments.cells)
        size = evidence(folder, names, arguments.runs)
        print(f"  {arguments.runs} runs, {size / 1e6:,.0f} MB", file=sys.stderr)
        results = {}
        for name in ("all anew", "one run more", "nothing new"):
            if name == "one run more":
                evidence(folder, names[-1:], 1)
            results[f"{name}, seconds"], results[f"{name}, processor seconds"] = make(folder)
        results["first page, bytes"] = first_page(folder / "public")
    for name, value in results.items():
        print(f"{name}: {value:,.1f}" + (f" (at most {LIMITS[name]:,.0f})" if name in LIMITS else ""))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(results[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
