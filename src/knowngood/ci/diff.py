"""What changed since a commit, asked of git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from knowngood.errors import MissingError, UsageError

LOCK = "requirements.lock"


def files(root: Path, ref: str) -> list[str]:
    """Paths under `root` that differ from where this branch left `ref`: committed, not committed, and new ones."""
    base = _base(root, ref)
    changed = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", base, "--", ".")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (changed + new).split("\0") if path})


def uv(root: Path, ref: str) -> bool:
    """Whether another release of uv installs the wheels than there."""
    diff = _git(root, "diff", "--unified=0", _base(root, ref), "--", LOCK)
    return bool(re.search(r"^[+-]uv==", diff, re.MULTILINE))


def _base(root: Path, ref: str) -> str:
    if ref.startswith("-"):
        raise UsageError(f"--changed-since {ref}: that is no commit")
    return _git(root, "merge-base", "--end-of-options", ref, "HEAD").strip()


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingError("--changed-since asks git, and there is no git here; install it") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["they have no commit in common"])[-1]
        raise UsageError(
            f"--changed-since: git says {said!r}; is it a commit of this clone, and was enough of it fetched?"
        )
    return done.stdout
