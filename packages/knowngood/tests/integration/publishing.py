"""Publish a release as the command does, and make documents that fit an image."""

from __future__ import annotations

import json

from knowngood.registry import attachments, publication
from knowngood.registry.attachments import Attachment
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth


def publish(release, registry, engine, depth=InspectionDepth.SIZE) -> publication.PublishResult:
    inspector = ContentInspector(registry=registry, depth=depth, notify=print)
    state = publication.inspect_publication(release.tag, release.digest, inspector)
    return publication.publish_release(release, inspector, state, lambda: engine)


def documents(digest: str, lock: str) -> tuple[Attachment, ...]:
    """The four documents of an image with this digest, whose label names this lock."""
    contents = {
        attachments.SBOM_MEDIA_TYPE: {"metadata": {"properties": [{"name": "knowngood:lock", "value": lock}]}},
        attachments.PROVENANCE_MEDIA_TYPE: {"subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}}]},
        attachments.TIER_MEDIA_TYPE: {"image": digest, "tier": "trains-on-cpu", "meaning": "it trains"},
        attachments.EVIDENCE_MEDIA_TYPE: {"image": digest, "report": {"verdict": {"ok": True}}},
    }
    return tuple(
        Attachment(media=media, name=f"{number}.json", data=json.dumps(content).encode())
        for number, (media, content) in enumerate(contents.items())
    )
