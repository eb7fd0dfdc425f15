"""The record of an image, committed beside its Dockerfile: the digest that comes out, layer by layer. Pure.

`docker/cells/<id>/image.json`, written by `knowngood build --record`; `knowngood verify` builds again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from knowngood.building.shape import Shape
from knowngood.errors import UsageError

FILE = "image.json"
SCHEMA = "knowngood/image/1"


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A blob of an image: what its digest is, and its bytes in a registry."""

    digest: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An image as its manifest describes it."""

    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]


@dataclass(frozen=True, kw_only=True)
class Layer(Blob):
    """A layer with the name that `Shape.layers` gives it."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was built of a cell."""

    cell: str
    shape: Shape
    manifest: Blob
    config: Blob
    layers: tuple[Layer, ...]
    tools: Mapping[str, str]
    """What built it: BuildKit, engine, uv, with their versions."""

    @property
    def size(self) -> int:
        """Bytes of the image in a registry that has nothing of it."""
        return self.manifest.size + self.config.size + sum(layer.size for layer in self.layers)

    def text(self) -> str:
        """The file's content: one line a layer, so that a diff shows which of them changed."""
        head = {"schema": SCHEMA, "cell": self.cell, "inputs": self.shape.inputs, "shape": asdict(self.shape)}
        head |= {"tools": dict(self.tools), "manifest": asdict(self.manifest), "config": asdict(self.config)}
        rows = ",\n".join(
            "  " + json.dumps({"name": layer.name, "digest": layer.digest, "size": layer.size}) for layer in self.layers
        )
        return json.dumps(head, indent=1)[:-2] + f',\n "layers": [\n{rows}\n ]\n}}\n'

    def differences(self, other: Record) -> list[str]:
        """The names of the layers that have other bytes in `other`, `config` and `manifest` among them."""
        theirs = {layer.name: layer.digest for layer in other.layers}
        mine = {layer.name: layer.digest for layer in self.layers}
        found = [
            name
            for name in [*mine, *(name for name in theirs if name not in mine)]
            if mine.get(name) != theirs.get(name)
        ]
        found += ["config"] if self.config.digest != other.config.digest else []
        return found or (["manifest"] if self.manifest.digest != other.manifest.digest else [])


def of(cell: str, shape: Shape, locked: tuple[str, ...], image: Manifest, tools: Mapping[str, str]) -> Record:
    """The record of an image; `locked` names the layers of its lock.

    A base that is pulled may have several layers, the image's first; they are told apart by a number. Where a template
    of one's own makes fewer, they have numbers only.
    """
    names = list(shape.layers(locked))
    extra = len(image.layers) - len(names)
    if extra < 0:
        names, extra = [f"layer-{number}" for number in range(1, len(image.layers) + 1)], 0
    names[:1] = [names[0], *(f"{names[0]}.{number}" for number in range(2, extra + 2))]
    layers = tuple(
        Layer(name=name, digest=blob.digest, size=blob.size) for name, blob in zip(names, image.layers, strict=True)
    )
    return Record(cell=cell, shape=shape, manifest=image.manifest, config=image.config, layers=layers, tools=tools)


def parse(text: str, file: str) -> Record:
    """Read what `Record.text` wrote; `UsageError` for anything else."""
    try:
        stored: dict[str, Any] = json.loads(text)
        if stored["schema"] != SCHEMA:
            raise UsageError(f"{file}: schema {stored['schema']!r}, this program reads {SCHEMA}; {_AGAIN}")
        found = Record(
            cell=stored["cell"],
            shape=Shape(**stored["shape"]),
            manifest=Blob(**stored["manifest"]),
            config=Blob(**stored["config"]),
            layers=tuple(Layer(**layer) for layer in stored["layers"]),
            tools=stored["tools"],
        )
        damaged = found.shape.inputs != stored["inputs"] or found.size < 0
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is damaged ({error!r}); {_AGAIN}") from None
    if damaged:
        raise UsageError(f"{file} was changed by hand; {_AGAIN}")
    return found


_AGAIN = "`knowngood build --record` writes it again"
