"""Progress on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from knowngood.core.errors import redact_credentials
from knowngood.core.formatting import escape_controls
from knowngood.core.notify import Notify


@contextlib.contextmanager
def report_progress(subject: str) -> Iterator[Notify]:
    """Give a function that shows the current step of one subject (a cell, a base, the engine), without credentials."""
    start = time.monotonic()
    last = ""
    if not sys.stderr.isatty():

        def print_step(step: str) -> None:
            nonlocal last
            if step != last:
                shown = escape_controls(redact_credentials(step))
                print(f"[{time.monotonic() - start:6.1f}s] {subject}: {shown}", file=sys.stderr, flush=True)
                last = step

        yield print_step
        return
    from rich.console import Console  # only a terminal needs it
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as live:
        task = live.add_task(subject, total=None)

        def update_line(step: str) -> None:
            live.update(task, description=escape_controls(f"{subject}: {redact_credentials(step)}"))

        yield update_line


def print_notice(text: str) -> None:
    """Print a line to standard error, where standard output belongs to a program."""
    print(escape_controls(f"knowngood: {text}"), file=sys.stderr, flush=True)
