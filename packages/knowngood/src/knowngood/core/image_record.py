"""What determines the bytes of a cell's image, and the record of an image that was built.

An `ImageShape` names everything that determines an image's bytes: two images differ only where their shapes differ. An
image carries the digest of its shape as a label. An `ImageRecord` is the file `docker/cells/<id>/image.json`, which
`knowngood build --record` writes beside the Dockerfile: the digests that the build gave, layer by layer.
`knowngood verify` builds again and compares. Only `load_image_record` reads files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from knowngood.core import data_files, json_document
from knowngood.core.errors import UsageError

IMAGE_RECORD_FILE = "image.json"
IMAGE_RECORD_SCHEMA = "knowngood/image/1"

_HOW_TO_RENEW = "`knowngood build --record` writes it again"


@dataclass(frozen=True, kw_only=True)
class ImageShape:
    """One value for each thing that determines the bytes of an image.

    The field names are part of `image.json` and of the digests below, so they do not change.
    """

    dockerfile: str
    """SHA-256 of the Dockerfile's text."""
    lock: str
    """The lock's digest."""
    base: str
    """The base image's digest."""
    recipe: str
    """SHA-256 over `docker/recipe/`."""
    uv: str
    """The release of uv that installs the wheels."""
    export: str
    """The compression of the layers, and the time that every file in them gets."""

    @property
    def inputs(self) -> str:
        """SHA-256 over all fields: two images with this digest in common have the same bytes."""
        return _digest_fields(asdict(self))

    @property
    def layer_inputs(self) -> str:
        """SHA-256 over what determines a layer besides its wheels.

        Two layers with the same name and the same `layer_inputs` have the same bytes.
        """
        shared = {name: value for name, value in asdict(self).items() if name in ("base", "recipe", "uv", "export")}
        return _digest_fields(shared)

    def layer_names(self, lock_layers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the image's layers in their order, given the names of the layers of its lock."""
        # BuildKit makes an empty layer for WORKDIR.
        below = (f"base-{self.base.removeprefix('sha256:')[:12]}", "venv", "workdir")
        return (*below, *lock_layers, f"installed-{self.lock[:12]}")

    def describe_changes(self, other: ImageShape) -> tuple[str, ...]:
        """Return what differs between the two shapes, in words for people."""
        mine, theirs = asdict(self), asdict(other)
        return tuple(_SHAPE_WORDS[name] for name in mine if mine[name] != theirs[name])


_SHAPE_WORDS = {
    "dockerfile": "the Dockerfile",
    "lock": "the lock",
    "base": "the base",
    "recipe": "docker/recipe",
    "uv": "the release of uv",
    "export": "the compression",
}


def _digest_fields(fields: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(sorted(fields.items()))).encode()).hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ImageBlob:
    """A blob of an image: its digest, and its size in bytes as a registry stores it."""

    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class ImageManifest:
    """The blobs of an image, as its manifest lists them."""

    manifest: ImageBlob
    config: ImageBlob
    layers: tuple[ImageBlob, ...]


