"""The tags under which builders find what others of the fleet have made, in the registry between them. Pure.

An image is there under the hash of its inputs, a layer under its name and making. Each tag names what shaped the bytes,
so whoever wants the same finds the same.
"""

from __future__ import annotations

from knowngood.building.planning import Key
from knowngood.registries.reference import MAX_TAG, SHORT


def image(inputs: str) -> str:
    """The tag of an image with these inputs."""
    return f"inputs-{inputs}"


def layer(key: Key) -> str:
    """The tag of a layer's build cache."""
    name, making = key
    end = f"-{making[:SHORT]}"
    return f"layer-{name}"[: MAX_TAG - len(end)] + end
