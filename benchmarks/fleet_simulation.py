"""A fleet's nights in simulation: 1,000 and 10,000 cells on 5 to 500 GPUs of 8 architectures.

    python benchmarks/fleet_simulation.py [--cells N ...] [--until TIME] [--write] [--check]

What a run takes and how often it is red is drawn from `evidence/` and `nightly/`, of what was seen until TIME: files of
runs never change, so that the same seed gives the same tables. They stand in docs/scale.md between markers: `--write`
puts them there, `--check` says whether they are still what comes out.

A night is planned by `knowngood.nightly.plan` and `pairwise`; then events: each GPU takes the next cell of its
architecture, what is red goes to the front for another GPU of that kind. Not in it: queues of others, pulling images.
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

from knowngood import evidence
from knowngood.cell import Cell
from knowngood.evidence import Evidence
from knowngood.nightly import pairwise, plan, state
from knowngood.nightly.model import Check, State

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/scale.md"
BEGIN, END = "<!-- begin fleet simulation until {} -->", "<!-- end fleet simulation -->"
ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
GPUS = (5, 8, 20, 50, 100, 200, 500)
NIGHTS, SETTLED = 21, 7
"""Nights that are simulated, and those at the beginning that are not counted."""
BUDGET = 8 * 3600.0
"""Seconds of a night: what has not begun by then is the first of the next one."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was seen of real runs."""

    quick: tuple[float, ...]
    whole: tuple[float, ...]
    """Seconds of the suite on a GPU."""
    runs: int
    red: int
    """Of all runs, on a CPU too, those that were red by the image or the suite."""
    newest: tuple[int, int]
    """The same of the suites with which no image was red any more: runs, red."""
    rebuilds: tuple[float, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a night goes about it."""

    red: float = 0.0
    """How many runs are red, and tried elsewhere."""
    budget: float = float("inf")
    """Seconds after which nothing begins."""
    bad: float | None = None
    """The first GPU of each kind is broken: whatever it runs is red after so many seconds."""
    elsewhere: bool = True
    """What is red is tried on another GPU of the kind, where there is one, before it is believed."""
    avoid: bool = True
    """A GPU gets no more work once another one passed what it failed."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """What one night took."""

    wall: float
    gpu: float
    runs: int
    done: frozenset[str]
    blamed: int = 0
    """Images that a broken GPU was believed about."""


def measured(until: str) -> Measured:
    """Read it."""
    runs = [run for path in sorted((ROOT / "evidence").glob("sm*/*.json")) for run in [evidence.load(path)]]
    seen = [run for run in runs if isinstance(run, Evidence) and run.when <= until]
    on_gpu = [run for run in seen if run.report["environment"].get("gpu")]
    last = max(run.when for run in seen if not run.ok)
    after = [run for run in seen if run.when > last]
    reports, _ = state.load(ROOT / "nightly")
    results = [it for report in reports if report.finished <= until for it in report.results]
    return Measured(
        quick=tuple(run.report["seconds"] for run in on_gpu if run.quick),
        whole=tuple(run.report["seconds"] for run in on_gpu if not run.quick),
        runs=len(seen),
        red=sum(not run.ok for run in seen),
        newest=(len(after), sum(not run.ok for run in after)),
        rebuilds=tuple(it.seconds for it in results if it.check is Check.REBUILD and it.state is State.DONE),
        settings=tuple(sorted({name for run in on_gpu for name, how in run.outcomes.items() if how != "not-run"})),
    )


def matrix(count: int) -> list[Cell]:
    """So many cells: the architectures by made-up releases of torch and of transformers."""
    torches = 5 if count < 10_000 else 10
    releases = range(count // len(ARCHITECTURES) // torches)
    points = itertools.product(ARCHITECTURES, range(torches), releases)
    return [
        Cell(gpu=gpu, cuda="13.0", torch=f"2.{torch}.0", triton="3.6.0", transformers=f"5.{tf}.0", python="3.11")
        for gpu, torch, tf in points
    ]


def spread(gpus: int) -> dict[str, int]:
    """The GPUs over the architectures, as evenly as it goes, the newest first."""
    order = ("sm_90", "sm_100", "sm_80", "sm_89", "sm_120", "sm_86", "sm_75", "sm_70")
    return {gpu: gpus // len(order) + (place < gpus % len(order)) for place, gpu in enumerate(order)}


def night(
    cells: Iterable[Cell], seconds: Mapping[str, float], gpus: Mapping[str, int], way: Way, dice: random.Random
) -> Night:
    """All architectures side by side."""
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
    """One architecture: the events are GPUs that become free."""
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
        if place is None:  # all that is left was red here: another one takes it
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
    """Night after night, with what is proven skipped; and the share of cells each morning whose proof has expired."""
    dice = random.Random(len(cells) + sum(gpus.values()))  # noqa: S311
    of = {str(cell): cell for cell in cells}
    known = {name: plan.Cell(id=name, inputs="", recorded=False) for name in of}
    asked = plan.Settings(checks=frozenset({Check.SUITE}))
    found, stale = [], []
    for number in range(NIGHTS):
        now = datetime(2027, 1, 1, 1, tzinfo=UTC) + timedelta(days=number)
        tasks, _ = plan.plan(list(known.values()), asked, now, "")
        one = night((of[task.cell.id] for task in tasks if task.cell), seconds, gpus, way, dice)
        for name in one.done:
            known[name] = replace(known[name], proven=now.isoformat())
        found.append(one)
        morning = now + timedelta(seconds=BUDGET)
        stale.append(sum(not plan.valid(cell.proven, morning, asked.expires) for cell in known.values()) / len(known))
    return found[SETTLED:], stale[SETTLED:]


def table(
    counts: Sequence[int], parts: Mapping[str, Sequence[float]], red: float, settings: Sequence[str]
) -> list[str]:
    """Rows for every number of cells, part of the suite and number of GPUs."""
    lines = head(
        "cells", "suite", "GPUs", "every cell: hours", "GPU hours", "busy", "proven skipped: hours, mean", "longest",
        "GPU hours", "proof too old", "pairwise: cells", "hours", "GPU hours",
    )  # fmt: skip
    for count in counts:
        cells = matrix(count)
        covering = pairwise.covering(dict.fromkeys(cells, settings)).cells
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
    """What one broken GPU of each architecture does, by how it is dealt with."""
    cells = matrix(count)
    seconds, soon = drawn(cells, times), min(times)
    ways = {
        "none is broken": Way(),
        "believed at once": Way(bad=soon, elsewhere=False),
        "tried elsewhere": Way(bad=soon, avoid=False),
        "tried elsewhere, then avoided": Way(bad=soon),
    }
    lines = head("a broken GPU is", "images blamed", "runs", "hours", "GPU hours")
    for name, way in ways.items():
        found = night(cells, seconds, spread(number), way, random.Random(number))  # noqa: S311
        lines += row(name, f"{found.blamed:,}", f"{found.runs:,}", hours(found.wall), hours(found.gpu))
    return lines


def drawn(cells: Sequence[Cell], times: Sequence[float]) -> dict[str, float]:
    """Each cell takes as long as one of the measured runs."""
    dice = random.Random(len(cells))  # noqa: S311
    return {str(cell): dice.choice(times) for cell in cells}


def head(*names: str) -> list[str]:
    """Of a table."""
    return [*row(*names), *row(*("---" for _ in names))]


def row(*values: str) -> list[str]:
    """Of a table."""
    return [f"| {' | '.join(values)} |"]


def hours(seconds: float) -> str:
    """As a table has it."""
    return f"{seconds / 3600:,.1f}" if seconds >= 3600 else f"{seconds / 3600:.2f}"


def page(counts: Sequence[int], until: str) -> str:
    """What stands between the markers."""
    seen = measured(until)
    red = seen.red / seen.runs
    rebuild = statistics.mean(seen.rebuilds)
    rebuilds = " and ".join(f"{it:.0f}" for it in seen.rebuilds)
    told = [
        f"Drawn from {len(seen.quick)} runs of the quick part on a GPU ({span(seen.quick)})",
        f"and {len(seen.whole)} of the whole suite ({span(seen.whole)}), all on one kind of GPU.",
        f"Red were {seen.red} of all {seen.runs} runs ({red:.0%}), most of them while the suite was written; of the",
        f"{seen.newest[0]} after the last red one, {seen.newest[1]}. The table has the greater share.",
        "",
        *table(counts, {"quick": seen.quick, "whole": seen.whole}, red, seen.settings),
        "",
        f"With {counts[-1]:,} cells, the quick part and 100 GPUs, of which one of each kind fails whatever it runs, as",
        "soon as the shortest run ended; nothing else is red:",
        "",
        *broken(counts[-1], seen.quick, 100),
        "",
        f"Rebuilds took {rebuilds} s on 2 cores: {counts[-1]:,} cells, each once in 30 nights, are",
        f"{counts[-1] / 30 * rebuild / 3600:.1f} hours of such a builder a night.",
    ]
    return "\n".join(["", *told, ""])


def span(times: Sequence[float]) -> str:
    """Of measured seconds."""
    return f"{min(times):.0f} to {max(times):.0f} s, median {statistics.median(times):.0f}"


def main() -> int:
    """Simulate; 1 when `--check` finds another page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--until", help="ISO 8601 with zone (default: what the page says)")
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
    """What stands before the marker, the time in it, and what stands from the other marker on."""
    first, last = BEGIN.split("{}")
    before, _, rest = text.partition(first)
    until, _, rest = rest.partition(last)
    return before, until, END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(main())
