"""`knowngood publish --verify`: read a published image back, every byte, with the documents attached to it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import HostArchitecture
from knowngood.core.notify import Notify
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.registry import attachments, image_release, platform_index, signatures
from knowngood.registry.attachments import Attachment, inspect_documents
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.image_reference import DIGEST
from knowngood.registry.manifests import parse_image_labels
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
                    "document": _parse_json_attachment(item),
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
        tiers = [_parse_json_attachment(item) for item in self.attached if item.media == attachments.TIER_MEDIA_TYPE]
        lines += [f"  {item.get('tier')}: {item.get('meaning')}" for item in tiers if item]
        lines += [f"  {_describe_record(cell, digest, self.digest)}" for cell, digest in self.recorded.items()]
        lines += [] if self.recorded else ["  no record here to compare with"]
        return "\n".join([*lines, *(f"PROBLEM: {item}" for item in self.problems)])


def _describe_record(cell: str, recorded: str, served: str) -> str:
    return f"record of {cell}: {recorded}, {'the same' if recorded == served else 'ANOTHER image'}"


@dataclass(frozen=True, kw_only=True)
class PublishedName:
    """What a name in a registry means: one image, or an index with one for each of several hosts."""

    name: str
    digest: str
    images: Mapping[HostArchitecture | None, PublishedImage]
    """The image of each host; of no index, the one image, under `None`."""
    index: SignatureJudgement | None = None
    """Whether the index is signed; `None` without one."""
    index_problems: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with any of it: a client may run each of the images."""
        named = ((f"{host}: " if host else "", image) for host, image in self.images.items())
        return (*self.index_problems, *(f"{prefix}{text}" for prefix, image in named for text in image.problems))

    def document(self) -> dict[str, Any]:
        """Return the document of `publish --verify --json`; that of an index has one of each host below `images`."""
        if self.index is None:
            return self.images[None].document()
        return {
            "image": self.name,
            "digest": self.digest,
            "signature": self.index.document(),
            "images": {str(host): image.document() for host, image in self.images.items()},
            "problems": list(self.problems),
        }

    def text(self) -> str:
        """Return the lines that `publish --verify` prints."""
        texts = [image.text() for image in self.images.values()]
        if self.index is None:
            return texts[0]
        hosts = ", ".join(map(str, self.images)) or "no host that could be read"
        head = [f"{self.name}: {self.digest}, an index with images for {hosts}", f"  {self.index.text()}"]
        return "\n".join([*head, *(f"PROBLEM: {item}" for item in self.index_problems), *texts])


def read_published_name(
    registry: Registry,
    reference: ImageReference,
    notify: Notify,
    project: Project | None = None,
    verifiers: Sequence[ReleaseVerifier] = (),
) -> PublishedName:
    """Read all that a client may get by a name, and compare it with the cells and records of `project`.

    Where there are verifiers, one of them must have signed the index and each image for this name, and a document that
    none has signed is ignored. Raises `KnowngoodError` when the manifest is missing or damaged; what else is, is a
    problem in the answer.
    """
    named = registry.manifest(reference.name)
    if named is None:
        raise KnowngoodError(f"there is no {reference}")
    digest = named.descriptor.digest
    tag = None if DIGEST.fullmatch(reference.name) else reference.name
    inspector = ContentInspector(registry=registry, depth=InspectionDepth.BYTES, notify=notify)
    if not named.is_index:
        expected = find_named_cells(project, reference.name) if project else set()
        image = _read_image(inspector, named, str(reference), tag, project, expected, verifiers)
        return PublishedName(name=str(reference), digest=digest, images={None: image})
    signature = signatures.judge_image_signature(registry, digest, tag, verifiers)
    images: dict[HostArchitecture | None, PublishedImage] = {}
    problems = list(signature.problems)
    try:
        for host in platform_index.list_index_images(named):
            manifest = platform_index.choose_host_image(registry, named, str(reference), host)
            expected = find_named_cells(project, reference.name, host) if project else set()
            name = f"{reference} for {host}"
            images[host] = _read_image(inspector, manifest, name, tag, project, expected, verifiers)
    except KnowngoodError as error:
        problems.append(str(error))
    return PublishedName(
        name=str(reference), digest=digest, images=images, index=signature, index_problems=tuple(problems)
    )


def _read_image(  # noqa: PLR0913, PLR0917
    inspector: ContentInspector,
    manifest: RegistryManifest,
    name: str,
    tag: str | None,
    project: Project | None,
    expected: Collection[str],
    verifiers: Sequence[ReleaseVerifier],
) -> PublishedImage:
    registry, digest = inspector.registry, manifest.descriptor.digest
    config = manifest.require_image(name)
    faults = inspector.find_blob_faults(manifest)
    damaged_config = any(fault.digest == config.digest for fault in faults)
    labels = {} if damaged_config else parse_image_labels(registry.read(config))
    documents = inspect_documents(inspector, digest)
    sound = [item.digest for item in documents.documents if not item.fault]
    fetched = attachments.fetch_attachments(registry, digest, sound)
    attached = tuple(item for item in fetched if not signatures.is_bundle(item))
    signature = signatures.judge_signatures(registry, manifest.descriptor, tag, attached, verifiers)
    judgement = CellJudgement() if damaged_config or not project else judge_cell(project, manifest, labels, expected)
    return PublishedImage(
        name=name,
        digest=digest,
        size=sum(blob.size for blob in manifest.blobs()),
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
            *judgement.problems,
        ),
        recorded={record.cell: record.manifest.digest for record in judgement.records},
        signature=signature,
    )


