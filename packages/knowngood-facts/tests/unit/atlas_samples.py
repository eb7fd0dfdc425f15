"""An atlas made of sources in a test."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from knowngood_facts.facts.atlas_file import AtlasFile, AtlasTables
from knowngood_facts.facts.atlas_lookup import AtlasLookup
from knowngood_facts.facts.module_rows import extract_module


def write_atlas(folder: Path, package: str, *releases: dict[str, str]) -> AtlasLookup:
    """Write the atlas of a package whose releases are 1.0, 1.1 and so on, and open it."""
    tables = AtlasTables(package=package, root=package)
    for number, modules in enumerate(releases):
        rows = {}
        for module, source in modules.items():
            is_package = "." not in module
            read = extract_module(dedent(source), module, is_package=is_package, callees=frozenset({"lib"}) - {package})
            rows[module] = [f"{row.path}\t{row.kind}\t{row.detail}" for row in read.rows]
            if read.uses:
                rows[f"@{module}"] = [f"{use.target}\t{use.place}\t{use.guard}" for use in read.uses]
        tables.add_release(f"1.{number}", number, f"{package}-1.{number}-py3-none-any.whl", rows)
    tables.write(folder)
    return AtlasLookup(AtlasFile(folder / f"{package}.atlas"))
