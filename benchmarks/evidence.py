"""Measure a large store of evidence: many writers at once, the index of runs, `knowngood cells`.

    python benchmarks/evidence.py [--cells N] [--runs N] [--pretend N] [--writers N] [--json FILE]

With 10,000 cells and 1,000,000 runs (the default) it needs about 5 GB for temporary files and, on a busy disk, an hour.
`--runs 20000 --pretend 9800` takes minutes: the index knows a million runs, but only 20,000 of the files exist. Each
run is one file: a run of this project, reduced to the checks that decide (about 5 KB instead of 50 to 400). Whole
processes of `knowngood cells --json` are measured, with nothing new and after all writers have appended. Opening every
file each time, without an index, is measured over a part of the files and extrapolated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from knowngood.evidence import run_evidence, sealed_files
from knowngood.project import checkout as projects

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.0
"""The most seconds that `cells` may take when nothing is new."""
EACH = 10
"""The number of runs that each writer appends."""
SAMPLE = 20_000
"""The number of runs that are opened to measure reading without an index."""


def matrix(folder: Path, count: int) -> list[str]:
    """Write a project with about `count` cells, the product of a few lists; return their ids."""
    facts = {
        name: list(json.loads((ROOT / f"facts/{name}.json").read_bytes())["releases"]) for name in ("transformers",)
    }
    gpus = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_70")
    torches = ("2.11.0", "2.10.0", "2.9.1", "2.9.0", "2.8.0", "2.7.1", "2.7.0", "2.6.0", "2.5.1", "2.5.0")
    releases = facts["transformers"][-max(count // len(gpus) // len(torches), 1) :]
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    begin = text.index("\ncells:\n")
    lists = [{"gpu": gpus, "torch": (torch,), "transformers": releases} for torch in torches]  # each at most 1,000
    lines = [", ".join(f"{name}: [{', '.join(values)}]" for name, values in item.items()) for item in lists]
    entry = "\n".join(f"  - {{{line}, base: debian12}}" for line in lines)
    (folder / "matrix.yaml").write_text("\n".join([text[:begin], "cells:", entry, ""]), encoding="utf-8")
    (folder / "templates").symlink_to(ROOT / "templates")
    return [str(cell) for cell in projects.Project(folder).matrix.cells]


def small() -> list[dict[str, Any]]:
    """Return this project's runs with one check per setting and outcome, and little of the environment."""
    reduced = []
    for path in sorted((ROOT / "evidence").glob("sm*/*.json")):
        stored = json.loads(path.read_bytes())
        report = stored["report"]
        first = {(it["setting"], it["outcome"]): it for it in reversed(report["checks"]) if it["setting"]}
        kept = ("topic", "setting", "outcome", "agreement", "message", "reason", "figures")
        report["checks"] = [{key: it.get(key) for key in kept} for it in first.values()]
        report["environment"] = {"gpu": report["environment"].get("gpu")}
        reduced.append(stored)
    return reduced


