"""Compiled wheels that cells need and this machine lacks, from the places that the environment and the matrix name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell
from knowngood.core.notify import Notify
from knowngood.launch import image_access
from knowngood.lock import recorded_wheels, wheelhouse
from knowngood.project import checkout

if TYPE_CHECKING:
    from knowngood.project.checkout import Project


def list_wheel_places(project: Project, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the places in which compiled wheels are looked for, each once.

    These are the ones that `KNOWNGOOD_WHEEL_PLACES` lists (with blanks or commas between them), `wheel-places` of
    matrix.yaml, whose folders are below the project's, and the repositories that images are pulled from.
    """
    named = re.split(r"[\s,]+", environ.get("KNOWNGOOD_WHEEL_PLACES", ""))
    named += [
        place if "://" in place else str(project.root / Path(place).expanduser())
        for place in project.matrix.wheel_places
    ]
    named += [f"oci://{repository}" for repository in image_access.list_repositories(project.matrix, environ)]
    return tuple(dict.fromkeys(filter(None, named)))


def supply_wheel(
    project: Project, cell: Cell, release: tuple[str, str], wheel_folder: Path, notify: Notify
) -> Path | None:
    """Fetch a wheel into the wheelhouse when its bytes are known; `None` when they are not or no place has it.

    `release` is the package and its version.

    Raises `CorruptArchiveError` when a place has other bytes under its name, and no place has the right ones.
    """
    abi = checkout.load_torch_cxx11abi(cell.torch)
    pin = recorded_wheels.find_wheel_pin(cell, project.tree, *release, cxx11abi=abi)
    places = list_wheel_places(project, os.environ)
    if pin is None or not places:
        return None
    from knowngood.registry import wheel_places  # it imports the client of registries

    notify(f"looking for {pin.file}")
    return wheel_places.fetch_pinned_wheel(pin, places, wheel_folder, notify)


def supply_wheels(project: Project, cells: Iterable[Cell], wheel_folder: Path, notify: Notify) -> list[Path]:
    """Fetch every wheel that the cells need and the wheelhouse lacks, as far as places have them; return the new ones.

    Raises as `supply_wheel` does.
    """
    fetched = []
    for cell in cells:
        for package, version in project.matrix.compiled_packages(cell):
            abi = checkout.load_torch_cxx11abi(cell.torch)
            present, _ = wheelhouse.find_wheel(cell, wheel_folder, cxx11abi=abi, package=package, version=version)
            if present is None:
                wheel = supply_wheel(project, cell, (package, version), wheel_folder, notify)
                fetched += [wheel] if wheel else []
    return fetched
