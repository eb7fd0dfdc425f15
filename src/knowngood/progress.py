"""Says what goes on, on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Say = Callable[[str], None]


@contextlib.contextmanager
def reporter(subject: str) -> Iterator[Say]:
    """A function that reports the step that begins, for one subject (a cell, a base, the engine)."""
    start = time.monotonic()
    last = ""
    if not sys.stderr.isatty():

        def plain(step: str) -> None:
            nonlocal last
            if step != last:
                print(f"[{time.monotonic() - start:6.1f}s] {subject}: {step}", file=sys.stderr, flush=True)
                last = step

        yield plain
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as live:
        task = live.add_task(subject, total=None)

        def moving(step: str) -> None:
            live.update(task, description=f"{subject}: {step}")

        yield moving
