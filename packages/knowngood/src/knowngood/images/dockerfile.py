"""Renders the Dockerfile of a locked cell, and shows which rendered files are stale."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import UsageError
from knowngood.core.hosts import DEFAULT_HOST
from knowngood.lock.cell_lock import Layer
from knowngood.lock.lock_tree import CellLock
from knowngood.lock.resolver import NEWEST_UV_GLIBC, uv_platform

if TYPE_CHECKING:
    from jinja2 import Environment

LABEL_PREFIX = "io.knowngood."

# The characters that a quoted value in a Dockerfile may have: none that ends the quotes, continues a line or expands.
_SAFE = re.compile(r"[A-Za-z0-9 _.,:;/@+=>()-]*")

_C_ARCHIVES = frozenset({"crcmod"})
"""The source archives of the matrix that hold C code; the layers of all others keep the Dockerfile that they have."""


def render_dockerfile(locked_cell: CellLock, templates: Path) -> str:
    """Return the text of `docker/cells/<id>/Dockerfile`; `UsageError` for a value that a Dockerfile cannot hold."""
    cell = locked_cell.cell
    return (
        _environment(templates)
        .get_template("Dockerfile.j2")
        .render(
            cell=str(cell),
            python=cell.python,
            cuda_floor=cuda_floor(cell.cuda),
            foreign=cell.host != DEFAULT_HOST,
            builder="base" if cell.host == DEFAULT_HOST else "--platform=$BUILDPLATFORM builder",
            # When uv unpacks wheels for another processor, any C library will do: which wheel it is, the lock says.
            platform=uv_platform(f"2.{NEWEST_UV_GLIBC}", cell.host),
            layers=[_layer_values(layer) for layer in locked_cell.layers],
            labels={key: _check_value(value) for key, value in image_labels(locked_cell).items()},
        )
    )


@cache
def _environment(templates: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # a Dockerfile is not HTML; `_check_value` guards it
    )


def cuda_floor(cuda: str) -> str:
    """Return the CUDA that a driver must support at least: `.0` of the major, by CUDA's minor-version compatibility."""
    return cuda.partition(".")[0] + ".0"


def image_labels(locked_cell: CellLock) -> dict[str, str]:
    """Return the image's OCI labels: its description, each axis, the base and the lock."""
    cell = locked_cell.cell
    framework = f", with {' '.join(cell.framework_pin)}" if cell.framework_pin else ""
    return {
        "org.opencontainers.image.title": f"knowngood {cell}",
        "org.opencontainers.image.description": (
            f"torch {cell.torch} (CUDA {cell.cuda}) and transformers {cell.transformers} for {cell.gpu}{framework}"
        ),
        "org.opencontainers.image.base.name": locked_cell.base,
        LABEL_PREFIX + "cell": str(cell),
        **{LABEL_PREFIX + str(axis): value for axis, value in cell.axes().items()},
        LABEL_PREFIX + "base": locked_cell.base,
        LABEL_PREFIX + "lock": f"sha256:{locked_cell.digest}",
    }


def _layer_values(layer: Layer) -> dict[str, object]:
    first = layer.distributions[0]
    more = len(layer.distributions) - 1
    title = f"{first.name} {first.version}" + (f" and {more} more" if more else "")
    return {
        "name": _check_value(layer.name),
        "stage": "layer-" + _check_value(layer.group),
        "title": f"{_check_value(title)}, {layer.size / 1e6:,.1f} MB of wheels",
        "wheelhouse": any(item.made_here for item in layer.distributions),
        "pure": all(item.pure for item in layer.distributions),
        "sources": any(item.source for item in layer.distributions),
        "compiles": any(item.source and item.name in _C_ARCHIVES for item in layer.distributions),
    }


def _check_value(value: str) -> str:
    if not _SAFE.fullmatch(value):
        raise UsageError(f"{value!r} cannot be written into a Dockerfile")
    return value


def describe_stale_files(rendered: Mapping[Path, str], orphans: Iterable[Path]) -> str:
    """Return a unified diff from the files on disk to `rendered`, and a line for each orphan; empty if all is fine."""
    parts = []
    for path, text in rendered.items():
        current = path.read_bytes().decode(errors="replace") if path.exists() else ""
        if current != text:
            lines = difflib.unified_diff(
                current.splitlines(keepends=True), text.splitlines(keepends=True), str(path), f"{path} (rendered)"
            )
            parts.append("".join(lines))
    parts += [f"{path}: no cell of matrix.yaml has it\n" for path in orphans]
    return "".join(parts)
