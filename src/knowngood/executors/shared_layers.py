"""What builders build: cells, and before them the layers that several cells have. How it is divided. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from knowngood.core.cell import Cell
from knowngood.executors import builder_commands
from knowngood.images.build_command import CellBuildPlan
from knowngood.images.cell_tasks import LARGE_LAYER
from knowngood.images.matrix_plan import LayerKey


@dataclass(frozen=True, kw_only=True)
class CellBuild:
    """A cell whose image is to be built."""

    request: Cell
    """The cell that was asked for; its twin may be built in its place."""
    plan: CellBuildPlan
    layers: Mapping[LayerKey, int]
    """The layers that builders can share, with the bytes of the wheels in each."""

    @property
    def name(self) -> str:
        """The id of the cell that is built."""
        return str(self.plan.locked_cell.cell)

    @property
    def size(self) -> int:
        """Bytes of all wheels: every builder unpacks the whole image, whoever made its layers."""
        return sum(self.layers.values())


@dataclass(frozen=True, kw_only=True)
class LayerBuild:
    """Layers of several cells, built before these cells into one cache."""

    cell: CellBuild
    """A cell that has all of these layers; its Dockerfile makes them."""
    keys: tuple[LayerKey, ...]

    @property
    def name(self) -> str:
        """The tag under which the cache is written."""
        return builder_commands.layer_cache_tag(self.keys[0])

    @property
    def size(self) -> int:
        """Bytes of the wheels in these layers."""
        return sum(self.cell.layers[key] for key in self.keys)

    @property
    def is_foundation(self) -> bool:
        """Whether all other layers are built on these."""
        return builder_commands.is_foundation_layer(self.keys[0][0])


Build: TypeAlias = CellBuild | LayerBuild
Bake: TypeAlias = Sequence[Build]
"""What one builder builds at once."""


def find_shareable_layers(plan: CellBuildPlan, dockerfile: str) -> dict[LayerKey, int]:
    """Return the layers of a cell that builders can share, the foundation first, with the bytes of their wheels.

    A Dockerfile without a stage for each layer, from a project's own template, shares none.
    """
    layers = plan.locked_cell.layers
    stages = [builder_commands.layer_stage_name(layer) for layer in layers]
    if not builder_commands.has_stages(
        dockerfile, {builder_commands.VENV_STAGE, builder_commands.SUITE_STAGE, *stages}
    ):
        return {}
    foundation = [name for name in plan.shape.layer_names(()) if builder_commands.is_foundation_layer(name)]
    sizes = dict.fromkeys(foundation, 0) | {layer.name: layer.size for layer in layers}
    return {(name, plan.shape.layer_inputs): size for name, size in sizes.items()}


def plan_layer_builds(cells: Sequence[CellBuild], existing: Collection[LayerKey]) -> list[LayerBuild]:
    """Return the layers to build next: those that several cells have and that do not exist yet.

    The foundation comes alone, because all other layers start from it. Large layers are builds of their own, so that
    builders can divide the work; small layers that the same cells have are built together.
    """
    users: dict[LayerKey, list[CellBuild]] = defaultdict(list)
    for cell in cells:
        for key in cell.layers.keys() - set(existing):
            users[key].append(cell)
    groups: dict[tuple[object, ...], list[LayerKey]] = defaultdict(list)
    for key in dict.fromkeys(key for cell in cells for key in cell.layers):  # in the order of the cells
        if len(users[key]) > 1:
            is_large = users[key][0].layers[key] >= LARGE_LAYER
            is_foundation = builder_commands.is_foundation_layer(key[0])
            groups[(is_foundation, key if is_large else "", *(cell.name for cell in users[key]))].append(key)
    builds = [LayerBuild(cell=users[keys[0]][0], keys=tuple(keys)) for keys in groups.values()]
    return [build for build in builds if build.is_foundation] or builds


def divide_builds(
    builds: Sequence[Build], room: Mapping[str, int], refusals: Mapping[str, Collection[str]]
) -> dict[str, list[Bake]]:
    """Return the bakes of each builder, one after the other: the builds are divided by their bytes, the largest first.

    `room` states how many builds a builder can do at once, which is also the most in one of its bakes. `refusals` names
    the builders that cannot do a build, by the build's name; each build needs a builder that is not among them.
    """
    shares: dict[str, list[Build]] = {name: [] for name in room}
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
