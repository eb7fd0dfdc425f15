"""What is signed, and where cosign, skopeo and podman look for it.

Signed are the statement that a manifest is published under a name (sigstore's simple-signing payload) and in-toto
statements (in a DSSE envelope). The tags `sha256-<digest>.sig` and `sha256-<digest>.att` beside an image name manifests
whose layers are these small documents. Any number of writers may add a document.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.json_document import parse_foreign_json
from knowngood.project.release_signers import STATEMENT_MEDIA_TYPE, ReleaseVerifier
from knowngood.registry.manifests import (
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    DescriptorDocument,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    from knowngood.registry.registry_client import Registry

PAYLOAD_MEDIA_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE_MEDIA_TYPE = "application/vnd.dsse.envelope.v1+json"
SIGN_PREDICATE = "https://sigstore.dev/cosign/sign/v1"
"""The predicate of a statement that signs a manifest and says nothing else about it."""
_PAYLOAD_TYPE = "cosign container image signature"

SignBytes = Callable[[bytes], bytes]
VerifyBytes = Callable[[bytes, bytes], bool]
"""Whether a signature was made over some bytes."""


@dataclass(frozen=True, kw_only=True)
class SignedName:
    """The statement of a signature: this manifest is published under this name."""

    reference: str
    """`HOST/PATH:TAG` for an image, `HOST/PATH` for a document about one."""
    digest: str

    @property
    def repository(self) -> str:
        """The reference without its tag; empty when it names none."""
        return self.reference.removesuffix(f":{self.tag}") if self.tag else self.reference

    @property
    def tag(self) -> str | None:
        """The tag in the reference; `None` when it has none: so documents about images are signed, and no images."""
        return self.reference.rpartition("/")[2].partition(":")[2] or None

    def payload(self, creator: str) -> bytes:
        """Return the bytes that are signed."""
        document = {
            "critical": {
                "identity": {"docker-reference": self.reference},
                "image": {"docker-manifest-digest": self.digest},
                "type": _PAYLOAD_TYPE,
            },
            "optional": {"creator": creator},
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def statement(self) -> bytes:
        """Return the same as an in-toto statement, which a bundle signs."""
        document = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": self.reference, "digest": {"sha256": self.digest.removeprefix("sha256:")}}],
            "predicateType": SIGN_PREDICATE,
            "predicate": {},
        }
        return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True, kw_only=True)
class ValidSignature:
    """A signature that was verified."""

    name: SignedName
    signer: ReleaseVerifier


def parse_payload(data: bytes) -> SignedName:
    """Parse the bytes that a signature is made over; `KnowngoodError` when they are no such payload."""
    what = "the signed document is not the payload of a signature"
    document = parse_foreign_json(data, what, dict[str, Any])
    try:
        critical = document["critical"]
        name = SignedName(
            reference=critical["identity"]["docker-reference"], digest=critical["image"]["docker-manifest-digest"]
        )
        sound = critical["type"] == _PAYLOAD_TYPE and isinstance(name.reference, str) and isinstance(name.digest, str)
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise KnowngoodError(what)
    return name


def parse_sign_statement(statement: Mapping[str, Any]) -> SignedName:
    """Return what an in-toto statement signs; its name may be missing, as cosign writes it.

    Raises `KnowngoodError` when it is of none or of several manifests.
    """
    try:
        (subject,) = statement["subject"]
        name, digest = subject.get("name") or "", subject["digest"]["sha256"]
        sound = isinstance(name, str) and isinstance(digest, str)
    except (AttributeError, KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise KnowngoodError("the signed statement is not about one manifest")
    return SignedName(reference=name, digest=f"sha256:{digest}")


def decode_signature(text: str) -> bytes:
    """Return the bytes of a signature in base64; `KnowngoodError` when the text is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise KnowngoodError("the signature is not written in base64") from None


