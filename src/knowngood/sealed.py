"""Files whose names end in the digest of their content: none changes and keeps its name; any number may write at once.

What was stored before names had one is listed in `SHA256SUMS`, as `sha256sum -c` reads it; `scripts/seal.py` wrote it.
Neither says who made a file: whoever may write here may write a file and a name that fit. They say that a file is what
it was when it was named, and the history of names, which git keeps, says since when.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from knowngood.atomic import write_text

LEDGER = "SHA256SUMS"
DIGITS = 32
"""Of SHA-256, in a name: 128 bits."""
_SEALED = re.compile(rf".*-([0-9a-f]{{{DIGITS}}})", re.ASCII)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)", re.ASCII)


def write(folder: Path, stem: str, text: str) -> Path:
    """Write `<stem>-<digest>.json`; the same text a second time is the same file."""
    path = folder / name(stem, text.encode())
    write_text(path, text)
    return path


def name(stem: str, data: bytes) -> str:
    """The name of a file that holds this."""
    return f"{stem}-{_digest(data)[:DIGITS]}.json"


def defect(path: Path, data: bytes) -> str | None:
    """Why a file cannot be taken for what was stored under its name."""
    named = _SEALED.fullmatch(path.stem)
    said = named[1] if named else _listed(path)
    if said is None:
        return (
            f"its name does not end in its digest, nor does {LEDGER} list it: who knows what it said when it was stored"
        )
    found = _digest(data)
    if found.startswith(said):
        return None
    where = "its name" if named else LEDGER
    return f"forged or damaged: its SHA-256 is {found[:DIGITS]}, by {where} it was stored as {said[:DIGITS]}"


def is_sealed(path: Path) -> bool:
    """Whether its name ends in a digest."""
    return _SEALED.fullmatch(path.stem) is not None


def ledger(root: Path) -> dict[str, str]:
    """Name below the folder to SHA-256, of what was stored before names had it."""
    try:
        text = (root / LEDGER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return {found[2]: found[1] for line in text.splitlines() if (found := _LINE.fullmatch(line))}


def _listed(path: Path) -> str | None:
    """The ledger lies above the folders of cells; those of incidents are one deeper."""
    for root in (path.parent.parent, path.parent.parent.parent):
        try:
            state = (root / LEDGER).stat()
        except OSError:
            continue
        return _known(root, state.st_mtime_ns, state.st_size).get(path.relative_to(root).as_posix())
    return None


@lru_cache(maxsize=8)
def _known(root: Path, _changed: int, _size: int) -> dict[str, str]:
    return ledger(root)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
