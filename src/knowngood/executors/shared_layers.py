"""What builders build: images of cells, and before them the layers that several cells have. How it is divided. Pure.

In the registry, an image has a tag with the digest of its inputs, and the cache of a layer has a tag with the layer's
name and inputs. A tag names everything that shapes the bytes, so all builders that need the same bytes find them under
the same tag.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from knowngood.core.cell import Cell
from knowngood.images.build_command import CellBuildPlan
from knowngood.images.cell_tasks import LARGE_LAYER
from knowngood.images.matrix_plan import LayerKey
from knowngood.registry.image_reference import TAG_HASH_DIGITS, TAG_LENGTH_LIMIT

LAYERS_TARGET = "knowngood-layers"
"""The last stage of a Dockerfile that makes layers and no image."""
_FOUNDATION = "venv"
"""The stage and the name of the layer that is not in the lock: the empty environment."""


@dataclass(frozen=True, kw_only=True)
class BuilderBuild:
    """The image of a cell that is to be built, or only some of its layers."""

    request: Cell
    """The cell that was asked for; its twin may be built in its place."""
    plan: CellBuildPlan
    dockerfile: str
    """The cell's Dockerfile."""
    layers: Mapping[LayerKey, int]
    """The cell's layers that builders can share, with the bytes of the wheels in each."""
    keys: tuple[LayerKey, ...] = ()
    """The layers that are built alone, into one cache; empty for the image."""

    @property
    def name(self) -> str:
        """The id of the cell that is built, or the tag under which the cache is written."""
        return self.tags[0] if self.keys else str(self.plan.locked_cell.cell)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that are in the registry when it is built."""
        return tuple(map(layer_cache_tag, self.keys)) or (image_inputs_tag(self.plan.inputs),)

    @property
    def layer_names(self) -> str:
        """The names of the layers that are built alone."""
        return ", ".join(name for name, _ in self.keys)

    @property
    def size(self) -> int:
        """Bytes of the wheels in it: every builder unpacks a whole image, whoever made its layers."""
        return sum(self.layers[key] for key in self.keys or self.layers)

    def render_layers_dockerfile(self) -> str:
        """Return the Dockerfile of the cell with a last stage that has the layers that are built alone."""
        stages = {layer.name: f"layer-{layer.group}" for layer in self.plan.locked_cell.layers}
        names = [stages.get(name, name) for name, _ in self.keys]
        copies = "".join(f"COPY --link --from={name} /out/ /\n" for name in names)
        return f"{self.dockerfile}\nFROM scratch AS {LAYERS_TARGET}\n{copies}"


def plan_image_build(request: Cell, plan: CellBuildPlan, dockerfile: str) -> BuilderBuild:
    """Return the build of a cell's image.

    Its Dockerfile needs a stage for each layer; one from a project's own template may have none, and shares no layers.
    """
    sizes: dict[str, int] = {}
    if has_stages(dockerfile, {_FOUNDATION, *(f"layer-{layer.group}" for layer in plan.locked_cell.layers)}):
        sizes = {_FOUNDATION: 0} | {layer.name: layer.size for layer in plan.locked_cell.layers}
    layers = {(name, plan.shape.layer_inputs): size for name, size in sizes.items()}
    return BuilderBuild(request=request, plan=plan, dockerfile=dockerfile, layers=layers)


def plan_layer_builds(cells: Sequence[BuilderBuild], existing: Collection[str]) -> list[BuilderBuild]:
    """Return the layers to build next: those that several cells have and whose tag does not exist yet.

    The foundation comes alone, because all other layers start from it. Large layers are builds of their own, so that
    builders can divide the work; small layers that the same cells have are built together.
    """
    users: dict[LayerKey, list[BuilderBuild]] = defaultdict(list)
    for cell in cells:
        for key in cell.layers:
            if layer_cache_tag(key) not in existing:
                users[key].append(cell)
    groups: dict[tuple[object, ...], list[LayerKey]] = defaultdict(list)
    for key, some in users.items():
        if len(some) > 1:
            large_key = key if some[0].layers[key] >= LARGE_LAYER else ""
            groups[(is_foundation(key), large_key, *(cell.name for cell in some))].append(key)
    builds = [replace(users[keys[0]][0], keys=tuple(keys)) for keys in groups.values()]
    return [build for build in builds if is_foundation(build.keys[0])] or builds


def assign_new_layers(builds: Sequence[BuilderBuild], existing: Collection[str]) -> dict[str, tuple[LayerKey, ...]]:
    """Return the layers that each build of a bake leaves in a cache of its own, by the build's name.

    For an image, these are the layers whose tag does not exist, each for the first image that has it. The foundation is
    never one of them: the cache of an image has no results of `RUN`, from which other layers could start.
    """
    new: dict[str, tuple[LayerKey, ...]] = {}
    for build in builds:
        taken = {key for keys in new.values() for key in keys}
        new[build.name] = build.keys or tuple(
            key
            for key in build.layers
            if key not in taken and layer_cache_tag(key) not in existing and not is_foundation(key)
        )
    return new


def divide_builds(
    builds: Sequence[BuilderBuild], room: Mapping[str, int], refusals: Mapping[str, Collection[str]]
) -> dict[str, list[list[BuilderBuild]]]:
    """Return the bakes of each builder, one after the other: the builds are divided by their bytes, the largest first.

    `room` states how many builds a builder can do at once, which is also the most in one of its bakes. `refusals` names
    the builders that cannot do a build, by the build's name; each build needs a builder that is not among them.
    """
    shares: dict[str, list[BuilderBuild]] = {name: [] for name in room}
    loads = dict.fromkeys(room, 0)
    for build in sorted(builds, key=lambda build: -build.size):
        able = [name for name in room if name not in refusals.get(build.name, ())]
        name = min(able, key=lambda name: (loads[name] + build.size + 1) / room[name])
        loads[name] += build.size + 1
        shares[name].append(build)
    return {
        name: [share[start : start + room[name]] for start in range(0, len(share), room[name])]
        for name, share in shares.items()
    }


def image_inputs_tag(inputs: str) -> str:
    """Return the tag of the image whose inputs have this digest."""
    return f"inputs-{inputs}"


def layer_cache_tag(key: LayerKey) -> str:
    """Return the tag of BuildKit's cache of a layer."""
    name, inputs = key
    end = f"-{inputs[:TAG_HASH_DIGITS]}"
    return f"layer-{name}"[: TAG_LENGTH_LIMIT - len(end)] + end


def choose_cache_tags(keys: Iterable[LayerKey], existing: Mapping[str, str]) -> list[str]:
    """Return one tag for each cache that has any of these layers; `existing` has the digests of caches by tag."""
    tags = {existing[tag]: tag for tag in map(layer_cache_tag, keys) if tag in existing}
    return sorted(tags.values())


def is_foundation(key: LayerKey) -> bool:
    """Return whether every other layer is built on this one: it is the empty environment."""
    return key[0] == _FOUNDATION


def has_stages(dockerfile: str, names: Collection[str]) -> bool:
    """Return whether the Dockerfile has all of these stages; a project's own template may have none of them."""
    return set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)) >= set(names)
