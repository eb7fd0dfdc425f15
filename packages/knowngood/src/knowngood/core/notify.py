"""How long work tells a person what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]
"""Called with one line of progress at a time; the line has no final newline."""
