"""One name for two hosts, in a real registry: each engine platform, and `pull`'s choice, gets its own image."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
import registry_server

from knowngood.core.hosts import HostArchitecture
from knowngood.engine import container_engine, embedded_engine
from knowngood.registry import platform_index
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, Descriptor, RegistryManifest
from knowngood.registry.registry_client import Registry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
]

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"


@pytest.fixture
def registry(registry_program, tmp_path):
    server = registry_server.Server(registry_program, tmp_path)
    server.start()
    yield Registry(Repository(host=server.address, path="team/images", plain=True))
    server.kill()


def push_small_image(registry: Registry, host: HostArchitecture) -> str:
    """Push an image with one file that names its host, and return its digest."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("host")
        member.size = len(host)
        archive.addfile(member, io.BytesIO(host.encode()))
    layer = registry.put_bytes(buffer.getvalue(), _LAYER)
    diff_ids = [f"sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}"]
    image = {
        "architecture": host.debian,
        "os": "linux",
        # The address makes it another image in each run: an engine that has the blobs of both shows its own platform.
        "config": {"Labels": {"host": host, "registry": str(registry.repository)}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    config = registry.put_bytes(json.dumps(image).encode(), _CONFIG)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_MEDIA_TYPE,
        "config": config.document(),
        "layers": [layer.document()],
    }
    data = json.dumps(document).encode()
    digest = Descriptor.of(data, MANIFEST_MEDIA_TYPE).digest
    registry.put_manifest(RegistryManifest(data=data, media=MANIFEST_MEDIA_TYPE), digest)
    return digest


def test_each_host_gets_its_own_image_by_one_name(registry, engine):
    digests = {host: push_small_image(registry, host) for host in HostArchitecture}
    index = registry.manifest(platform_index.push_platform_index(registry, digests))
    assert index is not None
    registry.put_manifest(index, "default")
    named = registry.manifest("default")
    assert named == index
    with container_engine.docker_client(engine) as client:
        for host, digest in reversed(digests.items()):
            assert platform_index.choose_host_image(registry, named, "default", host).descriptor.digest == digest
            image = client.images.pull(str(registry.repository), tag="default", platform=host.oci_platform)
            assert (image.attrs["Architecture"], image.labels["host"]) == (host.debian, host)
            client.images.remove(f"{registry.repository}:default", force=True)
