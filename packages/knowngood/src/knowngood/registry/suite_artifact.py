"""The smoke suite in a registry: attached to an image as its other documents are, so that an image is enough to run it.

The document is JSON: the suite's hash, and the text of each file by its path. Nothing of it runs on this machine; the
container in which it runs says the hash again, in its report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.json_document import parse_foreign_json
from knowngood.registry import attachments, signatures
from knowngood.registry.attachments import SUITE_MEDIA_TYPE, Attachment
from knowngood.registry.manifests import Descriptor
from knowngood.smoke import suite_files

if TYPE_CHECKING:
    from knowngood.project.release_signers import ReleaseVerifier
    from knowngood.registry.registry_client import Registry

SUITE_SCHEMA = "knowngood/suite/1"
_CREATED = "org.opencontainers.image.created"


@dataclass(frozen=True, kw_only=True)
class AttachedSuite:
    """A suite that was attached to an image."""

    sha256: str
    """The suite's hash, which reports of it contain."""
    files: dict[str, str]
    """The text of each file by its path `smoke_tests/NAME`."""

    def write_files(self, folder: Path) -> Path:
        """Write the files below a folder, and return the folder of the suite."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder / suite_files.SUITE_FOLDER


def suite_attachment(suite: Path, day: str = "") -> Attachment:
    """Return a suite as a document to attach; `day` is when it was changed last, which tells the newest of several.

    Raises `MissingError` when the folder holds no suite.
    """
    sha256 = suite_files.hash_suite(suite)
    files = {name: data.decode() for name, data in suite_files.read_suite_files(suite).items()}
    document = {"schema": SUITE_SCHEMA, "suite": sha256, "files": files}
    data = (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    annotations = {_CREATED: day} if day else {}
    return Attachment(
        media=SUITE_MEDIA_TYPE, name=f"smoke-suite-{sha256[:12]}.json", data=data, annotations=annotations
    )


def fetch_attached_suite(registry: Registry, image: str, verifiers: Sequence[ReleaseVerifier]) -> AttachedSuite:
    """Return the newest suite that is attached to an image; with `verifiers`, of those that one of them has signed.

    Raises `KnowngoodError` when there is none, or when what is attached is damaged.
    """
    entries = [
        entry
        for entry in attachments.list_referrers(registry, image)[0]
        if entry.get("artifactType") == SUITE_MEDIA_TYPE
    ]
    entries.sort(key=lambda entry: str((entry.get("annotations") or {}).get(_CREATED, "")), reverse=True)
    for digest in (Descriptor.read(entry).digest for entry in entries):
        if verifiers and not signatures.is_document_signed(registry, digest, verifiers):
            continue
        [item] = attachments.fetch_attachments(registry, image, [digest])
        return parse_suite_document(item.data, f"{registry.repository}@{digest}")
    required = " or ".join(item.name for item in verifiers)
    missing = f"none that is signed with {required}" if entries else "no smoke suite"
    raise KnowngoodError(
        f"{registry.repository}@{image} has {missing} attached; `knowngood publish` attaches it, and in a checkout "
        "`knowngood smoke` runs the suite that is there"
    )


def parse_suite_document(data: bytes, name: str) -> AttachedSuite:
    """Parse an attached suite; `name` says where it comes from.

    Raises `KnowngoodError` for what is no suite, and for a path that leaves the suite's folder.
    """
    what = f"{name} is not a smoke suite"
    document = parse_foreign_json(data, what, dict[str, Any])
    sha256, files = document.get("suite"), document.get("files")
    if document.get("schema") != SUITE_SCHEMA or not isinstance(sha256, str) or not isinstance(files, dict):
        raise KnowngoodError(what)
    if not all(isinstance(text, str) and _is_own_path(path) for path, text in files.items()):
        raise KnowngoodError(what)
    return AttachedSuite(sha256=sha256, files=files)


def _is_own_path(text: str) -> bool:
    """Return whether a path lies in the suite's folder, as its name says."""
    parts = PurePosixPath(text).parts
    return len(parts) > 1 and parts[0] == suite_files.SUITE_FOLDER and ".." not in parts
