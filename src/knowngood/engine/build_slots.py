"""A limit on the build steps that the embedded engine runs at once.

BuildKit starts all layers of a cell together, and this BuildKit has no setting for that. A build that is killed in the
middle had then finished almost nothing, because all of its layers were running. With a limit, layers are finished one
after the other, and BuildKit keeps what is finished. The limit is in front of `runc`, which BuildKit starts for each
step: the step waits there for a free slot, as a lock on a file that ends with the step.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

MIN_SLOTS = 4
"""Fewer would leave the network idle while wheels are unpacked."""
_POLL_SECONDS = 0.2

# One step at a time looks for a free slot, and the others wait in the queue. Everything but `runc run` passes at once.
_WRAPPER = """\
#!/bin/sh
# Written by knowngood: at most {count} build steps run at once.
for word; do
    case $word in run) break ;; esac
done
if [ "$word" = run ]; then
    mkdir -p {folder}
    exec 8>{folder}/queue
    flock 8
    while :; do
        for slot in {slots}; do
            exec 9>{folder}/$slot
            if flock --nonblock 9; then
                exec 8>&-
                exec {program} "$@"
            fi
        done
        sleep {seconds}
    done
fi
exec {program} "$@"
"""


def choose_slot_count() -> int:
    """Return how many build steps run at once: one for each processor, and at least `MIN_SLOTS`."""
    return max(MIN_SLOTS, os.cpu_count() or 1)


def write_slot_wrapper(program: str, wrapper: Path, folder: Path, *, count: int) -> None:
    """Write a program `wrapper` that runs `program`, `runc run` in at most `count` processes at once.

    The locks of the slots are files in `folder`, which need not exist.
    """
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(
        program=shlex.quote(program),
        folder=shlex.quote(str(folder)),
        slots=" ".join(map(str, range(count))),
        count=count,
        seconds=_POLL_SECONDS,
    )
    wrapper.write_text(text, encoding="ascii")
    wrapper.chmod(0o755)