def sign_statement(statement: bytes, sign: SignBytes) -> bytes:
    """Return the DSSE envelope with an in-toto statement and one signature over it."""
    signature = sign(_pre_authentication_encoding(STATEMENT_MEDIA_TYPE, statement))
    envelope = {
        "payloadType": STATEMENT_MEDIA_TYPE,
        "payload": base64.b64encode(statement).decode(),
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


def verify_envelope(data: bytes, verify: VerifyBytes) -> dict[str, Any]:
    """Return the in-toto statement in a DSSE envelope.

    Raises `KnowngoodError` when the envelope is malformed, or none of its signatures is valid.
    """
    what = "the attestation is not a DSSE envelope with an in-toto statement"
    envelope = parse_foreign_json(data, what, dict[str, Any])
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = envelope["payloadType"]
        signatures = [str(item["sig"]) for item in envelope["signatures"]]
    except (ValueError, KeyError, TypeError):
        raise KnowngoodError(what) from None
    statement = parse_foreign_json(payload, what, dict[str, Any])
    signed = _pre_authentication_encoding(str(kind), payload)
    if kind != STATEMENT_MEDIA_TYPE or not any(verify(decode_signature(text), signed) for text in signatures):
        raise KnowngoodError("the attestation is not signed with a key that matrix.yaml names")
    return statement


def check_statement(statement: Mapping[str, Any], predicate: str, digest: str) -> None:
    """Raise `KnowngoodError` unless an in-toto statement has this predicate and is about this manifest alone."""
    if statement.get("predicateType") != predicate:
        raise KnowngoodError(f"the attestation is a {statement.get('predicateType')}, not a {predicate}")
    try:
        subjects = [subject["digest"]["sha256"] for subject in statement["subject"]]
    except (KeyError, TypeError):
        subjects = []
    if subjects != [digest.removeprefix("sha256:")]:
        raise KnowngoodError(f"the attestation is of {subjects}, not of this image")


def _pre_authentication_encoding(kind: str, payload: bytes) -> bytes:
    """Return the bytes that DSSE signs; the lengths keep type and payload apart."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
_CONFIG_MEDIA_TYPE = "application/vnd.oci.image.config.v1+json"
_LARGEST_DOCUMENT = 8 << 20
"""Bytes; a bundle of a provenance has some 0.5 MB."""
MOST_DOCUMENTS = 100
"""Anybody who may write into a registry can add signatures to an image, and each is verified."""
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class CosignDocument:
    """One layer under such a tag."""

    media: str
    data: bytes
    annotations: Mapping[str, str]

    def layer(self) -> DescriptorDocument:
        """Return the layer as the manifest lists it."""
        return {**Descriptor.of(self.data, self.media).document(), "annotations": dict(self.annotations)}


def signature_tag(digest: str) -> str:
    """Return the tag of the signatures over a manifest."""
    return f"{digest.replace(':', '-')}.sig"


def attestation_tag(digest: str) -> str:
    """Return the tag of the attestations about a manifest."""
    return f"{digest.replace(':', '-')}.att"


def read_cosign_documents(registry: Registry, tag: str) -> Iterator[CosignDocument | str]:
    """Yield the documents under a tag; the reason for each that is damaged, and nothing where the tag is missing."""
    try:
        layers = _layers(registry.manifest(tag))
    except KnowngoodError as error:
        yield f"{tag}: {error}"
        return
    for layer in layers[:MOST_DOCUMENTS]:
        try:
            data = read_signed_blob(registry, layer)
            yield CosignDocument(media=layer["mediaType"], data=data, annotations=layer.get("annotations") or {})
        except KnowngoodError as error:
            yield f"{tag}: a document cannot be read: {error}"
    if len(layers) > MOST_DOCUMENTS:
        yield f"{tag}: there are {len(layers)} documents, and only the first {MOST_DOCUMENTS} were looked at"


def read_signed_blob(registry: Registry, layer: DescriptorDocument) -> bytes:
    """Return a document that a signature is in; `KnowngoodError` when it is too large to be one, or damaged."""
    blob = Descriptor.read(layer)
    if blob.size > _LARGEST_DOCUMENT:
        raise KnowngoodError(f"{blob.size:,} bytes are too many")
    return registry.read(blob)


def add_cosign_document(registry: Registry, tag: str, document: CosignDocument) -> None:
    """Add a document under a tag, and read the tag again: another writer may have replaced it."""
    layer = document.layer()
    registry.put(Descriptor.of(document.data, document.media), lambda: contextlib.closing(io.BytesIO(document.data)))
    for _ in range(_WRITE_ATTEMPTS):
        try:
            present = _layers(registry.manifest(tag))
        except (DamagedContentError, UnservedContentError):
            present = []  # its signatures are lost; the list is begun anew
        if layer in present:
            return
        manifest = _tag_manifest(registry, [*present, layer])
        registry.put_manifest(manifest, tag)
    raise KnowngoodError(f"{registry.repository}:{tag}: other writers kept replacing it; run it again")


def _layers(manifest: RegistryManifest | None) -> list[DescriptorDocument]:
    return manifest.document.get("layers", []) if manifest else []


def _tag_manifest(registry: Registry, layers: list[DescriptorDocument]) -> RegistryManifest:
    config = {
        "architecture": "",
        "os": "",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    blob = registry.put_bytes(json.dumps(config, separators=(",", ":")).encode(), _CONFIG_MEDIA_TYPE)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": blob.document(),
        "layers": layers,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    return RegistryManifest(data=data, media=MANIFEST_MEDIA_TYPE)
