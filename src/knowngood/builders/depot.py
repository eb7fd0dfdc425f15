"""What a fleet has made, and keeps in the registry between its builders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from knowngood.builders import jobs, tags
from knowngood.building import build
from knowngood.building.planning import Holdings, Key, Wanted
from knowngood.building.record import Blob
from knowngood.building.record import Manifest as Described
from knowngood.errors import KnowngoodError
from knowngood.publishing import publish
from knowngood.registries.manifests import Manifest
from knowngood.registries.registry import Registry


@dataclass(frozen=True)
class Depot:
    """Images and layers in one repository."""

    registry: Registry

    def holdings(self, wanted: Sequence[Wanted], before: Holdings) -> Holdings:
        """What is there of these cells; the rest of `before` stays."""
        inputs = [item.shape.inputs for item in wanted if item.shape]
        layers = list(dict.fromkeys(key for item in wanted for key in jobs.keys(item)))
        images = self._digests([tags.image(one) for one in inputs])
        cached = self.caches(layers)
        return replace(
            before,
            images=frozenset(one for one in inputs if tags.image(one) in images),
            layers=frozenset(key for key in layers if tags.layer(key) in cached),
        )

    def image(self, inputs: str) -> build.Image | None:
        """The image of these inputs, if any builder has made it."""
        found = self.registry.manifest(tags.image(inputs))
        return self._image(tags.image(inputs), found) if found else None

    def pushed(self, inputs: str, digest: str) -> build.Image:
        """The image that a builder says it pushed, under its tag; `KnowngoodError` when the registry has another."""
        tag = tags.image(inputs)
        publish.move(self.registry, tag, digest)
        found = self.registry.manifest(tag)
        if found is None:
            raise KnowngoodError(f"{self.registry.repository} lost {digest} after it was pushed; run it again")
        return replace(self._image(tag, found), built=True)

    def described(self, digest: str) -> Described:
        """The manifest of an image that is there."""
        found = self.registry.manifest(digest)
        if found is None:
            raise KnowngoodError(f"{self.registry.repository} does not have {digest}")
        config, *layers = (Blob(digest=blob.digest, size=blob.size) for blob in found.blobs())
        own = found.descriptor
        return Described(manifest=Blob(digest=own.digest, size=own.size), config=config, layers=tuple(layers))

    def caches(self, keys: Iterable[Key]) -> dict[str, str]:
        """The tags of those layers that are there, each with the digest of the cache that has it."""
        return self._digests([tags.layer(key) for key in keys])

    def sources(self, keys: Iterable[Key]) -> tuple[str, ...]:
        """As few tags as name every cache in which these layers are."""
        one_each = {digest: tag for tag, digest in self.caches(keys).items()}
        return tuple(sorted(one_each.values()))

    def share(self, keys: Sequence[Key]) -> None:
        """Let each of these layers be found in the cache that was written under the first one's tag."""
        if not keys:
            return
        written = tags.layer(keys[0])
        digest = self.registry.digest(written)
        if digest is None:
            raise KnowngoodError(f"{self.registry.repository} lost {written} after it was written; run it again")
        for key in keys[1:]:
            publish.move(self.registry, tags.layer(key), digest)

    def _image(self, tag: str, found: Manifest) -> build.Image:
        size = found.descriptor.size + sum(blob.size for blob in found.blobs())
        name = f"{self.registry.repository}:{tag}"
        return build.Image(tag=name, digest=found.descriptor.digest, size=size, built=False)

    def _digests(self, names: Sequence[str]) -> dict[str, str]:
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(names, pool.map(self.registry.digest, names), strict=True))
        return {name: digest for name, digest in found.items() if digest}
