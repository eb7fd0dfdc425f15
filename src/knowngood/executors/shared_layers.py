"""The layers that builders share: which are built before the cells, in which order, and under which tags. Pure.

Layers that several cells have are built once, before these cells. In the registry, an image has a tag with the digest
of its inputs, and the cache of a layer has a tag with the layer's name and inputs. A tag names everything that shapes
the bytes, so all builders that need the same bytes find them under the same tag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from knowngood.executors.builder_commands import is_foundation_layer
from knowngood.images.cell_tasks import (
    DISK_PER_BYTE,
    LARGE_LAYER,
    MEMORY_TO_BUILD,
    BuildTask,
    MachineResources,
    task_for_cell,
)
from knowngood.images.matrix_plan import Holdings, LayerKey, PlanInput, layers_to_build
from knowngood.registry.image_reference import TAG_HASH_DIGITS, TAG_LENGTH_LIMIT


@dataclass(frozen=True, kw_only=True)
class LayerJob:
    """Layers that are built before the cells that have them."""

    cell: str
    """A cell that has all of these layers; its Dockerfile makes them."""
    keys: tuple[LayerKey, ...]
    after: frozenset[LayerKey] = frozenset()
    """Layers that other jobs build first."""
    size: int = 0
    """Bytes of the wheels in the layers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(name for name, _ in self.keys)

    @property
    def task(self) -> BuildTask:
        """The job as a task for the scheduler."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return BuildTask(
            cell=f"{self.names[0]}{more}",
            need=MachineResources(memory=MEMORY_TO_BUILD, disk=DISK_PER_BYTE * self.size),
            makes=frozenset(self.keys),
            after=self.after,
        )


def foundation_keys(item: PlanInput) -> tuple[LayerKey, ...]:
    """Return the layers on which all other layers of a cell are built: the empty environment and the suite."""
    if item.shape is None:
        return ()
    names = item.shape.layer_names(())
    return tuple((name, item.shape.layer_inputs) for name in names if is_foundation_layer(name))


def shareable_keys(item: PlanInput) -> tuple[LayerKey, ...]:
    """Return all layers of a cell that builders can share."""
    if item.shape is None:
        return ()
    return (*foundation_keys(item), *((layer.name, item.shape.layer_inputs) for layer in item.layers))


def plan_shared_layers(
    inputs: Sequence[PlanInput], holdings: Holdings, has_layer_stages: Callable[[PlanInput], bool]
) -> list[LayerJob]:
    """Return the jobs for layers that several cells have and that do not exist yet, in the best order to start them.

    A large layer is a job of its own, so that builders can divide the work. Small layers that the same cells have are
    one job. `has_layer_stages` returns whether a cell's Dockerfile has the stages that make its layers.
    """
    users: dict[LayerKey, list[PlanInput]] = defaultdict(list)
    sizes: dict[LayerKey, int] = {}
    for item in inputs:
        missing = dict(layers_to_build(item, holdings))
        if item.shape is None or item.shape.inputs in holdings.images or not has_layer_stages(item):
            continue
        for key in shareable_keys(item):
            if key in missing or (key not in holdings.layers and key in foundation_keys(item)):
                users[key].append(item)
                sizes[key] = missing.get(key, 0)
    shared = {key: cells for key, cells in users.items() if len(cells) > 1}
    foundation = {key for cells in shared.values() for item in cells for key in foundation_keys(item)} & shared.keys()
    groups: dict[tuple[object, ...], list[LayerKey]] = defaultdict(list)
    for key, cells in shared.items():
        large_name = key[0] if sizes[key] >= LARGE_LAYER else ""
        groups[(key in foundation, large_name, *(item.cell for item in cells))].append(key)
    jobs = []
    for keys in groups.values():
        first_cell = shared[keys[0]][0]
        after = frozenset() if keys[0] in foundation else frozenset(foundation_keys(first_cell)) & foundation
        size = sum(sizes[key] for key in keys)
        jobs.append(LayerJob(cell=first_cell.cell, keys=tuple(keys), after=after, size=size))
    return sorted(jobs, key=lambda job: (bool(job.after), -job.size, job.names))


def plan_early_layers(
    inputs: Sequence[PlanInput],
    holdings: Holdings,
    shared: frozenset[LayerKey],
    has_layer_stages: Callable[[PlanInput], bool],
) -> list[LayerJob]:
    """Return the large layers that only one cell has, the largest first.

    A builder that has nothing else to do makes them before their cell. `shared` are the layers of other jobs.
    """
    jobs = [
        LayerJob(cell=item.cell, keys=(key,), after=frozenset(foundation_keys(item)) & shared, size=size)
        for item in inputs
        if item.shape and item.shape.inputs not in holdings.images and has_layer_stages(item)
        for key, size in layers_to_build(item, holdings)
        if size >= LARGE_LAYER and key not in shared
    ]
    return sorted(jobs, key=lambda job: -job.size)


def task_after_layers(item: PlanInput, holdings: Holdings, shared: frozenset[LayerKey], *, prove: bool) -> BuildTask:
    """Return the task of a cell that starts after the jobs for its layers among `shared`; it makes the other ones."""
    task = task_for_cell(item, holdings, prove=prove)
    return replace(task, makes=task.makes - shared, after=frozenset(shareable_keys(item)) & shared)


def image_inputs_tag(inputs: str) -> str:
    """Return the tag of the image whose inputs have this digest."""
    return f"inputs-{inputs}"


def layer_cache_tag(key: LayerKey) -> str:
    """Return the tag of BuildKit's cache of a layer."""
    name, inputs = key
    end = f"-{inputs[:TAG_HASH_DIGITS]}"
    return f"layer-{name}"[: TAG_LENGTH_LIMIT - len(end)] + end