def runs(names: list[str], count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield cell, start of the file name and content of `count` runs, one nightly run after the other."""
    real = small()
    reports = [json.dumps(stored["report"]) for stored in real]
    for number in range(count):
        stored = {key: value for key, value in real[number % len(real)].items() if key != "report"}
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number // len(names), seconds=number % len(names))
        stored |= {"cell": names[number % len(names)], "when": when.isoformat(), "where": "container-gpu"}
        stored["image"] = f"sha256:{number // len(names) // 30:064x}"
        suite = real[number % len(real)]["report"]["suite_hash"]
        data = f'{json.dumps(stored)[:-1]}, "report": {reports[number % len(real)]}}}\n'.encode()
        yield stored["cell"], f"{when.strftime('%Y%m%dT%H%M%SZ')}-{suite[:12]}", data


def fill(folder: Path, names: list[str], count: int) -> int:
    """Write `count` runs without waiting for the disk; return their bytes."""
    written = 0
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for cell, stem, data in runs(names, count):
        with (folder / cell / sealed_files.sealed_name(stem, data)).open("xb") as file:
            written += file.write(data)
    return written


def pretend(folder: Path, names: list[str], count: int) -> None:
    """Put `count` runs per cell into the index without writing their files: its answers do not open them."""
    from knowngood.evidence import observed_run, run_index
    from knowngood.evidence.run_index import FolderChanges

    details = [observed_run.load_run_details(path) for path in (folder / "evidence").glob("*/*.json")]
    whole = [run for run in details if not isinstance(run, str)]

    def add_runs(index: run_index.RunIndex) -> None:
        for begin in range(0, len(names), 100):
            read = []
            for place, name in enumerate(names[begin : begin + 100], begin):
                (folder / "evidence" / name).mkdir()
                os.utime(folder / "evidence" / name, (1_700_000_000, 1_700_000_000))
                chosen = [whole[(place + number) % len(whole)] for number in range(count)]
                files = {one.run.file.split("/")[1].encode(): one for one in chosen}
                state = dict.fromkeys(files, (1, 1))
                look = FolderChanges(name=name.encode(), changed=1_700_000_000 * 10**9, new=state, gone=())
                read.append((look, list(files.items())))
            index._write_cells(read)  # noqa: SLF001

    os.environ["KNOWNGOOD_CACHE"] = str(folder / "cache")
    run_index.query_index(folder / "evidence", add_runs)


def append(folder: Path, names: list[str], writers: int) -> float:
    """Return the seconds in which `writers` processes store their runs at once, each with `store_evidence`."""

    def write(writer: int) -> None:
        for number in range(EACH):
            cell = names[(writer * EACH + number) % len(names)]
            stored = {**real[number % len(real)], "cell": cell, "node": {"name": f"{writer}"}}
            del stored["schema"]
            stored |= {"where": run_evidence.RunPlace(stored["where"]), "command": tuple(stored["command"])}
            run_evidence.store_evidence(run_evidence.Evidence(**stored), folder)

    real = small()
    before = count(folder)
    processes = [multiprocessing.get_context("fork").Process(target=write, args=(it,)) for it in range(writers)]
    begin = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    taken = time.monotonic() - begin
    if (now := count(folder)) != before + writers * EACH:
        raise SystemExit(f"{before + writers * EACH - now} of {writers * EACH} appended runs are missing")
    return taken


def count(folder: Path) -> int:
    """Return the number of run files."""
    return sum(sum(1 for item in os.scandir(cell) if item.name.endswith(".json")) for cell in os.scandir(folder))


def cells(folder: Path, times: int = 1) -> dict[str, float]:
    """Measure `knowngood cells --json` and return the fastest of a few; its answer must contain all runs."""
    kept = {**os.environ, "KNOWNGOOD_CACHE": str(folder / "cache")}
    program = [sys.executable, "-m", "knowngood", "cells", "--json"]
    measured: list[dict[str, float]] = []
    for _ in range(times):
        begin = time.monotonic()
        with (folder / "cells.json").open("wb") as out:
            process = subprocess.Popen(program, cwd=folder, env=kept, stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
        taken = time.monotonic() - begin
        processor = usage.ru_utime + usage.ru_stime
        measured.append({"seconds": taken, "processor seconds": processor, "MB": usage.ru_maxrss / 1e3})
        answer = json.loads((folder / "cells.json").read_bytes())
        if status or answer["left_out"] or any(cell["tier"] in ("none", "resolved") for cell in answer["cells"]):
            raise SystemExit(f"`knowngood cells` ended with {status} or left out runs: {answer['left_out'][:3]}")
    return min(measured, key=lambda one: one["seconds"])


def question(folder: Path) -> float:
    """Return the seconds of the index's answer alone, including its search for new files."""
    from knowngood.evidence import run_index

    os.environ["KNOWNGOOD_CACHE"] = str(folder / "cache")
    return clocked(lambda: run_index.query_index(folder / "evidence", run_index.RunIndex.standings))


def known(folder: Path) -> int:
    """Return the number of runs that the index knows."""
    from knowngood.evidence import run_index

    standings = run_index.query_index(folder / "evidence", run_index.RunIndex.standings)
    return sum(standing.count for standing in standings.values())


def clocked(work: Callable[[], object]) -> float:
    """Return the seconds that the call takes."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def plain(folder: Path, names: list[str]) -> float:
    """Return the seconds per run to open every file of some cells, as a program without an index does."""
    total, read, begin = 0, 0, time.monotonic()
    for name in names:
        cell_runs, _ = run_evidence.load_cell_evidence(folder, name)
        run_evidence.proven_tier(cell_runs, locked=True), run_evidence.attention_outcomes(cell_runs)
        read += len(cell_runs)
        if read >= SAMPLE:
            break
    total = read
    return (time.monotonic() - begin) / total


def look(folder: Path) -> float:
    """Return the seconds to read the time and size of every file."""

    def every() -> int:
        return sum(entry.stat().st_size for cell in os.scandir(folder) for entry in os.scandir(cell))

    return clocked(every)


def main() -> int:
    """Measure; return 1 when the limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--pretend", type=int, default=0, help="number of cells whose runs are only in the index")
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="knowngood-evidence-") as place:
        folder = Path(place)
        names = matrix(folder, arguments.cells)
        store = folder / "evidence"
        begin = time.monotonic()
        pretended = names[: arguments.pretend]
        size = fill(store, names[arguments.pretend :], arguments.runs)
        taken = time.monotonic() - begin
        print(f"  {arguments.runs} runs, {size / 1e9:.2f} GB, written in {taken:.0f} s", file=sys.stderr)
        results["runs in files"] = arguments.runs
        results["time and size of every file, seconds"] = look(store)
        results["plain, seconds for all files"] = plain(store, names[arguments.pretend :]) * arguments.runs
        results["every file read the first time, seconds"] = question(folder)
        if pretended:
            pretend(folder, pretended, arguments.runs // (len(names) - len(pretended)))
        results["cells"], results["runs"] = len(names), known(folder)
        results["index, MB"] = sum(path.stat().st_size for path in (folder / "cache/runs").glob("*.sqlite")) / 1e6
        results |= {f"nothing new, {name}": value for name, value in cells(folder, 5).items()}
        results["nothing new, the index alone, seconds"] = min(question(folder) for _ in range(5))
        results["appended by all writers, seconds"] = append(store, names[arguments.pretend :], arguments.writers)
        results["appended, runs a second"] = arguments.writers * EACH / results["appended by all writers, seconds"]
        results |= {f"with those new, {name}": value for name, value in cells(folder).items()}
        print_results(results, arguments.json)
    return int(results["nothing new, seconds"] > LIMIT)


def print_results(results: dict[str, float], file: str | None) -> None:
    """Print and write the results. Called before the temporary folder is removed, which takes minutes."""
    for name, value in results.items():
        print(f"{name}: {value:,.2f}", flush=True)
    if file:
        Path(file).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
