"""What a store of evidence costs at scale: writing from many at once, the index, `knowngood cells`.

    python benchmarks/evidence.py [--cells N] [--runs N] [--pretend N] [--writers N] [--json FILE]

With 10,000 cells and 1,000,000 runs (the default) it takes some 5 GB of room for temporary files and, on a busy disk,
an hour. `--runs 20000 --pretend 9800` takes minutes: the index knows a million runs, the files of 20,000 are there.
Each run is a file of its own, one of this project's cut to the checks that decide (some 5 KB and not 50 to 400).
Measured are whole processes of `knowngood cells --json` with nothing new and with what all writers appended. The plain
way, which opens every file each time, is measured over a part and told as what that makes.
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

from knowngood import evidence, sealed
from knowngood import project as projects

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.0
"""Seconds: `cells`, nothing new."""
EACH = 10
"""Runs that a writer appends."""
SAMPLE = 20_000
"""Runs of the plain way."""


def matrix(folder: Path, count: int) -> list[str]:
    """A project with about so many cells, the product of a few lists; their ids."""
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
    """The runs of this project with one check a setting and outcome, and little of the environment."""
    found = []
    for path in sorted((ROOT / "evidence").glob("sm*/*.json")):
        stored = json.loads(path.read_bytes())
        report = stored["report"]
        first = {(it["setting"], it["outcome"]): it for it in reversed(report["checks"]) if it["setting"]}
        kept = ("topic", "setting", "outcome", "agreement", "message", "reason", "figures")
        report["checks"] = [{key: it.get(key) for key in kept} for it in first.values()]
        report["environment"] = {"gpu": report["environment"].get("gpu")}
        found.append(stored)
    return found


def runs(names: list[str], count: int) -> Iterator[tuple[str, str, bytes]]:
    """Cell, beginning of the name and content of so many runs, a night after the other."""
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
    """Write them without waiting for the disk; returns their bytes."""
    written = 0
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for cell, stem, data in runs(names, count):
        with (folder / cell / sealed.name(stem, data)).open("xb") as file:
            written += file.write(data)
    return written


def pretend(folder: Path, names: list[str], count: int) -> None:
    """Let the index know so many runs a cell whose files are not there: what it answers with does not open them."""
    from knowngood.runs import index, observed
    from knowngood.runs.folders import Look

    real = [found for path in (folder / "evidence").glob("*/*.json") for found in [observed.load(path)]]
    whole = [found for found in real if not isinstance(found, str)]

    def fill(it: index.Index) -> None:
        for begin in range(0, len(names), 100):
            read = []
            for place, name in enumerate(names[begin : begin + 100], begin):
                (folder / "evidence" / name).mkdir()
                os.utime(folder / "evidence" / name, (1_700_000_000, 1_700_000_000))
                seen = [whole[(place + number) % len(whole)] for number in range(count)]
                files = {one.run.file.split("/")[1].encode(): one for one in seen}
                state = dict.fromkeys(files, (1, 1))
                look = Look(name=name.encode(), changed=1_700_000_000 * 10**9, new=state, gone=())
                read.append((look, list(files.items())))
            it._take(read)  # noqa: SLF001

    os.environ["KNOWNGOOD_CACHE"] = str(folder / "cache")
    index.ask(folder / "evidence", fill)


def append(folder: Path, names: list[str], writers: int) -> float:
    """Seconds in which so many processes write their runs at once, through `evidence.store`, each to the disk."""

    def write(writer: int) -> None:
        for number in range(EACH):
            cell = names[(writer * EACH + number) % len(names)]
            stored = {**real[number % len(real)], "cell": cell, "node": {"name": f"{writer}"}}
            del stored["schema"]
            stored |= {"where": evidence.Where(stored["where"]), "command": tuple(stored["command"])}
            evidence.store(evidence.Evidence(**stored), folder)

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
        raise SystemExit(f"{before + writers * EACH - now} runs were lost")
    return taken


def count(folder: Path) -> int:
    """The files that there are."""
    return sum(sum(1 for item in os.scandir(cell) if item.name.endswith(".json")) for cell in os.scandir(folder))


def cells(folder: Path, times: int = 1) -> dict[str, float]:
    """What `knowngood cells --json` takes, the best of a few; all runs must be in its answer."""
    kept = {**os.environ, "KNOWNGOOD_CACHE": str(folder / "cache")}
    program = [sys.executable, "-m", "knowngood", "cells", "--json"]
    found: list[dict[str, float]] = []
    for _ in range(times):
        begin = time.monotonic()
        with (folder / "cells.json").open("wb") as out:
            process = subprocess.Popen(program, cwd=folder, env=kept, stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
        taken = time.monotonic() - begin
        processor = usage.ru_utime + usage.ru_stime
        found.append({"seconds": taken, "processor seconds": processor, "MB": usage.ru_maxrss / 1e3})
        said = json.loads((folder / "cells.json").read_bytes())
        if status or said["left_out"] or any(cell["tier"] in ("none", "resolved") for cell in said["cells"]):
            raise SystemExit(f"`knowngood cells` ended with {status} or left runs out: {said['left_out'][:3]}")
    return min(found, key=lambda one: one["seconds"])


def question(folder: Path) -> float:
    """Seconds of the index's answer alone, with its look at what is new."""
    from knowngood.runs import index

    os.environ["KNOWNGOOD_CACHE"] = str(folder / "cache")
    return clocked(lambda: index.ask(folder / "evidence", index.Index.standings))


