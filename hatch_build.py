"""Build hook that copies data into the wheel, so that commands work without a checkout: answers, builds and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA = (
    *("matrix.yaml", "facts", "rules", "incidents", "reproductions", "evidence", "templates"),
    *("docker", "smoke_tests"),
)


class DataHook(BuildHookInterface[Any]):
    """Adds the data to a wheel; an editable install reads the checkout itself and gets no copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the data folders to the files of the wheel; hatchling calls this before it collects files."""
        if version == "editable":
            return
        for name in DATA:
            path = Path(self.root) / name
            if path.exists():
                build_data["force_include"][str(path)] = f"knowngood/_data/{name}"
