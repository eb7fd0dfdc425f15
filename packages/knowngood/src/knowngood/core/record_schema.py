"""The types of what `docker/cells/<id>/` holds besides the Dockerfile: `image.json` and `cell.json`.

They are apart from the code that uses them, because pydantic takes 60 ms to import.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import Field

ByteCount = Annotated[int, Field(ge=0, le=2**53)]

_LayerName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,200}$")]


class _Shape(TypedDict):
    dockerfile: str
    lock: str
    base: str
    recipe: str
    uv: str
    export: str


class _Blob(TypedDict):
    digest: str
    size: ByteCount


class _Layer(_Blob):
    name: str


class ImageRecordDocument(TypedDict):
    """The content of `image.json`; `core.image_record` explains it."""

    schema: Literal["knowngood/image/1"]
    cell: str
    inputs: str
    shape: _Shape
    tools: dict[str, str]
    manifest: _Blob
    config: _Blob
    layers: list[_Layer]


class CellLockDocument(TypedDict):
    """The content of `cell.json`; `lock.lock_tree` explains it."""

    schema: Literal["knowngood/cell/1"]
    id: str
    axes: dict[str, str]
    base: str
    inputs: str
    lock: str
    layers: list[_LayerName]
