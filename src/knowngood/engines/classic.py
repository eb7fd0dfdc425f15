"""Engines with the classic image store: their BuildKit cannot read an OCI layout, so the base is imported as an image.

Only the layer's content goes in: an image built on it has the same files, and no manifest digest to compare.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from knowngood.engines import sdk
from knowngood.engines.engine import Engine

_LAYOUT = "oci-layout://"


def context(engine: Engine, address: str) -> str:
    """`address`, or where it names an OCI layout of one layer, the image in the engine that holds the same."""
    if not address.startswith(_LAYOUT):
        return address
    layout, _, digest = address.removeprefix(_LAYOUT).rpartition("@")
    name = f"knowngood-base:{digest.removeprefix('sha256:')[:24]}"
    with sdk.client(engine) as client:
        if not client.images.list(name=name):
            manifest = _blob(layout, digest)
            config = _blob(layout, manifest["config"]["digest"])["config"]
            (layer,) = manifest["layers"]
            changes = [f"ENV {item}" for item in config.get("Env", [])]
            changes += [f"CMD {json.dumps(config['Cmd'])}"] if config.get("Cmd") else []
            repository, _, tag = name.partition(":")
            client.api.import_image_from_file(str(_path(layout, layer["digest"])), repository, tag, changes=changes)
    return f"docker-image://{name}"


def _path(layout: str, digest: str) -> Path:
    return Path(layout) / "blobs" / digest.replace(":", "/")


def _blob(layout: str, digest: str) -> Any:
    return json.loads(_path(layout, digest).read_bytes())