def known(folder: Path) -> int:
    """How many runs the index knows."""
    from knowngood.runs import index

    found = index.ask(folder / "evidence", index.Index.standings)
    return sum(how.count for how in found.values())


def clocked(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def plain(folder: Path, names: list[str]) -> float:
    """Seconds to open every file of some cells, as a list without an index does."""
    total, read, begin = 0, 0, time.monotonic()
    for name in names:
        found, _ = evidence.load_all(folder, name)
        evidence.tier(found, locked=True), evidence.attention(found)
        read += len(found)
        if read >= SAMPLE:
            break
    total = read
    return (time.monotonic() - begin) / total


def look(folder: Path) -> float:
    """Seconds to ask for the time and size of every file."""

    def every() -> int:
        return sum(entry.stat().st_size for cell in os.scandir(folder) for entry in os.scandir(cell))

    return clocked(every)


def main() -> int:
    """Measure; 1 when the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--pretend", type=int, default=0, help="of so many cells only the index knows the runs")
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="knowngood-evidence-") as place:
        folder = Path(place)
        names = matrix(folder, arguments.cells)
        store = folder / "evidence"
        begin = time.monotonic()
        pretended = names[: arguments.pretend]
        size = fill(store, names[arguments.pretend :], arguments.runs)
        taken = time.monotonic() - begin
        print(f"  {arguments.runs} runs, {size / 1e9:.2f} GB, written in {taken:.0f} s", file=sys.stderr)
        found["runs in files"] = arguments.runs
        found["time and size of every file, seconds"] = look(store)
        found["plain, seconds for all files"] = plain(store, names[arguments.pretend :]) * arguments.runs
        found["every file read the first time, seconds"] = question(folder)
        if pretended:
            pretend(folder, pretended, arguments.runs // (len(names) - len(pretended)))
        found["cells"], found["runs"] = len(names), known(folder)
        found["index, MB"] = sum(path.stat().st_size for path in (folder / "cache/runs").glob("*.sqlite")) / 1e6
        found |= {f"nothing new, {name}": value for name, value in cells(folder, 5).items()}
        found["nothing new, the index alone, seconds"] = min(question(folder) for _ in range(5))
        found["appended by all writers, seconds"] = append(store, names[arguments.pretend :], arguments.writers)
        found["appended, runs a second"] = arguments.writers * EACH / found["appended by all writers, seconds"]
        found |= {f"with those new, {name}": value for name, value in cells(folder).items()}
        told(found, arguments.json)
    return int(found["nothing new, seconds"] > LIMIT)


def told(found: dict[str, float], file: str | None) -> None:
    """Before the temporary folder goes, which takes minutes."""
    for name, value in found.items():
        print(f"{name}: {value:,.2f}", flush=True)
    if file:
        Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
