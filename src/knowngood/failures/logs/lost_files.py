"""Whether a lost file is one that a package lacks in its own folder, or that another process took away. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.logs.logged_errors import CodeFrame

FILE_INCIDENT = "file-not-found"
"""The known failure that says of any lost file that the program looks in the wrong place."""
_LOST = lazy_pattern(
    r"^(?:FileNotFoundError|NotADirectoryError|OSError|IOError): .{0,80}?['\"]?[^'\"]{0,300}"
    r"(?:site|dist)-packages[/\\]{1,4}(?P<top>\w{1,60})[/\\]{1,4}(?P<file>[^'\"]{1,200})"
)
MISSING_INCIDENTS = frozenset((FILE_INCIDENT, "model-file-missing"))
"""The known failures that say of a lost file that it was never there."""
TAKES_AWAY = lazy_pattern(
    r"\b(?:os|shutil)\.(?:rename|renames|replace|remove|unlink|rmdir|removedirs|rmtree|move)\(|\.(?:unlink|"
    r"rename|rmdir)\("
)
"""Lines of code that rename or remove a file."""
_SYMBOL = lazy_pattern(r": (?:undefined )?symbol\b|: version `")
"""The dynamic linker's words of a library that is there, and of another release."""
_IS_LOST = lazy_pattern(r"^FileNotFoundError: \[Errno 2\].{0,80}?['\"](?P<path>[^'\"]{1,300})['\"]")


@dataclass(frozen=True, kw_only=True)
class LostFile:
    """A file that a package looks for in its own folder."""

    top: str
    """The folder of the package in site-packages."""
    file: str
    """Its path in that folder, with slashes."""
    frame: CodeFrame
    """The code of the package that looks for it."""


def find_lost_file(error: LastError | None) -> LostFile | None:
    """Return the file of a package's own that an error misses; `None` for any other error."""
    lost = _LOST.match(error.message) if error is not None else None
    frames = [frame for frame in error.frames if frame.installed] if error is not None else []
    if lost is None or not frames or _SYMBOL.search(lost["file"]) or frames[-1].installed[0] != lost["top"]:
        return None
    return LostFile(top=lost["top"], file=re.sub(r"[/\\]+", "/", lost["file"]), frame=frames[-1])


def find_vanished_file(error: LastError | None) -> str:
    """Return the path of a file that code was about to rename or remove, and that is gone; empty for another error.

    Such code has listed or written the file shortly before, so that it is gone by another process, not never there.
    """
    lost = _IS_LOST.match(error.message) if error is not None else None
    taking = error is not None and any(TAKES_AWAY.search(frame.code) for frame in error.frames[-3:])
    return lost["path"] if lost is not None and taking else ""
