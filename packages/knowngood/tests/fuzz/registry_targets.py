"""A registry of one signed image for two names, of which one document or one header is damaged.

The digests and the signatures are made anew for each damage, so that it reaches the code that reads it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from knowngood.core.errors import KnowngoodError
from knowngood.project import release_signers
from knowngood.project.release_signers import SigningKey
from knowngood.registry import attachments, platform_index, publication_check, signed_documents
from knowngood.registry.attachments import Attachment
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.registry.manifests import (
    CONFIG_MEDIA_TYPE,
    INDEX_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    Descriptor,
    parse_image_configuration,
)
from knowngood.registry.provenance import PREDICATE_TYPE
from knowngood.registry.registry_client import Registry

_LAYER = b"a layer"
_TAG = "latest"
_NOWHERE = "127.0.0.1:00001"
Damage = Callable[[str, bytes], bytes]
"""Takes the name of a part and its sound bytes, and returns the bytes that are served."""


@functools.cache
def _signing_key() -> SigningKey:
    with tempfile.TemporaryDirectory() as folder:
        release_signers.make_key_pair(Path(folder) / "key", Path(folder) / "pub", None)
        return release_signers.load_signing_key(Path(folder) / "key")


class FuzzedRegistry:
    """What a registry serves: path below `/v2/x/` -> bytes and media type."""

    def __init__(self, address: str, damage: Damage) -> None:
        self.answers: dict[str, tuple[bytes, str]] = {}
        self._repository = f"{address}/x"
        self._damage = damage
        self._fill()

    def _blob(self, part: str, data: bytes, media: str) -> dict[str, Any]:
        data = self._damage(part, data)
        blob = Descriptor.of(data, media)
        self.answers[f"blobs/{blob.digest}"] = data, "application/octet-stream"
        return dict(blob.document())

    def _manifest(self, part: str, document: dict[str, Any], media: str, *names: str) -> dict[str, Any]:
        return self._put_manifest(part, json.dumps({"mediaType": media, **document}).encode(), media, *names)

    def _put_manifest(self, part: str, data: bytes, media: str, *names: str) -> dict[str, Any]:
        data = self._damage(part, data)
        manifest = Descriptor.of(data, media)
        for name in (manifest.digest, *names):
            self.answers[f"manifests/{name}"] = data, media
        return dict(manifest.document())

    def _sign(self, digest: str, tag: str, *, damaged: bool = False) -> None:
        name = signed_documents.SignedName(reference=f"{self._repository}{tag}", digest=digest)
        payload = self._damage("payload" if damaged else "", name.payload("fuzz"))
        signature = base64.b64encode(_signing_key().sign_bytes(payload)).decode()
        self._sign_list(
            "signatures" if damaged else "", payload, signed_documents.PAYLOAD_MEDIA_TYPE, signature, digest
        )

    def _sign_list(self, part: str, data: bytes, media: str, signature: str, digest: str) -> None:
        layer = self._blob("", data, media) | {"annotations": {signed_documents.SIGNATURE_ANNOTATION: signature}}
        named = signed_documents.attestation_tag if part == "attestations" else signed_documents.signature_tag
        config = self._blob("", b"{}", CONFIG_MEDIA_TYPE)
        self._manifest(part, {"config": config, "layers": [layer]}, MANIFEST_MEDIA_TYPE, named(digest))

    def _fill(self) -> None:
        config = {"architecture": "amd64", "config": {"Labels": {"io.knowngood.lock": "sha256:1"}, "Env": ["A=b"]}}
        image = self._manifest(
            "manifest",
            {
                "config": self._blob("config", json.dumps(config).encode(), CONFIG_MEDIA_TYPE),
                "layers": [self._blob("layer", _LAYER, "application/vnd.oci.image.layer.v1.tar")],
                "annotations": {"a": "b"},
            },
            MANIFEST_MEDIA_TYPE,
        )
        platform = {"architecture": "amd64", "os": "linux"}
        index = self._manifest("index", {"manifests": [image | {"platform": platform}]}, INDEX_MEDIA_TYPE, _TAG)
        subject = {"digest": {"sha256": image["digest"].removeprefix("sha256:")}}
        statement = {"predicateType": PREDICATE_TYPE, "subject": [subject]}
        documents = {
            attachments.SBOM_MEDIA_TYPE: {
                "metadata": {"properties": [{"name": "knowngood:lock", "value": "sha256:1"}]}
            },
            attachments.PROVENANCE_MEDIA_TYPE: statement,
            attachments.TIER_MEDIA_TYPE: {"image": image["digest"], "tier": "built", "meaning": "m"},
            attachments.EVIDENCE_MEDIA_TYPE: {"image": image["digest"], "report": {"verdict": {"ok": True}}},
        }
        entries = []
        for media, document in documents.items():
            data = self._damage(media, json.dumps(document).encode())
            item = Attachment(media=media, name="d", data=data)
            self._blob("", data, media)
            self._blob("", attachments.EMPTY_CONFIG, attachments.EMPTY_MEDIA_TYPE)
            attaching = attachments.attachment_manifest(Descriptor.read(image), item)  # type: ignore[arg-type]
            entry = self._put_manifest(
                "attaching" if item.media == attachments.SBOM_MEDIA_TYPE else "", attaching.data, MANIFEST_MEDIA_TYPE
            )
            self._sign(entry["digest"], "")
            entries.append(entry | {"artifactType": media, "annotations": {"a": "b"}})
        tag = attachments.fallback_tag(image["digest"])
        self._manifest("referrers", {"manifests": entries}, INDEX_MEDIA_TYPE, tag)
        self._sign(image["digest"], f":{_TAG}", damaged=True)
        self._sign(index["digest"], f":{_TAG}")
        envelope = signed_documents.sign_statement(
            self._damage("statement", json.dumps(statement).encode()), _signing_key().sign_bytes
        )
        self._sign_list(
            "attestations",
            self._damage("envelope", envelope),
            signed_documents.ENVELOPE_MEDIA_TYPE,
            "",
            image["digest"],
        )


def list_parts() -> dict[str, bytes]:
    """Return the name of each part of a registry -> its sound bytes."""
    parts: dict[str, bytes] = {}
    FuzzedRegistry(_NOWHERE, lambda part, data: parts.setdefault(part, data) if part else data)
    return parts


@contextlib.contextmanager
def served_registry(fill: Callable[[str], dict[str, tuple[bytes, str]]], headers: dict[str, str]) -> Iterator[Registry]:
    """Serve a registry on this machine; with `headers`, every answer has these, and a status that makes them matter."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data, media = answers.get(self.path.removeprefix("/v2/x/"), (b"{}", "application/json"))
            self.send_response(_status(headers) if headers else 200 if media != "application/json" else 404)
            for name, value in {"Content-Type": media, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        do_HEAD = do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Write no line for a request: thousands of them would hide what the fuzzing says."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        answers = fill(address)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield Registry(Repository.parse(f"http://{address}/x"), attempts=1)
        finally:
            server.shutdown()


HEADERS = {
    "Retry-After": (503, b"Wed, 21 Oct 2026 07:28:00 GMT"),
    "WWW-Authenticate": (401, b'Bearer realm="http://127.0.0.1:9/token",service="x",scope="repository:x:pull"'),
    "Location": (202, b"http://127.0.0.1:9/v2/x/blobs/uploads/1?state=2"),
    "Content-Range": (206, b"bytes 4-4/5"),
    "Docker-Content-Digest": (200, b"sha256:" + b"0" * 64),
    "Content-Type": (200, MANIFEST_MEDIA_TYPE.encode()),
    "Content-Encoding": (200, b"gzip"),
}
"""Header -> the status of an answer in which it matters, and a sound value."""


def _status(headers: dict[str, str]) -> int:
    return next(HEADERS[name][0] for name in headers)


def read_registry(part: str, damaged: bytes) -> None:
    """Read all of a registry in which one part is damaged, as `publish --verify`, `pull` and `doctor` do."""

    def damage(name: str, data: bytes) -> bytes:
        return damaged if name == part else data

    def fill(address: str) -> dict[str, tuple[bytes, str]]:
        nonlocal damaged
        damaged = damaged.replace(_NOWHERE.encode(), address.encode())
        return FuzzedRegistry(address, damage).answers

    with served_registry(fill, {}) as registry:
        reference = ImageReference(repository=registry.repository, name=_TAG)
        key = _signing_key().verification_key
        answer = publication_check.read_published_name(registry, reference, lambda _: None, verifiers=[key])
        answer.text()
        json.dumps(answer.document())
        named = registry.manifest(_TAG)
        assert named is not None
        for digest in platform_index.list_index_images(named).values():
            image = registry.manifest(digest)
            assert image is not None
            parse_image_configuration(registry.read(image.require_image("x")))
        if answer.problems:
            raise KnowngoodError("; ".join(answer.problems))


def ask_with_header(name: str, value: bytes) -> None:
    """Ask for everything that a registry is asked for, where each answer has this header."""
    text = value.decode("latin-1").translate(dict.fromkeys([*range(32), 127], " "))
    with served_registry(lambda _: {}, {name: text}) as registry:
        blob = Descriptor.of(b"hello", "x")
        first: KnowngoodError | None = None
        for question in (
            lambda: registry.manifest(_TAG),
            lambda: registry.referrers(blob.digest),
            lambda: registry.has(blob),
            lambda: registry.read(blob),
            lambda: registry.put_bytes(b"hello", "x"),
        ):
            try:
                question()
            except KnowngoodError as error:
                first = first or error
        if first:
            raise first
