"""Questions to git: which files changed since a commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from knowngood.core.errors import MissingError, UsageError

_REQUIREMENTS_LOCK = "requirements.lock"


def list_changed_files(root: Path, ref: str) -> list[str]:
    """Return the paths under `root` that differ from the commit where this branch left `ref`.

    Committed changes count, uncommitted ones, and files that git does not know yet.

    Raises:
        UsageError: `ref` is not a commit, or has no commit in common with this branch.
        MissingError: git is not installed.
    """
    base = _branch_point(root, ref)
    changed = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", base, "--", ".")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (changed + new).split("\0") if path})


def has_uv_changed(root: Path, ref: str) -> bool:
    """Return whether requirements.lock pins another release of uv than where this branch left `ref`."""
    diff = _git(root, "diff", "--unified=0", _branch_point(root, ref), "--", _REQUIREMENTS_LOCK)
    return bool(re.search(r"^[+-]uv==", diff, re.MULTILINE))


def describe_commit(root: Path) -> str:
    """Return the commit that is checked out and its day, as `93b18fae of 2026-11-28`; empty outside a repository."""
    try:
        return _git(root, "show", "--no-patch", "--format=%h of %cs", "HEAD").strip()
    except (MissingError, UsageError):
        return ""


def find_source_address(root: Path) -> str:
    """Return the address at which people read the repository, by its remote `origin`; empty where that is no host."""
    try:
        remote = _git(root, "remote", "get-url", "origin").strip()
    except (MissingError, UsageError):
        return ""
    match = re.fullmatch(r"(?:(?:https|ssh)://(?:[^@/]+@)?|git@)([\w.-]+\.\w+)[:/]([\w./-]+?)(?:\.git)?/?", remote)
    return f"https://{match[1]}/{match[2]}" if match else ""


def _branch_point(root: Path, ref: str) -> str:
    if ref.startswith("-"):
        raise UsageError(f"--changed-since {ref}: that is not a commit")
    return _git(root, "merge-base", "--end-of-options", ref, "HEAD").strip()


def _git(root: Path, *words: str) -> str:
    try:
        process = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingError("--changed-since needs git, and there is no git here; install it") from None
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["they have no commit in common"])[-1]
        raise UsageError(
            f"--changed-since: git reports {reason!r}; is it a commit of this clone, and was enough of it fetched?"
        )
    return process.stdout
