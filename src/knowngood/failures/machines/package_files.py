"""The cause of a lost file: an install that is not whole, or another process that took it away. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.incident import IncidentKind, OwnComponent
from knowngood.failures.logs.trouble_signs import TAKES_AWAY, find_lost_file, find_vanished_file
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise
from knowngood.failures.names.newest_releases import upgrade_package

if TYPE_CHECKING:
    from knowngood.failures.logs.last_errors import LastError
    from knowngood.failures.names.atlas_shelf import AtlasShelf


def explain_lost_file(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return the package that looks for a file in its own folder; `None` for any other file."""
    lost = find_lost_file(error)
    if lost is None:
        return None
    package = shelf.distribution_of(lost.top) or lost.top.replace("_", "-").lower()
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


def explain_vanished_file(error: LastError) -> MessageCause | None:
    """Return that several processes rename or remove the same files; `None` for another error."""
    path = find_vanished_file(error)
    if not path:
        return None
    frame = next(frame for frame in reversed(error.frames) if TAKES_AWAY.search(frame.code))
    file = "/".join(frame.installed or frame.parts[-2:]) + ".py"
    because = (
        f"Line {frame.line} of {file} ({shorten_text(frame.code, 100)}) was about to rename or remove it, so it was "
        "there shortly before: mostly every rank of the run saves to one folder, or cleans it up, and another one was "
        "faster. The program itself may also have removed it, or a second run works in the same folder."
    )
    own = next((item for item in reversed(error.frames) if not item.installed and item is not frame), None)
    if own is not None:
        because += f" What leads there is {own.parts[-1]}.py, line {own.line}."
    fixes = [
        advise(
            "Save in one process only: if trainer.is_world_process_zero(), accelerator.is_main_process, or the rank is "
            "0 (with ZeRO-3 and FSDP all ranks gather, and one writes: trainer.save_model does so)"
        ),
        advise("A folder of its own for each run and, where each node saves, for each node; no second run in it"),
        advise("A newer release of what saves, when a callback or trainer of a package does it in every process"),
    ]
    incident = describe_traceback(
        "vanished-file",
        IncidentKind.CONFIG,
        OwnComponent.YOUR_CODE,
        title=f"Another process took {shorten_text(path, 80)} away before this one could rename or remove it",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="", is_likely=True)