@dataclass(frozen=True, kw_only=True)
class ImageLayer(ImageBlob):
    """A layer with the name that `ImageShape.layer_names` gives it."""

    name: str


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """The result of building a cell's image."""

    cell: str
    shape: ImageShape
    manifest: ImageBlob
    config: ImageBlob
    layers: tuple[ImageLayer, ...]
    tools: Mapping[str, str]
    """The programs that built it (BuildKit, engine, uv) with their versions."""

    @property
    def size(self) -> int:
        """The bytes that this image takes in an empty registry."""
        return self.manifest.size + self.config.size + sum(layer.size for layer in self.layers)

    def is_of(self, image_id: str) -> bool:
        """Whether an engine's image is this one; the classic store names images by their configuration."""
        return image_id in (self.manifest.digest, self.config.digest)

    def render(self) -> str:
        """Return the text of `image.json`: one line a layer, so that a diff shows which layers changed."""
        head = {
            "schema": IMAGE_RECORD_SCHEMA,
            "cell": self.cell,
            "inputs": self.shape.inputs,
            "shape": asdict(self.shape),
            "tools": dict(self.tools),
            "manifest": asdict(self.manifest),
            "config": asdict(self.config),
        }
        rows = ",\n".join(
            "  " + json.dumps({"name": layer.name, "digest": layer.digest, "size": layer.size}) for layer in self.layers
        )
        return json.dumps(head, indent=1)[:-2] + f',\n "layers": [\n{rows}\n ]\n}}\n'

    def differences(self, other: ImageRecord) -> list[str]:
        """Return the names of the layers whose digests differ, and `config` where the configuration differs.

        `["manifest"]` means that only the manifest differs, and an empty list that the images are the same.
        """
        mine = {layer.name: layer.digest for layer in self.layers}
        theirs = {layer.name: layer.digest for layer in other.layers}
        names = [name for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]
        names += ["config"] if self.config.digest != other.config.digest else []
        return names or (["manifest"] if self.manifest.digest != other.manifest.digest else [])

    def describe_difference(self, committed: ImageRecord | None, *, replaced: bool = False) -> str:
        """Return a note when the same shape gave other bytes than the committed record has, else an empty text.

        `replaced` says that this record was written in the place of the committed one.
        """
        if committed is None or committed.shape != self.shape or committed.manifest == self.manifest:
            return ""
        layers = ", ".join(committed.differences(self))
        if replaced:
            return f"recorded anew: it was NOT as recorded before ({layers} differ)"
        return f"NOT as recorded ({layers} differ): `knowngood verify '{self.cell}'` lists the files"


def image_record_from_manifest(
    cell: str, shape: ImageShape, lock_layers: tuple[str, ...], image: ImageManifest, tools: Mapping[str, str]
) -> ImageRecord:
    """Name the layers of a built image, and return its record. `lock_layers` are the names of its lock's layers.

    A base that is pulled can have several layers. They are the first ones of the image, and are numbered. When a
    user's own template makes fewer layers than expected, all layers are only numbered.
    """
    names = list(shape.layer_names(lock_layers))
    extra = len(image.layers) - len(names)
    if extra < 0:
        names, extra = [f"layer-{number}" for number in range(1, len(image.layers) + 1)], 0
    names[:1] = [names[0], *(f"{names[0]}.{number}" for number in range(2, extra + 2))]
    layers = tuple(
        ImageLayer(name=name, digest=blob.digest, size=blob.size)
        for name, blob in zip(names, image.layers, strict=True)
    )
    return ImageRecord(cell=cell, shape=shape, manifest=image.manifest, config=image.config, layers=layers, tools=tools)


def load_image_record(path: Path) -> ImageRecord:
    """Read an `image.json`.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: it is damaged, was edited by hand, or has another schema.
    """

    def parse(data: bytes) -> Any:
        from knowngood.core.record_schema import ImageRecordDocument

        return json_document.parse_json(data, str(path), ImageRecordDocument, remedy=_HOW_TO_RENEW)

    schema = Path(__file__).with_name("record_schema.py")
    return _image_record_from_document(data_files.load_json_checked_once(path, parse, [schema]), str(path))


def parse_image_record(text: str, file: str) -> ImageRecord:
    """Parse the text of `image.json`; `file` is its name for messages. Raises `UsageError` as `load_image_record`."""
    from knowngood.core.record_schema import ImageRecordDocument

    stored = json_document.parse_json(text.encode(), file, ImageRecordDocument, remedy=_HOW_TO_RENEW)
    return _image_record_from_document(stored, file)


def _image_record_from_document(stored: Any, file: str) -> ImageRecord:
    record = ImageRecord(
        cell=stored["cell"],
        shape=ImageShape(**stored["shape"]),
        manifest=ImageBlob(**stored["manifest"]),
        config=ImageBlob(**stored["config"]),
        layers=tuple(ImageLayer(**layer) for layer in stored["layers"]),
        tools=stored["tools"],
    )
    if record.shape.inputs != stored["inputs"]:
        raise UsageError(f"{file} was changed by hand; {_HOW_TO_RENEW}")
    return record
