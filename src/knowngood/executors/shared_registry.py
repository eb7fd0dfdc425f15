"""The registry through which builders share what they have built: images, and BuildKit's caches of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from knowngood.core.errors import KnowngoodError
from knowngood.core.image_record import ImageBlob, ImageManifest
from knowngood.executors.shared_layers import BuilderBuild, image_inputs_tag, layer_cache_tag
from knowngood.images.build_command import Image
from knowngood.images.matrix_plan import LayerKey
from knowngood.registry import publication
from knowngood.registry.manifests import RegistryManifest
from knowngood.registry.registry_client import Registry


@dataclass(frozen=True)
class SharedRegistry:
    """The images and caches in one repository."""

    client: Registry

    def find_tags(self, tags: Iterable[str]) -> dict[str, str]:
        """Return those of the tags that exist, with their digests."""
        tags = list(dict.fromkeys(tags))
        with ThreadPoolExecutor(8) as pool:
            digests = dict(zip(tags, pool.map(self.client.digest, tags), strict=True))
        return {tag: digest for tag, digest in digests.items() if digest}

    def find_built(self, builds: Collection[BuilderBuild]) -> set[str]:
        """Return the names of those builds that exist, whichever builder made them."""
        tags = self.find_tags(tag for build in builds for tag in build.tags)
        return {build.name for build in builds if tags.keys() >= set(build.tags)}

    def find_caches(self, builds: Collection[BuilderBuild]) -> dict[str, str]:
        """Return the tags of those layers of the cells of these builds that exist, with the digests of the caches."""
        return self.find_tags(layer_cache_tag(key) for build in builds for key in build.layers)

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
