"""Measure how long `check` and `pick` take, as whole processes and in a batch.

    python check.py [RUNS]

It prints two tables: whole processes (median of RUNS, default 5, the least, peak memory), and answers per second of a
batch of random queries.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from knowngood_facts.compat import knowledge

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


def batch(lines: int = 100) -> None:
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


if __name__ == "__main__":
    processes(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    batch()
