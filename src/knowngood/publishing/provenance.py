"""Where an image came from: an in-toto statement with SLSA's provenance predicate. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.publishing import sbom
from knowngood.system.packages_lock import PackagesLock

if TYPE_CHECKING:
    from knowngood.locks.tree import CellLock

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:knowngood:cell:1"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The checkout that an image was made from."""

    commit: str
    repository: str | None
    """Where it was cloned from, without credentials."""
    uncommitted: tuple[str, ...]
    """Files that shape the image and differ from the commit."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What made the image, and of what."""

    digest: str
    inputs: str
    """SHA-256 over all that shapes it; the image's label says the same."""
    epoch: int
    source: Source | None
    """`None` outside of git."""
    versions: Mapping[str, str]
    """Of the tools: docker, buildkit, uv, knowngood."""
    builder: str


def write(locked: CellLock, base: PackagesLock | str, built: Built) -> str:
    """The statement's text."""
    source = built.source
    document = {
        "_type": STATEMENT,
        "subject": [{"name": str(locked.cell), "digest": _sha256(built.digest)}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"cell": str(locked.cell)},
                "internalParameters": {
                    "inputs": f"sha256:{built.inputs}",
                    "lock": f"sha256:{locked.digest}",
                    "sourceDateEpoch": built.epoch,
                    **({"uncommitted": list(source.uncommitted)} if source and source.uncommitted else {}),
                },
                "resolvedDependencies": [*_source(source), *_materials(locked, base)],
            },
            "runDetails": {"builder": {"id": f"urn:knowngood:{built.builder}", "version": dict(built.versions)}},
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _source(source: Source | None) -> list[dict[str, Any]]:
    if source is None:
        return []
    place = {"uri": f"git+{source.repository}"} if source.repository else {}
    return [{"name": "source", **place, "digest": {"gitCommit": source.commit}}]


def _materials(locked: CellLock, base: PackagesLock | str) -> list[dict[str, Any]]:
    found = [
        {"name": item.file, "uri": sbom.wheel_purl(item), "digest": {"sha256": item.sha256}}
        for item in sorted(locked.distributions)
    ]
    if isinstance(base, str):
        return [{"name": "base", "uri": sbom.image_purl(base), "digest": _sha256(base.partition("@")[2])}, *found]
    image = {"name": f"base {locked.base}", "digest": _sha256(base.digest)} if base.digest else {}
    packages = [
        {"name": package.name, "uri": sbom.deb_purl(package, base.suite), "digest": {"sha256": package.sha256}}
        for package in (*base.packages, *base.tools)
    ]
    return [*([image] if image else []), *found, *packages]


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
