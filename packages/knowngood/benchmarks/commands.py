"""Measure the commands that people wait for, next to an empty Python process of the same environment.

    python commands.py [RUNS]

Prints the median of RUNS (default 7) whole processes per command, in seconds and as a multiple of `python -c pass`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "knowngood --help": [sys.executable, "-m", "knowngood", "--help"],
    "knowngood cells": [sys.executable, "-m", "knowngood", "cells"],
    "knowngood render --check": [sys.executable, "-m", "knowngood", "render", "--check"],
    "knowngood lock (nothing to do)": [sys.executable, "-m", "knowngood", "lock", "--locked"],
}


def median(argv: list[str], runs: int) -> float:
    """Return the median seconds of a whole process."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    """Measure all commands in turn."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    floor = None
    for name, argv in COMMANDS.items():
        seconds = median(argv, runs)
        floor = floor or seconds
        print(f"{name:32} {seconds:6.3f} s {seconds / floor:6.1f} x")


main()
