"""The cause of a file that an installed package lacks in its own folder: its install is not whole. Pure."""

from __future__ import annotations

from knowngood.compat.incident import IncidentKind
from knowngood.failures.last_errors import LastError
from knowngood.failures.lost_files import find_lost_file
from knowngood.failures.message_causes import MessageCause, describe_traceback
from knowngood.failures.module_packages import find_distribution
from knowngood.failures.name_situation import advise
from knowngood.failures.newest_releases import upgrade_package


def explain_lost_file(error: LastError) -> MessageCause | None:
    """Return the package that looks for a file in its own folder; `None` for any other file."""
    lost = find_lost_file(error)
    if lost is None:
        return None
    package = find_distribution(lost.top, ()) or lost.top.replace("_", "-").lower()
    because = (
        f"{'/'.join(lost.frame.installed)}.py, line {lost.frame.line}, reads {lost.file} of {package}'s own "
        "folder, which is not there: its wheel was made without it, or the install was cut short or partly removed."
    )
    fixes = [
        advise(f"pip install --force-reinstall --no-deps --no-cache-dir {package}, when its own release has the file"),
        upgrade_package(package, "another release, whose wheel has the file"),
        advise(f"Install {package} from its source: git clone, then pip install -e . in it"),
    ]
    incident = describe_traceback(
        f"lost-file:{package}",
        IncidentKind.NOT_INSTALLED,
        package,
        title=f"The install of {package} is incomplete: its file {lost.file} is missing",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=package)
