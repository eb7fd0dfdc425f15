"""Builders without a machine, for the tests of runs on several builders."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from plan_samples import shape

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.executors.builder import Builder
from knowngood.executors.builder_crew import BuilderLostError
from knowngood.executors.builder_pipeline import BakeProduct
from knowngood.executors.builder_rounds import BuilderRounds
from knowngood.executors.shared_layers import BuilderBuild, layer_cache_tag
from knowngood.images import build_command
from knowngood.images.cell_tasks import CellResult, CellStatus
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, RegistryManifest

GB = 10**9
REPOSITORY = Repository.parse("registry.example/team/builds")
KEY_INPUTS = "m" * 64


def make_builder(name: str, **changes) -> Builder:
    fields = {"buildx": ("docker", "buildx"), "driver": "docker", "buildkit": "0.13", "machine": name}
    return Builder(name=name, **{**fields, **changes})


def image_build(number: int, **layers: int) -> BuilderBuild:
    """The build of a cell with layers of these sizes, besides the foundation."""
    cell = parse_cell(f"sm90-cu130-torch2.11.0-tf4.55.{number}-fa0-triton3.6.0-py311")
    plan = build_command.CellBuildPlan(
        tag=f"knowngood:{cell}",
        dockerfile=Path("/p/Dockerfile"),
        context=Path("/p"),
        contexts={"base": "b"},
        inputs=f"{number:064d}",
        locked_cell=SimpleNamespace(cell=cell, layers=()),
        shape=shape("x"),
    )
    sizes = {"venv": 0} | {name.replace("_", "-"): size for name, size in layers.items()}
    keys = {(name, KEY_INPUTS): size for name, size in sizes.items()}
    return BuilderBuild(request=cell, plan=plan, dockerfile="FROM base\n", layers=keys)


def layer_tags(builds) -> set[str]:
    """The tags of all layers of the cells of these builds."""
    return {layer_cache_tag(key) for build in builds for key in build.layers}


def option_values(argv: list[str], option: str) -> list[str]:
    """The values of all uses of an option."""
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


class FakeFleet:
    """Builders that answer or not, and the registry that they share, as the rounds of a run use them."""

    def __init__(self):
        self.dead: set[str] = set()
        self.fails: dict[tuple[str, str], KnowngoodError] = {}
        """The error of a build on a builder; the other builds of its bake are cancelled."""
        self.kills: dict[str, str] = {}
        """For a build the builder that dies when it does it."""
        self.bakes: list[tuple[str, list[str]]] = []
        """The builder and the builds of each bake, layers by their names without the inputs."""
        self.tags: set[str] = set()
        """What is in the registry."""
        self.messages: list[str] = []
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def find_built(self, builds):
        return {build.name for build in builds if self.tags >= set(build.tags)}

    def find_caches(self, builds):
        return {tag: tag for tag in self.tags & layer_tags(builds)}

    def run(self, cells, **room):
        """Run the rounds on builders that can do so many builds at once, and return the results by cell."""
        pipelines = {name: _FakePipeline(builder=make_builder(name), fleet=self) for name in room}
        rounds = BuilderRounds(cells, room, pipelines, self.stop, self.messages.append)
        return {result.cell: result for result in rounds.results()}

    def bake(self, builder, builds):
        """Return the failures of a bake, by the names that the tests use: layers without their inputs."""
        names = {"+".join(name for name, _ in build.keys) or build.name: build for build in builds}
        with self._lock:
            self.bakes.append((builder, list(names)))
        for name, build in names.items():
            if self.kills.get(name) == builder:
                self.dead.add(builder)
            if builder in self.dead:
                raise BuilderLostError(f"builder {builder} was lost during the build")
            if error := self.fails.get((name, builder)):
                return {build.name: error}
        return {}


@dataclass(frozen=True)
class _FakePipeline:
    builder: Builder
    fleet: FakeFleet
    built: bool = False

    @property
    def registry(self):
        return self.fleet

    def bake(self, builds, _notify):
        if failures := self.fleet.bake(self.builder.name, builds):
            return BakeProduct(failures=failures)
        self.fleet.tags |= {tag for build in builds for tag in build.tags}
        return BakeProduct(built={build.name: True for build in builds})

    def run(self, cell, _notify):
        image = build_command.Image(tag="t", digest="sha256:0", size=1, built=self.built)
        return CellResult(cell=str(cell), status=CellStatus.BUILT, seconds=1, image=image)


class FakeRegistryClient:
    """A registry's manifests, by tag and digest."""

    repository = REPOSITORY

    def __init__(self):
        self.manifests: dict[str, RegistryManifest] = {}

    def manifest(self, reference):
        return self.manifests.get(reference)

    def digest(self, reference):
        return self.manifests[reference].descriptor.digest if reference in self.manifests else None

    def put_manifest(self, manifest, reference):
        self.manifests[reference] = self.manifests[manifest.descriptor.digest] = manifest


def image_manifest(name: str, *sizes: int) -> RegistryManifest:
    blobs = [{"mediaType": "x", "digest": f"sha256:{size:064d}", "size": size} for size in sizes]
    return RegistryManifest(
        data=json.dumps({"name": name, "config": blobs[0], "layers": blobs[1:]}).encode(), media=MANIFEST_MEDIA_TYPE
    )
