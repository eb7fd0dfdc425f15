"""Regular expressions that are compiled when they are first used.

A command imports modules with hundreds of patterns and uses few of them. Compiling one takes as long as reading ten
lines of a log with it.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Generic, cast


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` would return, compiled at the first use of an attribute: a defect shows only then."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern(Generic[AnyStr]):
    def __init__(self, pattern: AnyStr, flags: int) -> None:
        self._source: tuple[AnyStr, int] = pattern, flags

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled pattern, and keep it, so that this is not called again for it."""
        attribute = getattr(re.compile(*self._source), name)  # `re` keeps no more than 512 compiled patterns
        setattr(self, name, attribute)
        return attribute
