"""The cause of an error that the script raises which builds a package from its sources. Pure.

pip unpacks the sources into a folder of its own, so such a script is no file of the user's project, and setuptools,
which runs it, is not at fault.
"""

from __future__ import annotations

from knowngood.compat.incident import Fix, IncidentKind
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise

_UNPACKED = lazy_pattern(r"[/\\](?:pip-(?:install|req-build|build)-|builds-v\d+[/\\])")
_NAMED = lazy_pattern(r"[/\\]pip-install-[^/\\]+[/\\](?P<name>[A-Za-z][\w.-]*?)_[0-9a-f]{32}[/\\]")
_SHOWN = 140


def is_build_script(frame: CodeFrame) -> bool:
    """Whether a frame is of sources that pip or uv unpacked in order to build them."""
    return bool(_UNPACKED.search(frame.path)) and not frame.installed


def explain_build_error(error: LastError) -> MessageCause | None:
    """Return the package whose build script raises the last error; `None` where the traceback does not name it."""
    frame = error.frames[-1] if error.frames else None
    named = _NAMED.search(frame.path) if frame is not None else None
    if frame is None or named is None or not is_build_script(frame):
        return None
    name = named["name"].replace("_", "-").lower()
    title = f"The build of {name} fails in its own script: {shorten_text(error.message, _SHOWN)}"
    because = (
        f"There was no ready wheel of {name} for this Python and platform. Line {frame.line} of its "
        f"{frame.parts[-1]}.py, which is to build one, does not go with this Python, these tools or this machine."
    )
    fixes = [
        Fix(change={name: "*"}, note=f"a release of {name} that has a ready wheel for this Python and platform"),
        advise(f"The Python for which this release of {name} has wheels; its own instructions name it"),
        advise("pip install --no-build-isolation, when the script needs torch or another package that is installed"),
    ]
    incident = describe_traceback(
        "build-script", IncidentKind.SOURCE_BUILD, name, title=title, because=because, fixes=fixes
    )
    return MessageCause(incident=incident, line=error.line, package=name)
