"""Sealed files: JSON files whose names end in the digest of their content, so a changed file no longer fits its name.

Any number of processes may write at once. The ledger `SHA256SUMS`, in the form that `sha256sum -c` reads, lists them;
`render` adds new files to it and removes none, so a file that is removed leaves its line. What its folder proves then
is not known, and nothing there counts. A name and a ledger do not say who made a file: anybody who can write here can
write both. That is what the signed seal of a release is for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from knowngood.core.data_files import read_data_text
from knowngood.core.local_files import write_atomically

LEDGER = "SHA256SUMS"
UNSIGNED_EVIDENCE = "evidence is unsigned: matrix.yaml names no key, so a tier is what the files here say"
"""What is said once beside tiers in a project without a key."""
DIGITS = 32
"""Hexadecimal digits of the SHA-256 in a file name: 128 bits."""
_SEALED = re.compile(rf".*-([0-9a-f]{{{DIGITS}}})", re.ASCII)
_LINE = re.compile(r"([0-9a-f]{64})  (.+)", re.ASCII)


class RunSeal(Protocol):
    """The seal of a release, as far as it is about evidence; a file is named by its path below `evidence/`."""

    @property
    def runs(self) -> Collection[str]:
        """The files of evidence that it names."""

    def covers_run(self, file: str) -> bool:
        """Return whether it names a file with the digest that the file's own name or the ledger states."""


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


def find_missing_files(root: Path, seal: RunSeal | None) -> dict[str, list[str]]:
    """Return the folders in `root` that have lost files, each with a sentence for every lost file.

    A file is lost that the ledger or the seal names. It may have been a run that failed, so that what is left says
    nothing of the folder's cell or model.
    """
    named = dict.fromkeys(seal.runs if seal else (), "seal.json") | dict.fromkeys(read_ledger(root), LEDGER)
    lost: dict[str, list[str]] = {}
    for file, place in sorted(named.items()):
        if not (root / file).is_file():
            folder = file.rpartition("/")[0]
            words = f"{file}: missing, although {place} names it, so nothing in {folder}/ counts; restore it"
            lost.setdefault(folder, []).append(words)
    return lost


def render_ledger(root: Path) -> str:
    """Return the text of `SHA256SUMS` with a line for each sealed file that it lacks; empty without any file."""
    digests = read_ledger(root)
    for path in root.rglob(f"*-{'[0-9a-f]' * DIGITS}.json"):
        name = path.relative_to(root).as_posix()
        if name not in digests and find_defect(path, data := path.read_bytes()) is None:
            digests[name] = _sha256(data)
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


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
