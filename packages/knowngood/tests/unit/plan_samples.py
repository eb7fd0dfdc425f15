"""Cells as input for the planner, with their shapes and records, for tests."""

from __future__ import annotations

from knowngood.core import image_record
from knowngood.core.image_record import ImageBlob, ImageManifest, ImageShape
from knowngood.images.matrix_plan import PlanInput
from knowngood.lock.cell_lock import Layer
from samples import distribution

BASE = "sha256:" + "b" * 64


def shape(cell: str, /, **changes: str) -> ImageShape:
    fields = {"dockerfile": cell, "lock": cell * 16, "base": BASE, "recipe": "r", "uv": "1"}
    return ImageShape(**{**fields, "export": "zstd", **changes})


def layer(group: str, size: int) -> Layer:
    return Layer(group=group, distributions=(distribution(group, size=size),))


TORCH, NUMBERS, OLD, NEW = layer("torch", 500), layer("numbers", 30), layer("hf-old", 20), layer("hf-new", 25)


def wanted(cell: str, *layers: Layer, **changes: str) -> PlanInput:
    return PlanInput(cell=cell, layers=layers, shape=shape(cell, **changes))


def built(item: PlanInput) -> image_record.ImageRecord:
    names = item.shape.layer_names(tuple(one.name for one in item.layers))
    blobs = tuple(ImageBlob(digest=f"sha256:{name}", size=7) for name in names)
    image = ImageManifest(
        manifest=ImageBlob(digest="sha256:m", size=1), config=ImageBlob(digest="sha256:c", size=1), layers=blobs
    )
    return image_record.image_record_from_manifest(
        item.cell, item.shape, tuple(one.name for one in item.layers), image, {}
    )


A, B, C = wanted("a", TORCH, OLD), wanted("b", TORCH, NUMBERS, NEW), wanted("c", NUMBERS, NEW)
