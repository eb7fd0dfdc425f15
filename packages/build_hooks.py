"""Build hooks of the workspace: what the whole depends on, and the data that wheels carry.

The root of the checkout is installed as one editable distribution with everything in it; a wheel is built from the
folder of each distribution. The data of all wheels lies below `knowngood/_data`, as in the checkout.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

DISTRIBUTIONS = ("knowngood", "knowngood-facts", "knowngood-diagnose", "knowngood-pages")
DATA = {
    "knowngood": ("matrix.yaml", "docker", "templates", "smoke_tests", "evidence"),
    "knowngood-facts": ("packages/knowngood-facts/facts", "packages/knowngood-facts/rules"),
    "knowngood-diagnose": ("packages/knowngood-diagnose/incidents", "packages/knowngood-diagnose/reproductions"),
}
"""Distribution to the files and folders of the checkout that its wheel carries."""


class WorkspaceMetadata(MetadataHookInterface):
    """Gives the whole the dependencies, commands and entry points of its parts."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic fields; hatchling calls this before it builds."""
        dependencies: set[str] = set()
        optional: dict[str, list[str]] = {}
        entry_points: dict[str, dict[str, str]] = {}
        for name in DISTRIBUTIONS:
            text = (Path(self.root) / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
            project = tomllib.loads(text)["project"]
            dependencies |= {item for item in project["dependencies"] if not item.startswith("knowngood")}
            optional |= project.get("optional-dependencies", {})
            for group, entries in project.get("entry-points", {}).items():
                entry_points.setdefault(group, {}).update(entries)
        metadata["dependencies"] = sorted(dependencies)
        metadata["optional-dependencies"] = optional
        metadata["entry-points"] = entry_points


class DataHook(BuildHookInterface[Any]):
    """Adds the data of a distribution to its wheel; an editable install reads the checkout itself and gets no copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the data to the files of the wheel; hatchling calls this before it collects files."""
        if version == "editable":
            return
        checkout = Path(self.root).parents[1]
        for name in DATA.get(self.metadata.name, ()):
            build_data["force_include"][str(checkout / name)] = f"knowngood/_data/{name}"
