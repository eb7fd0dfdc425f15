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

from knowngood.core import json_document
from knowngood.core.errors import InputError, KnowngoodError
from knowngood.project.release_signers import STATEMENT_MEDIA_TYPE, ReleaseVerifier
from knowngood.registry.manifests import (
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
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
    """`HOST/PATH:TAG`, or `HOST/PATH` for every tag of the repository."""
    digest: str

    @property
    def tag(self) -> str | None:
        """The tag in the reference; `None` when the signature holds for every tag."""
        _, colon, tag = self.reference.rpartition("/")[2].partition(":")
        return tag if colon else None

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
    document = parse_signed_json(data, what)
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


def parse_signed_json(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object from a registry, read with the checks of every data file (decision 0005).

    A key that is given twice is refused, because another reader may take the other one. Keys that nothing here knows
    are allowed, as the formats demand. Raises `KnowngoodError`, beginning with `what`, for what is no such object.
    """
    try:
        return json_document.parse_json(data, "", dict[str, Any], remedy="sign it again")
    except InputError as error:
        first = error.problems[0]
        raise KnowngoodError(f"{what} (line {first.line}, column {first.column}: {first.text})") from None


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
    envelope = parse_signed_json(data, what)
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = envelope["payloadType"]
        signatures = [str(item["sig"]) for item in envelope["signatures"]]
    except (ValueError, KeyError, TypeError):
        raise KnowngoodError(what) from None
    statement = parse_signed_json(payload, what)
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
"""Bytes; a provenance has some 0.3 MB."""
_WRITE_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class CosignDocument:
    """One layer under such a tag."""

    media: str
    data: bytes
    annotations: Mapping[str, str]

    def layer(self) -> dict[str, Any]:
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
    for layer in layers:
        try:
            blob = Descriptor.read(layer)
            annotations = {str(name): str(value) for name, value in (layer.get("annotations") or {}).items()}
            if blob.size > _LARGEST_DOCUMENT:
                yield f"{tag}: a document of {blob.size} bytes is too large"
            else:
                yield CosignDocument(media=blob.media, data=registry.read(blob), annotations=annotations)
        except (KnowngoodError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield f"{tag}: a document cannot be read: {error}"


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


def _layers(manifest: RegistryManifest | None) -> list[dict[str, Any]]:
    layers = manifest.document.get("layers") if manifest else None
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _tag_manifest(registry: Registry, layers: list[dict[str, Any]]) -> RegistryManifest:
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
