"""What a builder is told: a cell's image into the registry, or layers into the cache that is kept there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from knowngood.builders import derive
from knowngood.builders.builder import Builder
from knowngood.building import build
from knowngood.registries.reference import Reference, Repository

RUN = "KNOWNGOOD_RUN"
"""The build argument by which a step is another one each time."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Who builds, from which caches, and where what comes out goes."""

    builder: Builder
    repository: Repository
    network: str
    caches: Sequence[str]
    """Tags in the repository to read from."""
    metadata: Path
    """Where buildx writes what came out."""

    def cell(self, plan: build.Plan, tag: str, keep: str | None) -> list[str]:
        """Build a cell's image and push it; `keep` is a tag for a cache of its layers."""
        if self.builder.engine:  # it pushes what it keeps, by name
            name = Reference(repository=self.repository, name=tag)
            output = f"type=image,name={name},push=true"
        else:
            output = f"type=image,name={self.repository},push=true,push-by-digest=true,name-canonical=true"
        words = [*self._words(plan), "--output", f"{output},{build.COMPRESSION}"]
        return [*words, *(self._kept(keep, "min") if keep else []), str(plan.context)]

    def layers(self, plan: build.Plan, keep: str, *, ground: bool) -> list[str]:
        """Build the layers of a derived Dockerfile into the cache `keep`; of the ground also what its steps left."""
        words = [*self._words(plan), "--target", derive.TARGET, "--output", "type=cacheonly"]
        return [*words, *self._kept(keep, "max" if ground else "min"), str(plan.context)]

    def files(self, plan: build.Plan, target: str, run: str, out: Path) -> list[str]:
        """Build a stage whose files come to the folder `out` of this machine.

        A step that takes the argument `RUN` is run again for another `run`. Told not to use its cache for a stage,
        BuildKit gives the stage new cache mounts as well (seen with 0.13).
        """
        words = [*self._words(plan), "--target", target, "--build-arg", f"{RUN}={run}"]
        return [*words, "--output", f"type=local,dest={out}", str(plan.context)]

    def _words(self, plan: build.Plan) -> list[str]:
        builder = self.builder
        words = [*builder.buildx, "build", *builder.options, *build.arguments(plan, self.network, self.metadata)]
        for tag in self.caches:
            words += ["--cache-from", f"type=registry,ref={self.repository}:{tag}"]
        return words

    def _kept(self, tag: str, mode: str) -> list[str]:
        place = f"type=registry,ref={self.repository}:{tag}"
        return ["--cache-to", f"{place},mode={mode},image-manifest=true,{build.COMPRESSION}"]
