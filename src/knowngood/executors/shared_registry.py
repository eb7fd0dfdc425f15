"""The registry through which builders share what they have built: images, and BuildKit's caches of layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from knowngood.core.errors import KnowngoodError
from knowngood.core.image_record import ImageBlob, ImageManifest
from knowngood.executors.builder_commands import image_inputs_tag, layer_cache_tag
from knowngood.images.build_command import Image
from knowngood.images.matrix_plan import LayerKey
from knowngood.registry import publication
from knowngood.registry.manifests import RegistryManifest
from knowngood.registry.registry_client import Registry


@dataclass(frozen=True)
class SharedRegistry:
    """The images and caches in one repository."""

    client: Registry

    def find_images(self, inputs: Sequence[str]) -> set[str]:
        """Return those of the digests of inputs whose image exists, whichever builder made it."""
        images = self._find_digests([image_inputs_tag(digest) for digest in inputs])
        return {digest for digest in inputs if image_inputs_tag(digest) in images}

    def find_layers(self, keys: Iterable[LayerKey]) -> set[LayerKey]:
        """Return those of the layers that are in a cache."""
        keys = set(keys)
        caches = self.find_caches(keys)
        return {key for key in keys if layer_cache_tag(key) in caches}

    def find_image(self, inputs: str) -> Image | None:
        """Return the image whose inputs have this digest, if any builder has made it."""
        tag = image_inputs_tag(inputs)
        manifest = self.client.manifest(tag)
        return self._image_from_manifest(tag, manifest) if manifest else None

    def tag_pushed_image(self, inputs: str, digest: str) -> Image:
        """Put the tag of its inputs on an image that a builder has pushed, and return the image.

        Raises:
            KnowngoodError: the registry does not have the image.
        """
        tag = image_inputs_tag(inputs)
        publication.move_alias(self.client, tag, digest)
        manifest = self.client.manifest(tag)
        if manifest is None:
            raise KnowngoodError(f"{self.client.repository} lost {digest} after it was pushed; run it again")
        return replace(self._image_from_manifest(tag, manifest), built=True)

    def read_manifest(self, digest: str) -> ImageManifest:
        """Return the manifest of an image. Raises `KnowngoodError` when the registry does not have the image."""
        manifest = self.client.manifest(digest)
        if manifest is None:
            raise KnowngoodError(f"{self.client.repository} does not have {digest}")
        config, *layers = (ImageBlob(digest=blob.digest, size=blob.size) for blob in manifest.blobs())
        own = manifest.descriptor
        return ImageManifest(manifest=ImageBlob(digest=own.digest, size=own.size), config=config, layers=tuple(layers))

    def find_caches(self, keys: Iterable[LayerKey]) -> dict[str, str]:
        """Return the cache tags of those layers that exist, with the digest of each cache."""
        return self._find_digests([layer_cache_tag(key) for key in keys])

    def cache_sources(self, keys: Iterable[LayerKey]) -> tuple[str, ...]:
        """Return one tag for each cache that has any of these layers."""
        tags = {digest: tag for tag, digest in self.find_caches(keys).items()}
        return tuple(sorted(tags.values()))

    def tag_cache(self, keys: Sequence[LayerKey]) -> None:
        """Put the tags of all these layers on the cache that was written under the tag of the first one.

        Raises:
            KnowngoodError: the registry does not have the cache.
        """
        if not keys:
            return
        written = layer_cache_tag(keys[0])
        digest = self.client.digest(written)
        if digest is None:
            raise KnowngoodError(f"{self.client.repository} lost {written} after it was written; run it again")
        for key in keys[1:]:
            publication.move_alias(self.client, layer_cache_tag(key), digest)

    def _image_from_manifest(self, tag: str, manifest: RegistryManifest) -> Image:
        size = manifest.descriptor.size + sum(blob.size for blob in manifest.blobs())
        name = f"{self.client.repository}:{tag}"
        return Image(tag=name, digest=manifest.descriptor.digest, size=size, built=False)

    def _find_digests(self, tags: Sequence[str]) -> dict[str, str]:
        with ThreadPoolExecutor(8) as pool:
            digests = dict(zip(tags, pool.map(self.client.digest, tags), strict=True))
        return {tag: digest for tag, digest in digests.items() if digest}
