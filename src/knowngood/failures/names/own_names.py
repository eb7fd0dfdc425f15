"""What can be said of a name that no package has: it is the project's own, the model's, or nobody's. Pure.

It is less certain than what the atlas knows, so it counts only when nothing else explains the last error of a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood.failures.logs.logged_errors import FaultKind, LoggedError
from knowngood.failures.names.own_classes import explain_own_attribute
from knowngood.failures.names.own_keywords import explain_own_keyword
from knowngood.failures.names.own_modules import explain_class_key, explain_own_module
from knowngood.failures.names.uncompiled_parts import explain_uncompiled_part

if TYPE_CHECKING:
    from knowngood.failures.names.atlas_shelf import AtlasShelf, NamePlace
    from knowngood.failures.names.name_situation import NameCause

_ABOUT_MODULES = frozenset((FaultKind.IMPORT, FaultKind.MODULE_ATTRIBUTE, FaultKind.MODULE))


def explain_own_name(error: LoggedError, place: NamePlace | None, shelf: AtlasShelf) -> NameCause | None:
    """Return what is certain of an attribute or keyword that no release of any package has; `None` when nothing is.

    Args:
        error: an error about an attribute of an object, or about an unexpected keyword.
        place: the place of the name in the atlas, when a package has the class or function without it.
        shelf: the atlas of all packages.
    """
    if error.fault.kind is FaultKind.OBJECT_ATTRIBUTE:
        return explain_own_attribute(error, shelf)
    if error.fault.kind is FaultKind.KEYWORD:
        return explain_own_keyword(error, place, shelf)
    if error.fault.kind in _ABOUT_MODULES:
        return explain_uncompiled_part(error, shelf) or explain_own_module(error, shelf)
    return explain_class_key(error, shelf) if error.fault.kind is FaultKind.CLASS_KEY else None
