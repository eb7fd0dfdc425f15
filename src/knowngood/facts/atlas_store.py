"""The atlas on this machine: which packages it has, and their files, opened once in a process."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from knowngood.facts.atlas_file import AtlasFile
from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.fact_store import facts_folder

_HEADER_LIMIT = 1 << 20  # bytes


def atlas_folder() -> Path:
    """Return the folder of the atlas that this installation uses."""
    return facts_folder() / "atlas"


def list_atlas_packages(folder: Path | None = None) -> list[str]:
    """Return the packages that have a file, sorted."""
    return sorted(path.stem for path in (folder or atlas_folder()).glob("*.atlas"))


@cache
def open_atlas(package: str, folder: Path | None = None) -> AtlasLookup | None:
    """Open the file of a package; `None` when there is none. `InputError` when it is damaged."""
    path = (folder or atlas_folder()) / f"{package}.atlas"
    return AtlasLookup(AtlasFile(path)) if path.exists() else None


def find_owner(module: str, folder: Path | None = None) -> str | None:
    """Return the package whose top-level module this is (`flash-attn` for `flash_attn`), or `None`."""
    return next(iter(list_owners(module, folder)), None)


@cache
def list_owners(module: str, folder: Path | None = None) -> tuple[str, ...]:
    """Return the packages with this top-level module: first the one that is called like it."""
    folder = folder or atlas_folder()
    guess = module.replace("_", "-")
    names = sorted(list_atlas_packages(folder), key=lambda name: name != guess)
    return tuple(name for name in names if _read_root(folder / f"{name}.atlas") == module)


@cache
def _read_root(path: Path) -> str:
    with path.open("rb") as opened:
        line = opened.readline(_HEADER_LIMIT)
    try:
        return str(json.loads(line)["root"])
    except (ValueError, KeyError, TypeError):
        return ""
