"""`knowngood publish --verify`: read a published image back, every byte, with the documents attached to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.notify import Notify
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.registry import attachments, image_release, image_transfer, platform_index, signatures
from knowngood.registry.attachments import Attachment, inspect_documents
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.image_reference import DIGEST
from knowngood.registry.signatures import SignatureJudgement

if TYPE_CHECKING:
    from knowngood.core.image_record import ImageRecord
    from knowngood.project.checkout import Project
    from knowngood.project.release_signers import ReleaseVerifier
    from knowngood.registry.image_reference import ImageReference
    from knowngood.registry.manifests import RegistryManifest
    from knowngood.registry.registry_client import Registry


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """An image as a registry serves it, with its attached documents."""

    name: str
    digest: str
    size: int
    """Size of config and layers in bytes."""
    labels: Mapping[str, str]
    attached: tuple[Attachment, ...]
    problems: tuple[str, ...]
    """Contradictions between the image, its documents and the records here; empty when there are none."""
    recorded: Mapping[str, str]
    """Cell id -> digest in its record, for each cell that the image is said to be; empty without a record here."""
    signature: SignatureJudgement = field(default_factory=SignatureJudgement)

    def document(self) -> dict[str, Any]:
        """Return the document of `publish --verify --json`."""
        return {
            "image": self.name,
            "digest": self.digest,
            "bytes": self.size,
            "labels": dict(self.labels),
            "attached": [
                {
                    "name": item.name,
                    "type": item.media,
                    "document": item.document() if item.media.endswith("json") else None,
                    "signed": item in self.signature.signed,
                }
                for item in self.attached
            ],
            "signature": self.signature.document(),
            "problems": list(self.problems),
            "recorded": dict(self.recorded),
        }

    def text(self) -> str:
        """Return the lines that `publish --verify` prints."""
        lines = [f"{self.name}: {self.digest}, {self.size / 1e6:,.1f} MB, every byte read"]
        lines += [f"  {key} = {value}" for key, value in self.labels.items() if key.startswith(LABEL_PREFIX)]
        lines.append(f"  {self.signature.text()}")
        for item in self.attached:
            ignored = self.signature.required and item not in self.signature.signed
            lines.append(f"  attached: {item.name} ({item.media}){', unsigned and ignored' if ignored else ''}")
        tiers = [item.document() for item in self.attached if item.media == attachments.TIER_MEDIA_TYPE]
        lines += [f"  {item.get('tier')}: {item.get('meaning')}" for item in tiers]
        lines += [f"  {_describe_record(cell, digest, self.digest)}" for cell, digest in self.recorded.items()]
        lines += [] if self.recorded else ["  no record here to compare with"]
        return "\n".join([*lines, *(f"PROBLEM: {item}" for item in self.problems)])


def _describe_record(cell: str, recorded: str, served: str) -> str:
    return f"record of {cell}: {recorded}, {'the same' if recorded == served else 'ANOTHER image'}"


def read_published_image(  # noqa: PLR0913
    registry: Registry,
    reference: ImageReference,
    notify: Notify,
    project: Project | None = None,
    verifiers: Sequence[ReleaseVerifier] = (),
    *,
    host: HostArchitecture = DEFAULT_HOST,
) -> PublishedImage:
    """Read a published image (of an index that for `host`), and compare it with the records of `project`.

    Where there are verifiers, one of them must have signed the image, and a document that none has signed is ignored.
    Raises `KnowngoodError` when the manifest is missing or damaged; what else is, is a problem in the answer.
    """
    named = registry.manifest(reference.name)
    if named is None:
        raise KnowngoodError(f"there is no {reference}")
    manifest = platform_index.choose_host_image(registry, named, str(reference), host)
    digest = manifest.descriptor.digest
    config, *layers = manifest.blobs()
    inspector = ContentInspector(registry=registry, depth=InspectionDepth.BYTES, notify=notify)
    faults = inspector.find_blob_faults(manifest)
    damaged_config = any(fault.digest == config.digest for fault in faults)
    labels = {} if damaged_config else image_transfer.config_labels(registry.read(config))
    documents = inspect_documents(inspector, digest)
    sound = [item.digest for item in documents.documents if not item.fault]
    fetched = attachments.fetch_attachments(registry, digest, sound)
    attached = tuple(item for item in fetched if not signatures.is_bundle(item))
    tag = None if DIGEST.fullmatch(reference.name) or manifest is not named else reference.name
    signature = signatures.judge_signatures(registry, manifest.descriptor, tag, attached, verifiers)
    label, of_index = labels.get(LABEL_PREFIX + "cell", ""), None if manifest is named else host
    records = load_claimed_records(project, reference.name, label, of_index) if project else []
    return PublishedImage(
        name=str(reference),
        digest=digest,
        size=sum(blob.size for blob in (config, *layers)),
        labels=labels,
        attached=attached,
        problems=(
            *(f"{fault}; `publish --repair` sends it again" for fault in (*faults, *documents.faults)),
            *signature.problems,
            *(
                ()
                if damaged_config or documents.broken
                else find_contradictions(digest, labels, signature.signed if verifiers else attached)
            ),
            *(text for record in records if (text := compare_with_record(manifest, record))),
        ),
        recorded={record.cell: record.manifest.digest for record in records},
        signature=signature,
    )


def load_claimed_records(
    project: Project, name: str, label: str, host: HostArchitecture | None = None
) -> list[ImageRecord]:
    """Return the records of the cells that an image is said to be.

    `label` is the cell in its configuration, which may be forged; `name` is its tag: an alias, or the tag of a lock.
    With `host`, the tag names an index, whose image for that host it is; then the tag may also be a cell's id.
    """
    cells = {str(cell): cell for cell in project.matrix.cells}
    tag = re.sub(r"-r\d+$", "", name)
    claimed = {project.matrix.aliases.get(name, ""), name if host else ""}
    claimed |= {text for text, cell in cells.items() if image_release.lock_tag(project, cell) == tag}
    if host:
        claimed = {str(cells[text].on_host(host)) for text in claimed & cells.keys()}
    claimed.add(label)
    records = [project.tree.load_record(cells[text]) for text in sorted(claimed & cells.keys())]
    return [record for record in records if record]


def compare_with_record(manifest: RegistryManifest, record: ImageRecord) -> str | None:
    """Return in which parts a served image is not the recorded one, or `None` when it is the same. Pure."""
    digest = manifest.descriptor.digest
    if digest == record.manifest.digest:
        return None
    config, *layers = manifest.blobs()
    parts = ["the configuration"] if config.digest != record.config.digest else []
    parts += ["layers"] if [layer.digest for layer in layers] != [layer.digest for layer in record.layers] else []
    return (
        f"the record of {record.cell} in this checkout is of {record.manifest.digest}, the registry serves {digest}: "
        f"{' and '.join(parts) or 'the manifest'} differ"
    )


def find_contradictions(digest: str, labels: Mapping[str, str], attached: tuple[Attachment, ...]) -> list[str]:
    """Return where the documents and the labels of an image contradict each other. Pure."""
    problems = []
    by_media: dict[str, list[dict[str, Any]]] = {}
    for item in attached:
        by_media.setdefault(item.media, []).append(item.document())
    names = {
        attachments.SBOM_MEDIA_TYPE: "SBOM",
        attachments.PROVENANCE_MEDIA_TYPE: "provenance",
        attachments.EVIDENCE_MEDIA_TYPE: "evidence",
        attachments.TIER_MEDIA_TYPE: "tier",
    }
    problems += [f"no {name} is attached" for media, name in names.items() if media not in by_media]
    lock = labels.get(LABEL_PREFIX + "lock")
    for bill in by_media.get(attachments.SBOM_MEDIA_TYPE, []):
        properties = {item["name"]: item["value"] for item in bill.get("metadata", {}).get("properties", [])}
        if properties.get("knowngood:lock") != lock:
            problems.append(f"the SBOM is of lock {properties.get('knowngood:lock')}, the image's label says {lock}")
    for statement in by_media.get(attachments.PROVENANCE_MEDIA_TYPE, []):
        subjects = [subject.get("digest", {}).get("sha256") for subject in statement.get("subject", [])]
        if subjects != [digest.removeprefix("sha256:")]:
            problems.append(f"the provenance is of {subjects}, not of this image")
    for media in (attachments.EVIDENCE_MEDIA_TYPE, attachments.TIER_MEDIA_TYPE):
        others = [item.get("image") for item in by_media.get(media, []) if item.get("image") != digest]
        problems += [f"the {names[media]} is of {other}, not of this image" for other in others]
    runs = [item for item in by_media.get(attachments.EVIDENCE_MEDIA_TYPE, []) if item.get("image") == digest]
    if not all(run.get("report", {}).get("verdict", {}).get("ok") for run in runs):
        problems.append("the evidence is of a run that failed")
    return problems
