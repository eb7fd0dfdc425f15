"""Attributes that are missing because unsloth's rewritten classes and the program's do not go together. Pure.

unsloth copies trl's trainers and configurations into a folder of its own, and puts them in trl's place when it is
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, IncidentKind
from knowngood.failures.names.atlas_shelf import upgrade_package
from knowngood.failures.names.message_causes import describe_traceback
from knowngood.failures.names.name_situation import NameCause, advise

if TYPE_CHECKING:
    from knowngood.failures.logs.logged_errors import LoggedError

_PACKAGE = "unsloth"
_FOLDER = "unsloth_compiled_cache"
"""Where unsloth keeps the classes that it wrote."""


def explain_unsloth_class(error: LoggedError) -> NameCause | None:
    """Return why a class that unsloth writes, or should have replaced, lacks an attribute; `None` for other classes."""
    fault = error.fault
    is_written = fault.owner.startswith("Unsloth")
    if is_written or any(_FOLDER in frame.parts for frame in error.frames):
        title = f"What unsloth wrote in place of another package's class does not go together: no `{fault.name}`"
        because = (
            f"{fault.owner} is a class that unsloth wrote from trl's or transformers', or one asks for it. unsloth "
            f"does not know the trl or transformers that is installed, or {_FOLDER} has files of another release."
        )
        fixes = [
            advise(f"rm -r {_FOLDER}, in the folder where the program starts; it is written again"),
            upgrade_package(_PACKAGE, "the newest release, which knows newer packages"),
            advise("The trl and transformers of this unsloth's time: pip check, or the pins of its own notebooks"),
        ]
    elif fault.name.startswith("unsloth_"):
        title = f"{fault.owner} was made before unsloth replaced it: it has no `{fault.name}`"
        because = (
            f"unsloth's trainer asks for {fault.name}, which only its own {fault.owner} has; this one is the original."
        )
        fixes = [
            advise("import unsloth in the first line, before trl, transformers and peft, in each file and process"),
            Fix(
                change={},
                note=f"Take {fault.owner} from trl after that import, and not from a module that had it before",
            ),
            upgrade_package(_PACKAGE),
        ]
    else:
        return None
    incident = describe_traceback(
        f"name:{fault.text}", IncidentKind.API_UNKNOWN, _PACKAGE, title=title, because=because, fixes=fixes
    )
    return NameCause(error=error, incident=incident, package=_PACKAGE, is_fallback=True)
