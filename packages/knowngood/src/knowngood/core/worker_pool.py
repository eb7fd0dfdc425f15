"""Processes that share work, one for each core."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def process_pool(limit: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of forked processes: one a core, at most `limit`.

    They are forked so that they share what this process has read. Callers must have no threads, since a thread could
    hold a lock at the moment of the fork. The processes live for seconds and make few reference cycles; collecting
    those took a sixth of their time, so garbage collection is off in them.
    """
    cores = os.cpu_count() or 1
    count = cores if limit is None else max(min(cores, limit), 1)
    return ProcessPoolExecutor(count, mp_context=get_context("fork"), initializer=gc.disable)
