"""What the runs of an image prove of it, as `publish` requires it and attaches it to the image.

The tier is not a label: labels are part of the image whose digest the tier is about, and a later run may raise it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.compat.cell_answer import describe_tier, explain_tier
from knowngood.core.errors import KnowngoodError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood.registry import attachments
from knowngood.registry.attachments import Attachment

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.core.publish_policy import PublishPolicy
    from knowngood.project.checkout import Project

TIER_SCHEMA = "knowngood/tier/1"


@dataclass(frozen=True, kw_only=True)
class ReleaseProof:
    """The good runs of an image, none of which a newer red run has made invalid."""

    cell: Cell
    digest: str
    runs: tuple[Evidence, ...]
    """At least one, the oldest first."""

    @property
    def newest(self) -> Evidence:
        """The run that was made last."""
        return self.runs[-1]

    @property
    def tier(self) -> Tier:
        """How far the runs prove the image."""
        return max((_tier_of(run) for run in self.runs), key=list(Tier).index)

    @property
    def run(self) -> Evidence:
        """The run that proves the tier: the whole suite before its quick part, then the first.

        The first, so that the documents stay the same while further runs say the same.
        """
        proving = [run for run in self.runs if _tier_of(run) is self.tier]
        return min(proving, key=lambda run: (run.quick, run.when))

    def require_tier(self, policy: PublishPolicy) -> None:
        """Raise `KnowngoodError` when the image is proven less far than matrix.yaml publishes images of its GPU."""
        least, order = Tier(policy.least_tier(self.cell)), list(Tier)
        if order.index(self.tier) < order.index(least):
            gpus = " --gpus" if least is Tier.TRAINS_ON_GPU else ""
            raise KnowngoodError(
                f"{self.cell}: its image is {self.tier} ({describe_tier(self.tier)}), and matrix.yaml publishes images "
                f"for {self.cell.gpu} from {least} on; run `knowngood smoke{gpus} '{self.cell}'` where that can be "
                "shown, or change `publish` in matrix.yaml"
            )

    def document(self) -> dict[str, Any]:
        """Return the document that says the tier of the image, and what that means."""
        environment = self.run.report.get("environment", {})
        return {
            "schema": TIER_SCHEMA,
            "cell": str(self.cell),
            "image": self.digest,
            "gpu": self.cell.gpu,
            "tier": str(self.tier),
            "unseen_on_gpu": self.tier is not Tier.TRAINS_ON_GPU,
            "text": describe_tier(self.tier),
            "meaning": explain_tier(self.tier, self.cell.gpu),
            "run": {
                "when": self.run.when,
                "where": str(self.run.where),
                "gpu": environment.get("gpu"),
                "sm": environment.get("sm"),
                "suite": self.run.suite,
                "quick": self.run.quick,
            },
        }

    def attachments(self) -> tuple[Attachment, Attachment]:
        """Return the tier and the run that proves it, as documents to attach to the image."""
        name = f"evidence-{self.run.when[:10]}-{self.run.suite[:12]}.json"
        return (
            Attachment(media=attachments.EVIDENCE_MEDIA_TYPE, name=name, data=_json_text(self.run.document())),
            Attachment(media=attachments.TIER_MEDIA_TYPE, name="tier.json", data=_json_text(self.document())),
        )


def _json_text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def read_release_proof(project: Project, cell: Cell, digest: str) -> ReleaseProof:
    """Return what the runs of this image prove of it.

    Raises `KnowngoodError` when there is no good run of it, or when a newer run of it failed.
    """
    seal = project.seal
    covers = seal.covers_run if seal else None
    runs, left_out = run_evidence.load_cell_evidence(project.evidence, str(cell), covers)
    of_image = [run for run in runs if run.image == digest and run.where is not RunPlace.BARE]
    good = [run for run in of_image if run.ok]
    if not good:
        reason = f"the last of its {len(of_image)} runs failed" if of_image else "evidence/ has no run of it"
        ignored = f" (left out: {'; '.join(left_out)})" if left_out else ""
        raise KnowngoodError(
            f"{cell}: {digest} is not proven: {reason}{ignored}; run `knowngood smoke '{cell}'` and see what fails"
        )
    if of_image[-1] is not good[-1]:
        raise KnowngoodError(
            f"{cell}: the newest run of {digest} ({of_image[-1].when}) failed, although an older one passed; "
            f"run `knowngood smoke '{cell}'`"
        )
    return ReleaseProof(cell=cell, digest=digest, runs=tuple(run_evidence.valid_runs(of_image)))


def _tier_of(run: Evidence) -> Tier:
    return run_evidence.proven_tier([run], locked=False)
