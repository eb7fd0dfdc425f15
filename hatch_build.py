"""Puts the data beside the program in its wheel: what `knowngood check`, `pick` and `cells` read without a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA = (
    *("matrix.yaml", "facts", "rules", "incidents", "contracts", "reproductions", "evidence", "templates"),
    *("docker/cells", "docker/layers"),
)


class DataHook(BuildHookInterface[Any]):
    """An editable install reads the checkout itself and gets no copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        for name in DATA:
            path = Path(self.root) / name
            if path.exists():
                build_data["force_include"][str(path)] = f"knowngood/_data/{name}"
