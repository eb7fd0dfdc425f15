"""Running Slurm's own commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knowngood.errors import MissingError

ANSWER_SECONDS = 60
_FOREIGN = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SLURM_TIME_FORMAT")
"""Variables of the user's own that would change what the commands do or how they print."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command, ended."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str]], Done]


def run(argv: Sequence[str]) -> Done:
    """Run a command; `MissingError` where there is none, or no answer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_SECONDS,
            env={**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
        )
    except FileNotFoundError:
        raise MissingError(f"there is no {argv[0]} here; run this on a machine that has Slurm's commands") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"{argv[0]} did not answer within {ANSWER_SECONDS} s") from None
    return Done(code=done.returncode, out=done.stdout, err=done.stderr.strip())
