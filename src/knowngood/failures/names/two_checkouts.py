"""Whether the files of a traceback are of two checkouts of one project, of which one hides the other. Pure.

A project that was installed with `pip install -e`, or stands in PYTHONPATH, is imported from there, also by the
scripts of another copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knowngood.compat.incident import Fix
from knowngood.failures.logs.logged_errors import CodeFrame

_OF_MANY = frozenset(
    (
        "",
        "home",
        "root",
        "mnt",
        "data",
        "workspace",
        "src",
        "python",
        "lib",
        "code",
        "scripts",
        "tools",
        "bin",
        "project",
    )
)
"""Folders that are in the paths of many projects."""

_OF_REPOSITORY = frozenset(("src", "scripts", "examples", "tools"))
"""Folders that stand at the top of a repository."""


@dataclass(frozen=True, kw_only=True)
class TwoCheckouts:
    """Two copies of a project's package in one traceback."""

    package: str
    script: str
    """The folder that has the copy of the script."""
    imported: str
    """The folder that has the copy which is imported."""

    @property
    def words(self) -> str:
        """A sentence for the reason."""
        return (
            f" The script is of {self.script}, and the {self.package} that it imports of {self.imported}: two copies "
            "of one project, of which the second was installed (pip install -e) or stands in PYTHONPATH."
        )

    @property
    def fix(self) -> Fix:
        """What brings the two together, or keeps them apart."""
        note = (
            f"pip install -e . in {self.script} (or PYTHONPATH={self.script}), so that its own {self.package} is "
            "imported, and not that of the other copy; or an environment of its own for each copy"
        )
        return Fix(note=note, change={})


def find_two_checkouts(frames: Sequence[CodeFrame], imported: str = "") -> TwoCheckouts | None:
    """Return the two copies of a project in a traceback; `None` where its files are all of one.

    Args:
        frames: the frames of the traceback, the script first.
        imported: the path of the file from which something could not be imported, where the message has it.
    """
    last = [CodeFrame(path=imported, line=0, function="", code="")] if imported else []
    own = [frame for frame in (*frames, *last) if frame.path.startswith("/") and not frame.installed]
    if len(own) < 2:
        return None
    script = own[0].parts
    for frame in own[1:]:
        for at, folder in enumerate(frame.parts[:-1]):
            if folder in _OF_MANY or folder.startswith("python3") or folder not in script[:-1]:
                continue
            first, other = script[: script.index(folder)], frame.parts[:at]
            if frame.parts[at + 1] in _OF_REPOSITORY or not folder.isidentifier():  # the folder of a whole repository
                first, other = (*first, folder), (*other, folder)
            if first != other and first and other and (first[-1:] != other[-1:] or first[-1] == folder):
                return TwoCheckouts(package=folder, script=f"/{'/'.join(first)}", imported=f"/{'/'.join(other)}")
    return None
