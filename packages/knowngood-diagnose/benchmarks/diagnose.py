"""Measure the time and memory of `knowngood diagnose` on one page of log and on logs of 200 MB.

    python diagnose.py [MEGABYTES]

The large logs are: an ordinary one whose failure is at its end; one in which every line nearly shows a failure; one
with colours and a rank before each line; one that is a single line; and random bytes. The processor seconds are those
of the whole process. They are more reliable than the elapsed time on a machine that has other work.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HEAD = b"transformers==4.44.2\nxtuner==0.1.23\ntorch==2.4.0+cu121\nflash-attn==2.5.8\n"
FAILURE = b"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/conda/lib/python3.10/site-packages/xtuner/model/modules/dispatch/qwen2.py", line 160, in forward
[rank1]: AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'
"""
FRAME = (
    b'[rank0]:   File "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py", line %d, in _call_impl\n'
)
STEP = b"{'loss': 1.%d, 'grad_norm': 0.7, 'learning_rate': 1e-05, 'epoch': 0.12}\n"
NEAR = b"[rank%d]: AttributeError: 'Qwen3FlashAttention2' object has no attribute '_flash_attention_forward' (%d)\n"


def ordinary(size: int) -> Iterator[bytes]:
    """Yield training steps and tracebacks, with the failure at the end."""
    yield HEAD
    yield from _filled(lambda number: FRAME % (number % 900) + STEP % number, size)
    yield FAILURE


def near_misses(size: int) -> Iterator[bytes]:
    """Yield lines that contain the words of a failure but do not match it."""
    yield from _filled(lambda number: NEAR % (number % 8, number), size)


def coloured(size: int) -> Iterator[bytes]:
    """Yield lines with terminal colours."""
    yield from _filled(lambda number: b"\x1b[36m(Worker pid=%d)\x1b[0m \x1b[1;31m" % number + STEP % number, size)
    yield b"\x1b[31m" + FAILURE


def one_line(size: int) -> Iterator[bytes]:
    """Yield one line without an end."""
    yield from _filled(lambda number: b"progress %d%% " % (number % 100), size)


def noise(size: int) -> Iterator[bytes]:
    """Yield `size` bytes of noise in blocks; the same bytes each time."""
    source = random.Random(1)  # noqa: S311 - noise, not a secret
    for _ in range(size >> 20):
        yield source.randbytes(1 << 20)


def _filled(line, size: int) -> Iterator[bytes]:  # type: ignore[no-untyped-def] # noqa: ANN001
    piece = b"".join(line(number) for number in range(10_000))
    for _ in range(size // len(piece) + 1):
        yield piece


def measure_process(path: Path) -> tuple[float, float, int, int]:
    """Run a whole process; return elapsed seconds, processor seconds, megabytes and exit code."""
    start = time.perf_counter()
    argv = [sys.executable, "-m", "knowngood", "diagnose", "--json", str(path)]
    child = os.posix_spawn(sys.executable, argv, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)])
    _, status, usage = os.wait4(child, 0)
    processor = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, processor, usage.ru_maxrss >> 10, os.waitstatus_to_exitcode(status)


def print_row(name: str, runs: list[tuple[float, float, int, int]], size: str) -> None:
    """Print a line of the table with the medians."""
    clock, processor = (statistics.median(run[place] for run in runs) for place in (0, 1))
    _, _, memory, code = runs[0]
    print(f"{name:12} {clock:6.2f} s {processor:6.2f} s of a core {memory:5} MB  exit {code}  ({size})")


def main() -> None:
    """Measure all logs in turn."""
    size = (int(sys.argv[1]) if len(sys.argv) > 1 else 200) << 20
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.log"
        page.write_bytes(HEAD + FAILURE)
        runs = [measure_process(page) for _ in range(7)]
        print_row("page", runs, "6 lines")
        for make in (ordinary, near_misses, coloured, one_line, noise):
            path = Path(folder) / "large.log"
            with path.open("wb") as file:
                file.writelines(make(size))
            print_row(make.__name__, [measure_process(path)], f"{path.stat().st_size >> 20} MB")
            path.unlink()


main()
