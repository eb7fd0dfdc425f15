"""The provenance of an image: an in-toto statement with SLSA's provenance predicate. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.lock.debian_lock import PackagesLock
from knowngood.registry import bill_of_materials

if TYPE_CHECKING:
    from knowngood.lock.lock_tree import CellLock

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:knowngood:cell:1"


@dataclass(frozen=True, kw_only=True)
class GitSource:
    """The checkout that an image was made from."""

    commit: str
    repository: str | None
    """Address of the repository, without credentials."""
    uncommitted: tuple[str, ...]
    """Files that shape the image and differ from the commit."""


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """How an image was facts."""

    digest: str
    inputs: str
    """SHA-256 over everything that shapes it; the image has it as a label too."""
    epoch: int
    source: GitSource | None
    """`None` when the project is not a git checkout."""
    versions: Mapping[str, str]
    """Versions of the tools: docker, buildkit, uv, knowngood."""
    builder: str


def render_provenance(locked: CellLock, base: PackagesLock, facts: BuildFacts) -> str:
    """Return the statement as JSON text."""
    source = facts.source
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": str(locked.cell), "digest": _sha256(facts.digest)}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"cell": str(locked.cell)},
                "internalParameters": {
                    "inputs": f"sha256:{facts.inputs}",
                    "lock": f"sha256:{locked.digest}",
                    "sourceDateEpoch": facts.epoch,
                    **({"uncommitted": list(source.uncommitted)} if source and source.uncommitted else {}),
                },
                "resolvedDependencies": [*_source_material(source), *_materials(locked, base)],
            },
            "runDetails": {"builder": {"id": f"urn:knowngood:{facts.builder}", "version": dict(facts.versions)}},
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _source_material(source: GitSource | None) -> list[dict[str, Any]]:
    if source is None:
        return []
    place = {"uri": f"git+{source.repository}"} if source.repository else {}
    return [{"name": "source", **place, "digest": {"gitCommit": source.commit}}]


def _materials(locked: CellLock, base: PackagesLock) -> list[dict[str, Any]]:
    wheels = [
        {"name": item.file, "uri": bill_of_materials.wheel_purl(item), "digest": {"sha256": item.sha256}}
        for item in sorted(locked.distributions)
    ]
    image = {"name": f"base {locked.base}", "digest": _sha256(base.digest)} if base.digest else {}
    packages = [
        {
            "name": package.name,
            "uri": bill_of_materials.deb_purl(package, base.suite),
            "digest": {"sha256": package.sha256},
        }
        for package in (*base.packages, *base.tools)
    ]
    return [*([image] if image else []), *wheels, *packages]


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}
