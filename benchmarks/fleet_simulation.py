"""Simulate the nightly runs of a fleet: 1,000 and 10,000 cells on 5 to 500 GPUs of 8 architectures.

    python benchmarks/fleet_simulation.py [--cells N ...] [--until TIME] [--write] [--check]

How long a run takes and how often it is red is drawn from the runs in `evidence/` and `nightly/` up to TIME. Files of
runs never change, so the same seed gives the same tables. The tables are in docs/scale.md between markers: `--write`
writes them there, and `--check` exits with 1 when they differ from what the simulation gives.

`knowngood.reports.nightly_plan` plans each nightly run. Then the events are simulated: each GPU takes the next cell of
its architecture, and a red cell goes to the front of the queue for another GPU of that kind. The queues of other users
and the pulling of images are not simulated.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from knowngood.core.cell import Cell
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.reports import nightly_folder, nightly_plan
from knowngood.reports.nightly_report import NightlyCheck, ResultState

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/scale.md"
BEGIN, END = "<!-- begin fleet simulation until {} -->", "<!-- end fleet simulation -->"
ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
GPUS = (5, 8, 20, 50, 100, 200, 500)
NIGHTS, SETTLED = 21, 7
"""Number of simulated nights, and of nights at the start that are not counted."""
BUDGET = 8 * 3600.0
"""Seconds of a night: cells that have not started by then are first in the next night."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of real runs."""

    quick: tuple[float, ...]
    whole: tuple[float, ...]
    """Seconds of the suite on a GPU."""
    runs: int
    red: int
    """The number of runs, also on a CPU, that were red because of the image or the suite."""
    newest: tuple[int, int]
    """Runs and red runs after the last red run."""
    rebuilds: tuple[float, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a night handles red cells and broken GPUs."""

    red: float = 0.0
    """The share of runs that are red, and are tried on another GPU."""
    budget: float = float("inf")
    """Seconds after which no run starts."""
    bad: float | None = None
    """If given, the first GPU of each kind is broken: every run on it is red after so many seconds."""
    elsewhere: bool = True
    """A red cell is tried on another GPU of the kind, if there is one, before it counts as red."""
    avoid: bool = True
    """A GPU gets no more work after another one passed a cell that it failed."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """The result of one simulated night."""

    wall: float
    gpu: float
    runs: int
    done: frozenset[str]
    blamed: int = 0
    """Number of images that count as red because of a broken GPU."""


def measured(until: str) -> Measured:
    """Read the measurements of the runs up to a time."""
    runs = [
        run for path in sorted((ROOT / "evidence").glob("sm*/*.json")) for run in [run_evidence.load_evidence(path)]
    ]
    known = [run for run in runs if isinstance(run, Evidence) and run.when <= until]
    on_gpu = [run for run in known if run.report["environment"].get("gpu")]
    last = max(run.when for run in known if not run.ok)
    after = [run for run in known if run.when > last]
    reports, _ = nightly_folder.load_reports(ROOT / "nightly")
    results = [it for report in reports if report.finished <= until for it in report.results]
    return Measured(
        quick=tuple(run.report["seconds"] for run in on_gpu if run.quick),
        whole=tuple(run.report["seconds"] for run in on_gpu if not run.quick),
        runs=len(known),
        red=sum(not run.ok for run in known),
        newest=(len(after), sum(not run.ok for run in after)),
        rebuilds=tuple(
            it.seconds for it in results if it.check is NightlyCheck.REBUILD and it.state is ResultState.DONE
        ),
        settings=tuple(sorted({name for run in on_gpu for name, how in run.outcomes.items() if how != "not-run"})),
    )


def matrix(count: int) -> list[Cell]:
    """Return `count` cells: the architectures times invented releases of torch and transformers."""
    torches = 5 if count < 10_000 else 10
    releases = range(count // len(ARCHITECTURES) // torches)
    points = itertools.product(ARCHITECTURES, range(torches), releases)
    return [
        Cell(gpu=gpu, cuda="13.0", torch=f"2.{torch}.0", triton="3.6.0", transformers=f"5.{tf}.0", python="3.11")
        for gpu, torch, tf in points
    ]


def spread(gpus: int) -> dict[str, int]:
    """Spread the GPUs over the architectures as evenly as possible; the first in the list get one more."""
    order = ("sm_90", "sm_100", "sm_80", "sm_89", "sm_120", "sm_86", "sm_75", "sm_70")
    return {gpu: gpus // len(order) + (place < gpus % len(order)) for place, gpu in enumerate(order)}


def night(
    cells: Iterable[Cell], seconds: Mapping[str, float], gpus: Mapping[str, int], way: Way, dice: random.Random
) -> Night:
    """Simulate one night, with all architectures in parallel."""
    queues: dict[str, list[str]] = {}
    for cell in cells:
        queues.setdefault(cell.gpu, []).append(str(cell))
    parts = [_pool(queue, seconds, gpus[gpu], way, dice) for gpu, queue in queues.items() if gpus[gpu]]
    return Night(
        wall=max((part.wall for part in parts), default=0.0),
        gpu=sum(part.gpu for part in parts),
        runs=sum(part.runs for part in parts),
        done=frozenset[str]().union(*(part.done for part in parts)),
        blamed=sum(part.blamed for part in parts),
    )


def _pool(queue: Sequence[str], seconds: Mapping[str, float], gpus: int, way: Way, dice: random.Random) -> Night:
    """Simulate one architecture; the events are GPUs that become free."""
    waiting: deque[tuple[str, int | None]] = deque((cell, None) for cell in queue)
    free = [(0.0, gpu) for gpu in range(gpus)]
    wall, busy, runs, blamed, avoided = 0.0, 0.0, 0, 0, False
    done: set[str] = set()
    while waiting and free:
        now, gpu = heapq.heappop(free)
        broken = way.bad is not None and gpu == 0
        if now >= way.budget or (broken and avoided):
            continue
        place = next((at for at, (_, failed) in enumerate(waiting) if failed != gpu or gpus == 1), None)
        if place is None:  # every waiting cell was red on this GPU: another one takes them
            if free:
                heapq.heappush(free, (free[0][0] + 1e-6, gpu))
            continue
        cell, failed = waiting[place]
        del waiting[place]
        took = way.bad if broken and way.bad is not None else seconds[cell]
        wall, busy, runs = max(wall, now + took), busy + took, runs + 1
        if (broken or dice.random() < way.red) and failed is None and way.elsewhere:
            waiting.appendleft((cell, gpu))
        else:
            done.add(cell)
            blamed += broken
            avoided = avoided or (way.avoid and failed == 0 and not broken)
        heapq.heappush(free, (now + took, gpu))
    return Night(wall=wall, gpu=busy, runs=runs, done=frozenset(done), blamed=blamed)


def nights(
    cells: Sequence[Cell], seconds: Mapping[str, float], gpus: Mapping[str, int], way: Way
) -> tuple[list[Night], list[float]]:
    """Simulate the nights in turn, skipping proven cells; return them and each morning's share of expired proofs."""
    dice = random.Random(len(cells) + sum(gpus.values()))  # noqa: S311
    of = {str(cell): cell for cell in cells}
    known = {name: nightly_plan.PlannedCell(id=name, inputs="", recorded=False) for name in of}
    settings = nightly_plan.NightlySettings(checks=frozenset({NightlyCheck.SUITE}))
    results, stale = [], []
    for number in range(NIGHTS):
        now = datetime(2027, 1, 1, 1, tzinfo=UTC) + timedelta(days=number)
        tasks, _ = nightly_plan.plan_nightly(list(known.values()), settings, now, "")
        one = night((of[task.cell.id] for task in tasks if task.cell), seconds, gpus, way, dice)
        for name in one.done:
            known[name] = replace(known[name], proven=now.isoformat())
        results.append(one)
        morning = now + timedelta(seconds=BUDGET)
        stale.append(
            sum(not nightly_plan.is_proof_valid(cell.proven, morning, settings.expires) for cell in known.values())
            / len(known)
        )
    return results[SETTLED:], stale[SETTLED:]


def table(
    counts: Sequence[int], parts: Mapping[str, Sequence[float]], red: float, settings: Sequence[str]
) -> list[str]:
    """Return the table with a row for each number of cells, part of the suite and number of GPUs."""
    lines = head(
        "cells", "suite", "GPUs", "every cell: hours", "GPU hours", "busy", "proven skipped: hours, mean", "longest",
        "GPU hours", "proof too old", "pairwise: cells", "hours", "GPU hours",
    )  # fmt: skip
    for count in counts:
        cells = matrix(count)
        covering = nightly_plan.find_covering_set(dict.fromkeys(cells, settings)).cells
        few = [cell for cell in cells if str(cell) in covering]
        for part, times in parts.items():
            seconds = drawn(cells, times)
            for number in GPUS:
                gpus = spread(number)
                every = night(cells, seconds, gpus, Way(red=red), random.Random(number))  # noqa: S311
                pairs = night(few, seconds, gpus, Way(red=red), random.Random(number))  # noqa: S311
                later, stale = nights(cells, seconds, gpus, Way(red=red, budget=BUDGET))
                lines += row(
                    f"{len(cells):,}", part, str(number), hours(every.wall), hours(every.gpu),
                    f"{every.gpu / number / every.wall:.0%}", hours(statistics.mean(one.wall for one in later)),
                    hours(max(one.wall for one in later)), hours(statistics.mean(one.gpu for one in later)),
                    f"{statistics.mean(stale):.0%}", f"{len(few):,}", hours(pairs.wall), hours(pairs.gpu),
                )  # fmt: skip
    return lines


def broken(count: int, times: Sequence[float], number: int) -> list[str]:
    """Return the table of what one broken GPU per architecture causes, for each way of handling it."""
    cells = matrix(count)
    seconds, soon = drawn(cells, times), min(times)
    ways = {
        "no GPU is broken": Way(),
        "believed at once": Way(bad=soon, elsewhere=False),
        "tried elsewhere": Way(bad=soon, avoid=False),
        "tried elsewhere, and the GPU avoided": Way(bad=soon),
    }
    lines = head("red results are", "images blamed", "runs", "hours", "GPU hours")
    for name, way in ways.items():
        result = night(cells, seconds, spread(number), way, random.Random(number))  # noqa: S311
        lines += row(name, f"{result.blamed:,}", f"{result.runs:,}", hours(result.wall), hours(result.gpu))
    return lines


def drawn(cells: Sequence[Cell], times: Sequence[float]) -> dict[str, float]:
    """Return the seconds of each cell, drawn from the measured runs."""
    dice = random.Random(len(cells))  # noqa: S311
    return {str(cell): dice.choice(times) for cell in cells}


def head(*names: str) -> list[str]:
    """Return the first two lines of a Markdown table."""
    return [*row(*names), *row(*("---" for _ in names))]


def row(*values: str) -> list[str]:
    """Return a line of a Markdown table."""
    return [f"| {' | '.join(values)} |"]


def hours(seconds: float) -> str:
    """Format seconds as hours."""
    return f"{seconds / 3600:,.1f}" if seconds >= 3600 else f"{seconds / 3600:.2f}"


def page(counts: Sequence[int], until: str) -> str:
    """Return the text between the markers."""
    real = measured(until)
    red = real.red / real.runs
    rebuild = statistics.mean(real.rebuilds)
    rebuilds = " and ".join(f"{it:.0f}" for it in real.rebuilds)
    text = [
        f"Drawn from {len(real.quick)} runs of the quick part on a GPU ({span(real.quick)})",
        f"and {len(real.whole)} of the whole suite ({span(real.whole)}), all on one kind of GPU.",
        f"Of all {real.runs} runs, {real.red} were red ({red:.0%}), most of them while the suite was written. Of the",
        f"{real.newest[0]} runs after the last red one, {real.newest[1]} were red. The table uses the greater share.",
        "",
        *table(counts, {"quick": real.quick, "whole": real.whole}, red, real.settings),
        "",
        f"With {counts[-1]:,} cells, the quick part and 100 GPUs. One GPU of each kind is broken: every run on it is",
        "red, after the time of the shortest run. Nothing else is red:",
        "",
        *broken(counts[-1], real.quick, 100),
        "",
        f"Rebuilds took {rebuilds} s on 2 cores. To rebuild {counts[-1]:,} cells, each once in 30 nights, takes",
        f"{counts[-1] / 30 * rebuild / 3600:.1f} hours of such a builder per night.",
    ]
    return "\n".join(["", *text, ""])


def span(times: Sequence[float]) -> str:
    """Describe measured seconds by range and median."""
    return f"{min(times):.0f} to {max(times):.0f} s, median {statistics.median(times):.0f}"


def main() -> int:
    """Simulate; return 1 when `--check` finds a different page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--until", help="use runs up to this time, ISO 8601 with zone (default: the time in the page)")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    before, until, after = _parts(PAGE.read_text(encoding="utf-8"))
    until = arguments.until or until
    made = page(arguments.cells, until)
    text = f"{before}{BEGIN.format(until)}{made}{after}"
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    elif arguments.check:
        return int(text != PAGE.read_text(encoding="utf-8"))
    else:
        print(made)
    return 0


def _parts(text: str) -> tuple[str, str, str]:
    """Return the text before the first marker, the time in it, and the text from the second marker on."""
    first, last = BEGIN.split("{}")
    before, _, rest = text.partition(first)
    until, _, rest = rest.partition(last)
    return before, until, END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(main())
