"""How cells came out: a line of the summary each, which goes from one process to another as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from knowngood.building import build
from knowngood.errors import KnowngoodError
from knowngood.evidence import Tier


class Status(StrEnum):
    """How a cell came out."""

    PROVEN = "proven"
    UNCHANGED = "unchanged"
    """Nothing it follows from has changed since it was proven; nothing was done."""
    BUILT = "built"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A cell's line in the summary."""

    cell: str
    status: Status
    seconds: float
    tier: Tier = Tier.NONE
    image: build.Image | None = None
    evidence: Path | None = None
    note: str = ""
    error: KnowngoodError | None = None

    def document(self, root: Path) -> dict[str, Any]:
        """The result for `--json`; paths are told from the project's root."""
        image = self.image
        return {
            "id": self.cell,
            "status": str(self.status),
            "tier": str(self.tier),
            "image": {"tag": image.tag, "digest": image.digest, "bytes": image.size, "built": image.built}
            if image
            else None,
            "seconds": round(self.seconds, 1),
            "evidence": str(self.evidence.relative_to(root)) if self.evidence else None,
            "note": self.note,
            "error": str(self.error) if self.error else None,
            "exit": self.error.exit_code if self.error else 0,
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any], root: Path) -> Result:
        """What `document` wrote."""
        image = stored["image"]
        error = KnowngoodError(stored["error"]) if stored["error"] else None
        if error:
            error.exit_code = stored["exit"]
        return cls(
            cell=stored["id"],
            status=Status(stored["status"]),
            seconds=stored["seconds"],
            tier=Tier(stored["tier"]),
            image=build.Image(tag=image["tag"], digest=image["digest"], size=image["bytes"], built=image["built"])
            if image
            else None,
            evidence=root / stored["evidence"] if stored["evidence"] else None,
            note=stored["note"],
            error=error,
        )
