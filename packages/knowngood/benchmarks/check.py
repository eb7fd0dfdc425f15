"""Measure how long `check` and `pick` take, and how the time grows when every axis doubles.

    python benchmarks/check.py [RUNS]

It prints three tables: whole processes (median of RUNS, default 5, the least, peak memory); answers per second of a
batch of random queries; and, in one process, the times to build the universe, to answer one check and to explain one
conflict, with every axis 1, 2, 4 and 8 times as long (the added releases are copies with the same facts). Each time is
followed by its ratio to the row above. Doubling every axis multiplies the combinations by 16 (GPUs and Pythons stay the
same).
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from knowngood_facts.compat import knowledge, universe
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.factbook import DRIVERS, Factbook
from knowngood_facts.compat.matrix_cells import PublishedCells
from knowngood_facts.compat.pick_answer import count_combinations, pick_cells
from knowngood_facts.compat.query import query_from_document

TEN = (
    *("torch==2.7.1", "transformers==4.53.0", "tokenizers==0.21.2", "trl==0.19.0", "peft==0.16.0"),
    *("accelerate==1.8.0", "deepspeed==0.17.0", "bitsandbytes==0.46.0", "datasets==3.6.0", "numpy==1.26.4"),
)
COMMANDS = {
    "check, two pins": ["check", *TEN[:2]],
    "check, ten pins": ["check", *TEN],
    "check, ten broken": ["check", *TEN, "vllm==0.10.0"],
    "check, compatible": ["check", "torch==2.11.0", "transformers==5.17.0", "--gpu", "H100"],
    "check, broken": ["check", "torch==2.6.0", "triton==3.3.0", "transformers==5.23.0", "--gpu", "V100"],
    "pick, answer": ["pick", "--gpu", "V100"],
    "pick, conflict": ["pick", "--gpu", "V100", "--attn", "fa2", "transformers==5.17.0", "--driver", "470.10"],
}
BROKEN = {"gpu": "V100", "packages": {"torch": "2.6.0", "triton": "3.3.0", "transformers": "5.23.0"}}
CONFLICT = {"gpu": "V100", "attn": "fa2", "driver": "470.10", "packages": {"transformers": "==5.17.0"}}


def processes(runs: int) -> None:
    """Measure whole processes, from the start of Python to its end.

    On a machine that others use, the least processor time of many runs is what can be compared.
    """
    for name, words in COMMANDS.items():
        seconds, processor = [], []
        for _ in range(runs):
            start, before = time.perf_counter(), _child_seconds()
            subprocess.run(
                [sys.executable, "-m", "knowngood", *words], check=False, capture_output=True, stdin=subprocess.DEVNULL
            )
            seconds.append(time.perf_counter() - start)
            processor.append(_child_seconds() - before)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(
            f"{name:20} {statistics.median(seconds):6.2f} s   least {min(seconds):5.2f} s, "
            f"of processor time {min(processor):5.2f} s   peak of all so far {peak:4.0f} MB"
        )


def _child_seconds() -> float:
    """Return the processor time of all processes that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def batch(lines: int = 3000) -> None:
    """Measure a batch of random queries. Most answers are `broken`, which takes longest."""
    book = knowledge.load_knowledge().universe.space.book
    choose = random.Random(1)  # noqa: S311 - not a secret
    packages = ("torch", "transformers", "flash-attn", "triton", "xtuner", "openrlhf")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for _ in range(lines):
            named = [name for name in packages if name in packages[:2] or choose.random() < 0.4]
            query = {"gpu": choose.choice(["V100", "T4", "A100", "H100", "B200", "RTX 5090"])}
            query |= {"packages": {name: choose.choice(book.versions(name)) for name in named}}
            file.write(json.dumps(query) + "\n")
        file.flush()
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "knowngood", "check", "--batch", file.name], check=False, stdout=subprocess.DEVNULL
        )
        print(
            f"batch of {lines:,}: {lines / (time.perf_counter() - start):,.0f} answers per second, including the start"
        )


def longer(book: Factbook, factor: int) -> Factbook:
    """Return the facts with `factor` times as many releases of every package."""
    tables = {
        name: table if name == DRIVERS else {_copy(v, copy): e for copy in range(factor) for v, e in table.items()}
        for name, table in book.tables.items()
    }
    requirements = {
        name: tuple(
            dataclasses.replace(item, versions=tuple(_copy(v, copy) for copy in range(factor) for v in item.versions))
            for item in book.requirements(name)
        )
        for name in book.packages
    }
    return dataclasses.replace(book, tables=tables, _requirements=requirements, _requires={})


def _copy(version: str, number: int) -> str:
    """Return a new version that sorts next to the copied one: `2.8.3.post2` -> `2.8.3.0.0.1.post2`."""
    return re.sub(r"^\d+(\.\d+)*", rf"\g<0>.0.0.{number}", version) if number else version


def growth() -> None:
    """Measure the same queries in larger universes."""
    known = knowledge.load_knowledge()
    world = known.universe
    print(f"{'axes':>5} {'combinations':>14} {'boxes':>6} {'build':>16} {'check':>16} {'conflict':>16}")
    before: list[float] = []
    for factor in (1, 2, 4, 8):
        book = longer(world.space.book, factor)
        made: list[universe.Universe] = []
        seconds = [
            timed(
                lambda book=book, made=made: made.append(universe.build_universe(book, world.gpus, world.written_rules))
            )
        ]
        bigger = made[-1]
        seconds.append(timed(lambda bigger=bigger: check_query(bigger, query_from_document(BROKEN), PublishedCells())))
        seconds.append(timed(lambda bigger=bigger: pick_cells(bigger, query_from_document(CONFLICT), PublishedCells())))
        ratios = [f"x{new / old:.1f}" for new, old in zip(seconds, before, strict=True)] if before else [""] * 3
        cells = "  ".join(f"{1000 * one:7.1f} ms {ratio:>5}" for one, ratio in zip(seconds, ratios, strict=True))
        print(f"{factor:>4}x {count_combinations(bigger):>14.2e} {len(bigger.index.boxes):>6}  {cells}")
        before = seconds


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of the first call, with empty caches."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    processes(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    batch()
    growth()
