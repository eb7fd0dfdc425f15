"""Child processes that end with the process that started them, however that one ends.

Every process that this program starts gets `preexec_fn=end_with_parent()`, unless it is meant to outlive this one: the
embedded engine's daemon, and the jobs of a machine's executor. A unit test compares all calls with this rule.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """Return a `preexec_fn` after which the kernel sends the child a signal when its parent ends.

    The kernel watches the thread that starts the child: this thread must wait for the child. Returns `None` on systems
    other than Linux, where a child may outlive a parent that is killed.
    """
    if sys.platform != "linux":
        return None
    # Looked up before the fork: between fork and exec nothing may be imported, and no lock may be waited for.
    control, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask_kernel() -> None:
        control(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os.kill(os.getpid(), number)

    return ask_kernel
