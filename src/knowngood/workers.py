"""Processes that share the work: one a core."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def pool(most: int | None = None) -> ProcessPoolExecutor:
    """Forked, so that what was read before is read once; `knowngood site` has no threads that could hold a lock.

    They live for seconds and make few cycles: looking for those took a sixth of their time.
    """
    count = os.cpu_count() or 1
    count = max(min(count, count if most is None else most), 1)
    return ProcessPoolExecutor(count, mp_context=get_context("fork"), initializer=gc.disable)
