"""What a warning above the last error says of settings that this diffusers does not know, and ignored. Pure.

diffusers says of each key of a model's config.json that its class does not take it, and goes on. What is built without
that setting fails later, mostly of shapes or of kinds of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.compat.incident import Fix, IncidentKind
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.facts.atlas_parameters import find_parameter
from knowngood.failures.names.atlas_shelf import AtlasShelf, upgrade_package
from knowngood.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood.failures.names.name_situation import advise

if TYPE_CHECKING:
    from knowngood.failures.logs.last_errors import LastError

_IGNORED = lazy_pattern(
    r"The config attributes \{(?P<keys>[^}]{3,800})\} were passed to (?P<owner>\w+), but are not expected"
)
_KEY = lazy_pattern(r"['\"](?P<key>\w+)['\"]:")
_PACKAGE = "diffusers"
_SHOWN = 120


def explain_ignored_setting(error: LastError, shelf: AtlasShelf) -> MessageCause | None:
    """Return that diffusers is older than the model; `None` where no setting was ignored, or none of a later release.

    Args:
        error: the last error of the log, which arises in a file of diffusers.
        shelf: the atlas of all packages.
    """
    stated = list(_IGNORED.finditer(error.above.decode("utf-8", "replace")))
    lookup = shelf.open(_PACKAGE)
    if not stated or lookup is None or not any(_PACKAGE in frame.installed[:1] for frame in error.frames[-4:]):
        return None
    owner, keys = stated[-1]["owner"], [match["key"] for match in _KEY.finditer(stated[-1]["keys"])]
    taken = {key: find_parameter(lookup, f"{lookup.file.root}.{owner}", key).accepted for key in keys}
    known = {key: mask for key, mask in taken.items() if mask}
    if not known:
        return None
    at = max((mask & -mask).bit_length() - 1 for mask in known.values())
    first, shown = lookup.file.releases[at], ", ".join(known)
    since = f"in every release from {first} on that was read" if at == 0 else f"since {first}"
    because = (
        f"A line above says that {owner} was passed {shown} by the model's config.json, does not expect it, and "
        f"ignores it. diffusers takes it {since}: an older one runs, builds the model without that setting, and fails "
        f"at what follows from it ({shorten_text(error.message, _SHOWN)})."
    )
    fixes = [
        Fix(change={_PACKAGE: f">={first}"}, note=f"its {owner} takes {shown}", cost="an upgrade"),
        upgrade_package(_PACKAGE, f"the newest {_PACKAGE}"),
        advise("A model of the age of the diffusers that the project needs"),
    ]
    incident = describe_traceback(
        "ignored-setting",
        IncidentKind.API_NOT_YET,
        _PACKAGE,
        title=f"diffusers is older than the model: its {owner} does not know {shown}",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package=_PACKAGE)
