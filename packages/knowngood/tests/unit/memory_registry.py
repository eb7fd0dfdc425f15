"""A registry in memory, for tests that need no HTTP: it has one image, and may keep or replace what is sent twice."""

from __future__ import annotations

import hashlib
import io
import json

from knowngood.registry import attachments
from knowngood.registry.manifests import (
    CONFIG_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    AbsentContentError,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
)

CONFIG = b'{"config": {"Labels": {"io.knowngood.cell": "tiny"}}}'
LAYER_MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar"
LAYERS = (b"the first layer", b"the second layer")


def image_manifest(config: bytes = CONFIG) -> RegistryManifest:
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": Descriptor.of(config, CONFIG_MEDIA_TYPE).document(),
        "layers": [Descriptor.of(layer, LAYER_MEDIA_TYPE).document() for layer in LAYERS],
    }
    return RegistryManifest(data=json.dumps(document).encode(), media=MANIFEST_MEDIA_TYPE)


IMAGE = image_manifest()
DIGEST = IMAGE.descriptor.digest


class MemoryRegistry:
    """A registry without the referrers API; `puts` are the names of what was sent to it.

    With `keeps`, it is like the program `distribution`: it takes no other bytes for a digest that it has.
    """

    def __init__(self, repository="registry.example/team/images", *_args, keeps=False, **_more):
        self.repository = repository
        self.manifests = {DIGEST: IMAGE}
        self.blobs = {Descriptor.of(data, "").digest: data for data in (CONFIG, *LAYERS)}
        self.puts = []
        self.keeps = keeps

    def put_image(self, labels, tag):
        """Put an image with these labels, as it is pushed, and return its digest."""
        config = json.dumps({"config": {"Labels": labels}}).encode()
        image = image_manifest(config)
        self.blobs[Descriptor.of(config, "").digest] = config
        self.manifests |= {image.descriptor.digest: image, tag: image}
        return image.descriptor.digest

    def manifest(self, reference):
        found = self.manifests.get(reference)
        if found and reference.startswith("sha256:") and found.descriptor.digest != reference:
            raise DamagedContentError(f"serves other bytes for the manifest {reference}")
        return found

    def digest(self, reference):
        found = self.manifest(reference)
        return found and found.descriptor.digest

    def put_manifest(self, manifest, reference):
        self.puts.append(reference)
        if not (self.keeps and reference.startswith("sha256:") and reference in self.manifests):
            self.manifests[reference] = manifest
        self.manifests.setdefault(manifest.descriptor.digest, manifest)
        return False

    def put(self, blob, opener):
        self.puts.append(blob.digest)
        with opener() as body:
            data = body.read()
        if not (self.keeps and blob.digest in self.blobs):
            self.blobs[blob.digest] = data

    def put_bytes(self, data, media):
        blob = Descriptor.of(data, media)
        self.put(blob, lambda: io.BytesIO(data))
        return blob

    def has(self, blob):
        return len(self.blobs.get(blob.digest, b"")) == blob.size

    def check(self, blob):
        if blob.digest not in self.blobs:
            raise AbsentContentError(blob.digest)
        if f"sha256:{hashlib.sha256(self.blobs[blob.digest]).hexdigest()}" != blob.digest:
            raise DamagedContentError(f"serves other bytes for the blob {blob.digest}")

    def referrers(self, _digest):
        return None

    def read(self, blob):
        self.check(blob)
        return self.blobs[blob.digest]

    def documents(self, media):
        return [item.document() for item in attachments.fetch_attachments(self, DIGEST) if item.media == media]
