"""Sealed files: JSON files whose names end in the digest of their content, so a changed file no longer fits its name.

Any number of processes may write at once. Files that are older than this rule are listed in `SHA256SUMS`, in the form
that `sha256sum -c` reads. A seal does not say who made a file: anybody who can write
here can write a file with a name that fits. It says that the file is what it was when it got its name, and git says
since when.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from knowngood.core.data_files import read_data_text
from knowngood.core.local_files import write_atomically

LEDGER = "SHA256SUMS"
DIGITS = 32
"""Hexadecimal digits of the SHA-256 in a file name: 128 bits."""
_SEALED = re.compile(rf".*-([0-9a-f]{{{DIGITS}}})", re.ASCII)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)", re.ASCII)


def write_sealed_json(folder: Path, stem: str, text: str) -> Path:
    """Write `<folder>/<stem>-<digest>.json` and return its path; writing the same text again changes nothing."""
    path = folder / sealed_name(stem, text.encode())
    write_atomically(path, text)
    return path


def sealed_name(stem: str, data: bytes) -> str:
    """Return the name of a sealed file with this content."""
    return f"{stem}-{_sha256(data)[:DIGITS]}.json"


def find_defect(path: Path, data: bytes) -> str | None:
    """Return why `data` cannot be what was stored at `path`, or `None` when it is unchanged."""
    expected = stated_digest(path)
    if expected is None:
        return f"cannot verify this file: neither its name nor {LEDGER} holds its digest"
    actual = _sha256(data)
    if actual.startswith(expected):
        return None
    place = "its name" if _SEALED.fullmatch(path.stem) else LEDGER
    return f"forged or damaged: its SHA-256 is {actual[:DIGITS]}, but {place} says {expected[:DIGITS]}"


def stated_digest(path: Path) -> str | None:
    """Return the digest (its first 32 digits or all) that the name of a file or the ledger states, else `None`."""
    in_name = _SEALED.fullmatch(path.stem)
    return in_name[1] if in_name else _ledger_digest(path)


def describe_unsigned_run(file: str) -> str:
    """Return the sentence on a run that the seal of the project does not cover; `file` is its path in `evidence/`."""
    return f"{file}: unsigned: seal.json does not cover this run, so it proves nothing until `knowngood keys seal`"


def read_ledger(root: Path) -> dict[str, str]:
    """Read `SHA256SUMS` of a folder: path below the folder -> SHA-256. Empty when there is none."""
    try:
        text = read_data_text(root / LEDGER)
    except FileNotFoundError:
        return {}
    return {entry[2]: entry[1] for line in text.splitlines() if (entry := _LINE.fullmatch(line))}


def _ledger_digest(path: Path) -> str | None:
    """Look a file up in the ledger, which is one folder above a cell's and two above an incident's."""
    for root in (path.parent.parent, path.parent.parent.parent):
        try:
            state = (root / LEDGER).stat()
        except OSError:
            continue
        return _cached_ledger(root, state.st_mtime_ns, state.st_size).get(path.relative_to(root).as_posix())
    return None


@lru_cache(maxsize=8)
def _cached_ledger(root: Path, _changed: int, _size: int) -> dict[str, str]:
    return read_ledger(root)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