def find_named_cells(project: Project, name: str, host: HostArchitecture | None = None) -> set[str]:
    """Return the ids of the cells that a tag means: an alias, the tag of a lock, or the id of a cell with a twin.

    With `host`, the tag names an index, and the result is the cell for that host. It is empty for any other tag.
    """
    cells = {str(cell): cell for cell in project.matrix.cells}
    tag = re.sub(r"-r\d+$", "", name)
    named = {project.matrix.aliases.get(name, ""), name}
    named |= {text for text, cell in cells.items() if image_release.lock_tag(project, cell) == tag}
    return {str(cells[text].on_host(host)) if host else text for text in named & cells.keys()}


@dataclass(frozen=True, kw_only=True)
class CellJudgement:
    """Whether an image is the one that this checkout has for a cell."""

    records: tuple[ImageRecord, ...] = ()
    """The records that it was compared with."""
    problems: tuple[str, ...] = ()


def judge_cell(
    project: Project, manifest: RegistryManifest, labels: Mapping[str, str], expected: Collection[str]
) -> CellJudgement:
    """Return whether an image is of one of the `expected` cells, and the image that this checkout has for it.

    It is compared with the records of these cells and of the cell in its labels, which may be forged; a cell without a
    record is compared by its lock, so that an older image of it is not taken for the present one.
    """
    cells = {str(cell): cell for cell in project.matrix.cells}
    label, lock = labels.get(LABEL_PREFIX + "cell", ""), labels.get(LABEL_PREFIX + "lock")
    digest = manifest.descriptor.digest
    problems = [f"matrix.yaml has no cell {name}" for name in sorted(expected) if name not in cells]
    if expected and label not in expected:
        problems.append(f"{digest} is labelled as {label or 'no cell'}, not as {' or '.join(sorted(expected))}")
    records = []
    for name in sorted({label, *expected} & cells.keys()):
        if record := project.tree.load_record(cells[name]):
            records.append(record)
            difference = compare_with_record(manifest, record)
            problems += [difference] if difference else []
        elif name == label and (locked := project.tree.load(cells[name])) and lock != f"sha256:{locked.digest}":
            problems.append(f"{digest} is of the lock {lock}, and {name} is locked here as sha256:{locked.digest}")
    return CellJudgement(records=tuple(records), problems=tuple(problems))


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


class _Property(TypedDict):
    name: str
    value: NotRequired[str]


class _BillHead(TypedDict):
    properties: NotRequired[list[_Property]]


class _Bill(TypedDict):
    metadata: NotRequired[_BillHead]


class _Subject(TypedDict):
    digest: dict[str, str]


class _Statement(TypedDict):
    subject: list[_Subject]


class _Verdict(TypedDict):
    ok: bool


class _Report(TypedDict):
    verdict: _Verdict


class _Proof(TypedDict):
    image: str


class _EvidenceOfImage(_Proof):
    report: _Report


def find_contradictions(digest: str, labels: Mapping[str, str], attached: tuple[Attachment, ...]) -> list[str]:
    """Return where the documents and the labels of an image contradict each other. Pure."""
    problems = []
    medias = {item.media for item in attached}
    problems += [f"no {name} is attached" for media, name in _DOCUMENT_NAMES.items() if media not in medias]
    for item in attached:
        if item.media in _DOCUMENT_NAMES:
            try:
                problems += _find_contradictions_of(item, digest, labels)
            except KnowngoodError as error:
                problems.append(str(error))
    return problems


_DOCUMENT_NAMES = {
    attachments.SBOM_MEDIA_TYPE: "SBOM",
    attachments.PROVENANCE_MEDIA_TYPE: "provenance",
    attachments.EVIDENCE_MEDIA_TYPE: "evidence",
    attachments.TIER_MEDIA_TYPE: "tier",
}
"""The documents that every published image has."""


def _find_contradictions_of(item: Attachment, digest: str, labels: Mapping[str, str]) -> list[str]:
    """Return where one document contradicts its image; `KnowngoodError` when it is none of its kind."""
    if item.media == attachments.SBOM_MEDIA_TYPE:
        properties = item.parse(_Bill).get("metadata", {}).get("properties", [])
        lock, label = (
            {each["name"]: each.get("value") for each in properties}.get("knowngood:lock"),
            LABEL_PREFIX + "lock",
        )
        same = lock == labels.get(label)
        return [] if same else [f"the SBOM is of lock {lock}, the image's label says {labels.get(label)}"]
    if item.media == attachments.PROVENANCE_MEDIA_TYPE:
        subjects = [subject["digest"].get("sha256") for subject in item.parse(_Statement)["subject"]]
        same = subjects == [digest.removeprefix("sha256:")]
        return [] if same else [f"the provenance is of {subjects}, not of this image"]
    other = item.parse(_Proof)["image"]
    if other != digest:
        return [f"the {_DOCUMENT_NAMES[item.media]} is of {other}, not of this image"]
    if item.media == attachments.EVIDENCE_MEDIA_TYPE and not item.parse(_EvidenceOfImage)["report"]["verdict"]["ok"]:
        return ["the evidence is of a run that failed"]
    return []


def _parse_json_attachment(item: Attachment) -> dict[str, Any] | None:
    """Return a document of JSON, which a stranger may have attached; `None` when it is none."""
    with contextlib.suppress(KnowngoodError):
        return item.document() if item.media.endswith("json") else None
    return None
