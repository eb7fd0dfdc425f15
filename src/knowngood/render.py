"""From a cell's lock to its Dockerfile. Pure: every value is one that its own type has validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.errors import UsageError
from knowngood.locks.lock import Layer
from knowngood.locks.tree import CellLock

if TYPE_CHECKING:
    from jinja2 import Environment

LABEL = "io.knowngood."

# What may stand in a quoted Dockerfile value: nothing that ends the quotes, continues a line or expands.
_SAFE = re.compile(r"[A-Za-z0-9 _.,:;/@+=>()-]*")


def dockerfile(locked: CellLock, templates: Path) -> str:
    """The text of `docker/cells/<id>/Dockerfile`."""
    cell = locked.cell
    return (
        _environment(templates)
        .get_template("Dockerfile.j2")
        .render(
            cell=str(cell),
            python=cell.python,
            cuda_floor=cuda_floor(cell.cuda),
            layers=[_layer(layer) for layer in locked.layers],
            labels={key: _safe(value) for key, value in labels(locked).items()},
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
        autoescape=False,  # noqa: S701  # a Dockerfile is no HTML; `_safe` is its guard
    )


def cuda_floor(cuda: str) -> str:
    """The oldest CUDA that a driver must know: minor-version compatibility begins at the major's `.0`."""
    return cuda.partition(".")[0] + ".0"


def labels(locked: CellLock) -> dict[str, str]:
    """The image's OCI labels: what it is, each axis, the lock."""
    cell = locked.cell
    on_top = f", with {' '.join(cell.framework_pin)}" if cell.framework_pin else ""
    return {
        "org.opencontainers.image.title": f"knowngood {cell}",
        "org.opencontainers.image.description": (
            f"torch {cell.torch} (CUDA {cell.cuda}) and transformers {cell.transformers} for {cell.gpu}{on_top}"
        ),
        "org.opencontainers.image.base.name": locked.base,
        LABEL + "cell": str(cell),
        **{LABEL + str(axis): value for axis, value in cell.axes().items()},
        LABEL + "base": locked.base,
        LABEL + "lock": f"sha256:{locked.digest}",
    }


def _layer(layer: Layer) -> dict[str, object]:
    first = layer.distributions[0]
    more = len(layer.distributions) - 1
    title = f"{first.name} {first.version}" + (f" and {more} more" if more else "")
    return {
        "name": _safe(layer.name),
        "stage": "layer-" + _safe(layer.group),
        "title": f"{_safe(title)}, {layer.size / 1e6:,.1f} MB of wheels",
        "wheelhouse": any(item.made_here for item in layer.distributions),
        "sources": any(item.source for item in layer.distributions),
    }


def _safe(value: str) -> str:
    if not _SAFE.fullmatch(value):
        raise UsageError(f"{value!r} cannot stand in a Dockerfile")
    return value


def stale(wanted: Mapping[Path, str], orphans: Iterable[Path]) -> str:
    """A unified diff from what is on disk to `wanted`, empty when all is as rendered."""
    import difflib

    parts = []
    for path, text in wanted.items():
        there = path.read_bytes().decode(errors="replace") if path.exists() else ""
        if there != text:
            lines = difflib.unified_diff(
                there.splitlines(keepends=True), text.splitlines(keepends=True), str(path), f"{path} (rendered)"
            )
            parts.append("".join(lines))
    parts += [f"{path}: no cell of matrix.yaml has it\n" for path in orphans]
    return "".join(parts)
