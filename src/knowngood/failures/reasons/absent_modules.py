"""An optional package that is not there, for which its user has None: an attribute is then asked of None. Pure.

Packages import what they can do without in a try, and set the name to None where that fails.
"""

from __future__ import annotations

import re

from knowngood.compat.incident import Fix, IncidentKind
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.atlas_shelf import AtlasShelf
from knowngood.failures.names.message_causes import MessageCause, describe_traceback
from knowngood.failures.names.name_situation import advise

_OF_NONE = lazy_pattern(r"^AttributeError: 'NoneType' object has no attribute '(?P<name>\w+)'")


def explain_absent_module(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return the package of which the quoted line asks an attribute, where it has None; `None` for other errors."""
    stated = _OF_NONE.match(error.message)
    frame = error.frames[-1] if error.frames else None
    if stated is None or frame is None:
        return None
    quoted = re.search(rf"(?<![\w.])(?P<module>[a-z]\w+)\.{stated['name']}\b", frame.code)
    module = quoted["module"] if quoted else ""
    package = shelf.owner(module) or shelf.distribution_of(module) if module else None
    if not package or frame.installed[:1] == (module,):
        return None
    fixes = [
        advise(f"python -c 'import {module}' shows whether it is not there, or why its import fails"),
        Fix(
            change={package: "*"},
            note=f"install it for the torch, CUDA and Python that are there: pip install {package}",
        ),
        advise(f"Choose what needs no {package}, when the program has an option for it"),
    ]
    incident = describe_traceback(
        f"absent-module:{package}",
        IncidentKind.NOT_INSTALLED,
        package,
        title=f"{package} is not there, or could not be imported: `{stated['name']}` is asked of None in its place",
        because=(
            f"Line {frame.line} of {'/'.join(frame.installed or frame.parts[-2:])}.py uses {module} as the module "
            f"({frame.code[:120]}); code that does not insist on a package sets its name to None when the import fails."
        ),
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=package)
