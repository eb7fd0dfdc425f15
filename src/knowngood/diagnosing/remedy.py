"""A remedy of an incident and what became of it when it was tried against what a log says is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from knowngood.incidents.model import Fix


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A remedy and what became of it."""

    fix: Fix
    pins: Mapping[str, str] = field(default_factory=dict)
    """Package -> the release to install, or a range where there are no facts; empty when nothing is installed."""
    broken_by: str = ""
    """Why it does not go with the rest of what the log shows."""

    def document(self) -> dict[str, Any]:
        """As `diagnose --json` shows it."""
        made = self.fix.document()
        if self.broken_by:
            return {**made, "broken_by": self.broken_by}
        return {**made, "install": install(self.pins)} if self.pins else made


def install(pins: Mapping[str, str]) -> str:
    """The line for a shell."""
    wanted = [f'"{name}{text if text[:1] in "<>=!~" else f"=={text}"}"' for name, text in sorted(pins.items())]
    built = " --no-build-isolation" if "flash-attn" in pins else ""
    return f"pip install {' '.join(wanted)}{built}"
