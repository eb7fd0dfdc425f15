"""Processes that share the work: one a core."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def pool(most: int | None = None) -> ProcessPoolExecutor:
    """Forked, so that what was read before is read once; `knowngood site` has no threads that could hold a lock."""
    count = os.cpu_count() or 1
    return ProcessPoolExecutor(max(min(count, count if most is None else most), 1), mp_context=get_context("fork"))
