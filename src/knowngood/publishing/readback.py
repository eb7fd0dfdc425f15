"""`knowngood publish --verify`: a published image read back whole, with the documents attached to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.errors import KnowngoodError
from knowngood.publishing import publish
from knowngood.registries import attachments
from knowngood.registries.attachments import Attachment
from knowngood.render import LABEL

if TYPE_CHECKING:
    from knowngood.registries.reference import Reference
    from knowngood.registries.registry import Registry

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a registry serves under one name."""

    name: str
    digest: str
    size: int
    """Bytes of config and layers."""
    labels: Mapping[str, str]
    attached: tuple[Attachment, ...]
    problems: tuple[str, ...]
    """What does not fit together; empty when all is well."""

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "image": self.name,
            "digest": self.digest,
            "bytes": self.size,
            "labels": dict(self.labels),
            "attached": [
                {"name": item.name, "type": item.media, "document": item.document()} for item in self.attached
            ],
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """For people."""
        lines = [f"{self.name}: {self.digest}, {self.size / 1e6:,.1f} MB, every byte read"]
        lines += [f"  {key} = {value}" for key, value in self.labels.items() if key.startswith(LABEL)]
        lines += [f"  attached: {item.name} ({item.media})" for item in self.attached]
        return "\n".join([*lines, *(f"PROBLEM: {item}" for item in self.problems)])


def read(registry: Registry, wanted: Reference, say: Say) -> Seen:
    """Read all of it; raises `KnowngoodError` for what is not there or has other bytes than its digest says."""
    manifest = registry.manifest(wanted.name)
    if manifest is None:
        raise KnowngoodError(f"there is no {wanted}")
    digest = manifest.descriptor.digest
    config, *layers = manifest.blobs()
    labels = publish.labels_of(registry.read(config))
    for number, layer in enumerate(layers, 1):
        say(f"reading layer {number} of {len(layers)}, {layer.size / 1e6:,.1f} MB")
        registry.check(layer)
    attached = tuple(attachments.find(registry, digest))
    return Seen(
        name=str(wanted),
        digest=digest,
        size=sum(blob.size for blob in (config, *layers)),
        labels=labels,
        attached=attached,
        problems=tuple(problems(digest, labels, attached)),
    )


def problems(digest: str, labels: Mapping[str, str], attached: tuple[Attachment, ...]) -> list[str]:
    """What the documents and the labels say against each other. Pure."""
    found = []
    by_media: dict[str, list[dict[str, Any]]] = {}
    for item in attached:
        by_media.setdefault(item.media, []).append(item.document())
    named = {attachments.SBOM: "SBOM", attachments.PROVENANCE: "provenance", attachments.EVIDENCE: "evidence"}
    found += [f"no {name} is attached" for media, name in named.items() if media not in by_media]
    lock = labels.get(LABEL + "lock")
    for bill in by_media.get(attachments.SBOM, []):
        told = {item["name"]: item["value"] for item in bill.get("metadata", {}).get("properties", [])}
        if told.get("knowngood:lock") != lock:
            found.append(f"the SBOM is of lock {told.get('knowngood:lock')}, the image's label says {lock}")
    for statement in by_media.get(attachments.PROVENANCE, []):
        of = [subject.get("digest", {}).get("sha256") for subject in statement.get("subject", [])]
        if of != [digest.removeprefix("sha256:")]:
            found.append(f"the provenance is of {of}, not of this image")
    for run in by_media.get(attachments.EVIDENCE, []):
        if run.get("image") != digest:
            found.append(f"the evidence is of {run.get('image')}, not of this image")
        elif not run.get("report", {}).get("verdict", {}).get("ok"):
            found.append("the evidence is of a run that was not good")
    return found
