"""One name for the images of a cell on several hosts: an OCI image index, from which each host takes its own image.

A cell for x86-64 and its twin for aarch64 have all other axes in common. Each is published as an image of its own, with
its documents and signatures; the index only lists their digests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.hosts import HostArchitecture
from knowngood.registry.manifests import INDEX_MEDIA_TYPE, MANIFEST_MEDIA_TYPE, Descriptor, RegistryManifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from knowngood.registry.registry_client import Registry


def group_twin_cells(cells: Iterable[Cell]) -> dict[Cell, dict[HostArchitecture, Cell]]:
    """Return the cell for x86-64 -> host -> cell, for those cells that are there for more than one host. Pure."""
    twins: dict[Cell, dict[HostArchitecture, Cell]] = {}
    for cell in cells:
        twins.setdefault(cell.on_host(HostArchitecture.X86_64), {})[cell.host] = cell
    return {cell: hosts for cell, hosts in twins.items() if len(hosts) > 1}


def render_platform_index(images: Mapping[HostArchitecture, Descriptor]) -> RegistryManifest:
    """Return the index that lists the image of each host; the same images give the same bytes. Pure."""
    manifests = [
        images[host].document() | {"platform": {"architecture": host.debian, "os": "linux"}}
        for host in HostArchitecture
        if host in images
    ]
    document = {"schemaVersion": 2, "mediaType": INDEX_MEDIA_TYPE, "manifests": manifests}
    return RegistryManifest(data=json.dumps(document, separators=(",", ":")).encode(), media=INDEX_MEDIA_TYPE)


def push_platform_index(registry: Registry, digests: Mapping[HostArchitecture, str]) -> str:
    """Send the index of published images by its digest, and return that.

    Raises `KnowngoodError` when the registry does not have one of the images.
    """
    images = {}
    for host, digest in digests.items():
        manifest = registry.manifest(digest)
        if manifest is None:
            raise KnowngoodError(f"{registry.repository} lost {digest} before an index could name it; run it again")
        images[host] = manifest.descriptor
    index = render_platform_index(images)
    if registry.manifest(index.descriptor.digest) is None:
        registry.put_manifest(index, index.descriptor.digest)
    return index.descriptor.digest


def list_index_images(index: RegistryManifest) -> dict[HostArchitecture, str]:
    """Return host -> digest of the images that an index lists. Pure.

    Raises `KnowngoodError` for an index that `render_platform_index` does not make: where it lists two images for a
    host, or one that only some hosts take, clients differ in which of them they run.
    """
    name = f"the index {index.descriptor.digest}"
    if index.media != INDEX_MEDIA_TYPE:
        raise KnowngoodError(f"{name} is a {index.media}, and this program publishes none")
    hosts = {host.debian: host for host in HostArchitecture}
    listed: dict[HostArchitecture, str] = {}
    for item in index.document.get("manifests") or []:
        image, platform = Descriptor.read(item), item.get("platform")
        host = hosts.get(platform["architecture"]) if platform else None
        if host is None or platform != {"architecture": host.debian, "os": "linux"}:
            raise KnowngoodError(f"{name} lists {image.digest} for {platform}, for which there are no cells")
        if image.media != MANIFEST_MEDIA_TYPE:
            raise KnowngoodError(f"{name} lists {image.digest}, a {image.media[:100]}, as the image for {host}")
        if host in listed:
            raise KnowngoodError(f"{name} lists two images for {host}, {listed[host]} and {image.digest}")
        listed[host] = image.digest
    return listed


def choose_host_image(
    registry: Registry, manifest: RegistryManifest, name: str, host: HostArchitecture
) -> RegistryManifest:
    """Return the image for a host out of an index, and the manifest of a single image as it is.

    Raises `KnowngoodError` when the index `name` has no image for the host, or the registry does not have it, and as
    `list_index_images`.
    """
    if not manifest.is_index:
        return manifest
    listed = list_index_images(manifest)
    if host not in listed:
        raise KnowngoodError(f"{name} has images for {', '.join(listed) or 'no host'}, and none for {host}")
    image = registry.manifest(listed[host])
    if image is None:
        raise KnowngoodError(f"{name} lists {listed[host]} for {host}, which {registry.repository} does not have")
    return image
