"""The seal of a release: one file with the hashes of all facts, rules, incidents and runs, and a signature beside it.

It is made at a release, not at every harvest or run. Where matrix.yaml names a key, what the seal does not cover is
shown as unsigned, and a run that it does not cover raises no tier.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from knowngood.core import json_document, local_files
from knowngood.core.data_files import read_data_bytes
from knowngood.core.local_files import write_atomically
from knowngood.evidence import sealed_files
from knowngood.project import release_signers

if TYPE_CHECKING:
    from knowngood.project.release_signers import SigningKey

SEAL_FILE = "seal.json"
SEAL_SIGNATURE_FILE = "seal.json.sig"
"""The signature in base64, as `cosign sign-blob` writes it and `cosign verify-blob` reads it."""
SEAL_SCHEMA = "knowngood/seal/1"
EVIDENCE_FOLDER = "evidence"
KNOWLEDGE_FOLDERS = (local_files.FACTS_FOLDER, local_files.RULES_FOLDER, local_files.INCIDENTS_FOLDER)
_MOST_NOTES = 5
_REMEDY = "`knowngood keys seal` writes it again"


class _SealDocument(TypedDict):
    schema: Literal["knowngood/seal/1"]
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class SealDifference:
    """How the files of a project differ from its seal."""

    changed: tuple[str, ...]
    missing: tuple[str, ...]
    unsigned: tuple[str, ...]
    """Files that the seal does not name."""

    def notes(self) -> list[str]:
        """Return a sentence for each file."""
        return [
            *(f"{name}: unsigned: it was changed after {SEAL_FILE} was signed" for name in self.changed),
            *(f"{name}: missing, although {SEAL_FILE} names it" for name in self.missing),
            *(f"{name}: unsigned: {SEAL_FILE} does not name it" for name in self.unsigned),
        ]


@dataclass(frozen=True, kw_only=True)
class ReleaseSeal:
    """The seal of a project whose matrix.yaml names a key."""

    root: Path
    files: Mapping[str, str] = field(default_factory=dict)
    """Path below the project -> SHA-256; empty when the seal is not valid."""
    defect: str | None = None
    """Why the seal covers nothing; `None` when it is valid."""

    @cached_property
    def runs(self) -> frozenset[str]:
        """The files of evidence that the seal names, as paths below `evidence/`."""
        below = f"{EVIDENCE_FOLDER}/"
        names = (name.removeprefix(below) for name in self.files if name.startswith(below))
        return frozenset(name for name in names if name.endswith(".json"))

    def covers_run(self, file: str) -> bool:
        """Return whether the seal names a run, `file` being its path below `evidence/`.

        The file is not read: whoever reads a run compares its content with the digest in its name, or in the ledger.
        """
        sealed = self.files.get(f"{EVIDENCE_FOLDER}/{file}")
        stated = sealed_files.stated_digest(self.root / EVIDENCE_FOLDER / file)
        return sealed is not None and stated is not None and sealed.startswith(stated)

    def compare_files(self, folders: Iterable[str]) -> SealDifference:
        """Compare the files in some folders of the project with the seal; each is read."""
        folders = tuple(folders)
        actual = hash_files(self.root, folders)
        below = tuple(f"{folder}/" for folder in folders)
        sealed = {name: digest for name, digest in self.files.items() if name.startswith(below)}
        return SealDifference(
            changed=tuple(sorted(name for name in actual.keys() & sealed.keys() if actual[name] != sealed[name])),
            missing=tuple(sorted(sealed.keys() - actual.keys())),
            unsigned=tuple(sorted(actual.keys() - sealed.keys())),
        )

    @cached_property
    def knowledge_notes(self) -> tuple[str, ...]:
        """Which facts, rules and incidents are unsigned, a sentence for each; without a valid seal its defect."""
        if self.defect:
            return (f"{self.defect}: facts, rules, incidents and runs are unsigned",)
        notes = self.compare_files(KNOWLEDGE_FOLDERS).notes()
        if len(notes) <= _MOST_NOTES:
            return tuple(notes)
        return (*notes[:_MOST_NOTES], f"{len(notes) - _MOST_NOTES} more; `knowngood keys seal --check` lists all")


def load_release_seal(root: Path, key_files: Sequence[str]) -> ReleaseSeal | None:
    """Read the seal of a project and verify its signature; `None` where matrix.yaml names no key.

    A seal that is missing, or not signed with one of the keys, covers nothing, and says why.

    Raises:
        UsageError: a key cannot be read.
        InputError: a seal with a valid signature has a defect, or is no file that can be read.
    """
    if not key_files:
        return None
    keys = release_signers.load_verification_keys(root, key_files)
    try:
        data = read_data_bytes(root / SEAL_FILE, SEAL_FILE)
        signature = base64.b64decode(read_data_bytes(root / SEAL_SIGNATURE_FILE).strip(), validate=True)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        return ReleaseSeal(root=root, defect=f"there is no {name}; `knowngood keys seal` writes it")
    except binascii.Error:
        return ReleaseSeal(root=root, defect=f"{SEAL_SIGNATURE_FILE} is not written in base64")
    if not any(key.accepts(signature, data) for key in keys):
        names = " or ".join(key.name for key in keys)
        return ReleaseSeal(root=root, defect=f"{SEAL_FILE} is not signed with {names}, or was changed")
    document = json_document.parse_json(data, SEAL_FILE, _SealDocument, remedy=_REMEDY)
    return ReleaseSeal(root=root, files=document["files"])


def write_release_seal(root: Path, key: SigningKey) -> Mapping[str, str]:
    """Write the seal of a project and its signature; return path -> SHA-256 of what it covers."""
    files = hash_files(root, (*KNOWLEDGE_FOLDERS, EVIDENCE_FOLDER))
    text = json.dumps({"schema": SEAL_SCHEMA, "files": files}, indent=0) + "\n"
    write_atomically(root / SEAL_FILE, text)
    write_atomically(root / SEAL_SIGNATURE_FILE, base64.b64encode(key.sign_bytes(text.encode())).decode() + "\n")
    return files


def hash_files(root: Path, folders: Iterable[str]) -> dict[str, str]:
    """Return path below `root` -> SHA-256 of every file in some folders, sorted; hidden files are left out."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in sorted(folders)
        for path in sorted(_visible_files(root / folder))
    }


def _visible_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path
