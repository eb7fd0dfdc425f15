"""Count the instructions of whole processes of `knowngood check`, which others who use the machine do not change.

    python benchmarks/check_instructions.py [CHECKOUT ...]

For each checkout (default: this one) it prints the instructions for lists of two and of ten pins, in millions, with
their ratio to those of the first checkout. It needs valgrind and takes about half a minute for each number.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LISTS = {
    "two pins": ("torch==2.8.0", "transformers==4.57.6"),
    "ten pins": (
        *("--python", "3.11", "torch==2.8.0", "transformers==4.57.6", "trl==0.24.0", "peft==0.18.0"),
        *("accelerate==1.11.0", "datasets==4.4.1", "bitsandbytes==0.48.2", "deepspeed==0.18.2"),
        *("tokenizers==0.22.1", "huggingface-hub==0.36.0"),
    ),
}
COUNT = ("valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={os.devnull}")


def count_instructions(checkout: Path, words: tuple[str, ...]) -> int:
    """Return the instructions of one process, with bytecode and caches that an earlier process has left."""
    command = [str(checkout / ".venv/bin/python"), "-m", "knowngood", "check", *words]
    with tempfile.TemporaryDirectory() as folder:
        places = {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "KNOWNGOOD_CACHE": f"{folder}/cache"}
        environment = {**os.environ, **places, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for start in ((), COUNT):
            done = subprocess.run(
                [*start, *command],
                env=environment,
                cwd=checkout,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
    match = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if match is None:
        raise SystemExit(f"valgrind counted nothing:\n{done.stderr}")
    return int(match[1].replace(",", ""))


def main() -> None:
    """Count, and print a line for each checkout."""
    checkouts = [Path(text).resolve() for text in sys.argv[1:]] or [Path(__file__).resolve().parents[3]]
    first: list[int] = []
    for checkout in checkouts:
        counts = [count_instructions(checkout, words) for words in LISTS.values()]
        first = first or counts
        parts = (
            f"{name} {count / 1e6:,.0f} M (x{count / base:.2f})"
            for name, count, base in zip(LISTS, counts, first, strict=True)
        )
        print(f"{checkout.name:24} " + "   ".join(parts), flush=True)


main()
