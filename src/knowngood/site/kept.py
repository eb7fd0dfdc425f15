"""What a cell's evidence was boiled down to, kept until one of its files (name, size, time) or the program changes."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from knowngood import evidence
from knowngood.paths import cache_dir
from knowngood.site import observed
from knowngood.site.observed import Seen, observe

_SEEN = TypeAdapter(Seen)


def seen(folder: Path, cell: str, *, locked: bool) -> Seen:
    """As `observe` has it."""
    files = [(path.name, path.stat()) for path in sorted((folder / cell).glob("*.json"))]
    if not files:
        return observe(folder, cell, locked=locked)
    state = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    key = hashlib.sha256(repr((_program(), str(folder.resolve()), cell, locked, state)).encode()).hexdigest()
    place = cache_dir() / "site" / "evidence" / f"{key[:32]}.json"
    try:
        return _SEEN.validate_json(place.read_bytes())
    except (OSError, ValidationError):
        found = observe(folder, cell, locked=locked)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}")
        beside.write_bytes(_SEEN.dump_json(found))  # not synced: half of one is no JSON, and is made again
        beside.rename(place)
        return found


@cache
def _program() -> str:
    """The modules that read evidence."""
    made = hashlib.sha256()
    for module in (evidence, observed):
        made.update(Path(str(module.__file__)).read_bytes())
    return made.hexdigest()
