"""The bases that matrix.yaml names: each with its committed lock, as a build context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from knowngood.atomic import write_text
from knowngood.errors import KnowngoodError
from knowngood.project import Project
from knowngood.system import base


def lock_path(project: Project, name: str) -> Path:
    """The committed list of the base's Debian packages."""
    return project.tree.folder / "bases" / name / "packages.lock"


def context(project: Project, name: str, *, locked: bool, say: Callable[[str], None], refresh: bool = False) -> str:
    """The build context for `FROM base`, bootstrapped when it is not in the cache.

    A lock that had to be made anew is written, unless `locked` refuses that.
    """
    wanted = project.matrix.bases[name]
    if wanted.image:
        return base.context(wanted.image)
    assert wanted.bootstrap is not None  # noqa: S101  # schema.Base has exactly one of both
    debian = base.DebianBase(
        name=name,
        suite=wanted.bootstrap.suite,
        packages=wanted.bootstrap.packages,
        python=wanted.python,
        refresh_command=f"knowngood lock --base {name}",
    )
    path = lock_path(project, name)
    committed = base.PackagesLock.parse(path.read_text(), file=str(path)) if path.exists() else None
    made = base.refresh(debian, say=say) if refresh else base.build(debian, committed, locked=locked, say=say)
    if locked and made.lock != committed:
        raise KnowngoodError(f"{path} is stale; run `{debian.refresh_command}` and commit it")
    write_text(path, str(made.lock))
    return made.context
