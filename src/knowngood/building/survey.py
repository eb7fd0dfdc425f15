"""What planning needs to know, gathered from the project, the engine and the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from knowngood import render
from knowngood.building import build, planning, records
from knowngood.building.planning import Holdings, Wanted
from knowngood.building.record import Record
from knowngood.building.shape import Shape
from knowngood.cell import Cell
from knowngood.engines import sdk
from knowngood.engines.engine import Engine
from knowngood.errors import KnowngoodError, UsageError
from knowngood.locks import locking
from knowngood.locks.tree import CellLock
from knowngood.project import Project, cxx11abi
from knowngood.render import LABEL
from knowngood.system import base, bases


def asked(project: Project, cells: Iterable[Cell], house: Path | None) -> dict[Wanted, Cell]:
    """Each cell as planning needs it; the `fa0` twin of one whose flash-attn wheel the wheelhouse lacks, once.

    Without a wheelhouse (`None`) the wheels are yet to be made, and no cell has a twin in its place.
    """
    found: dict[str, tuple[Wanted, Cell]] = {}
    folders = digests(project)
    for cell in cells:
        item = _wanted(project, cell, house, folders)
        found.setdefault(item.cell, (item, cell))
    return dict(found.values())


def _wanted(project: Project, cell: Cell, house: Path | None, folders: Mapping[str, str]) -> Wanted:
    note = ""
    if house and (lacks := locking.lacking(cell, project.matrix, house, cxx11abi=cxx11abi)):
        twin = cell.without_flash_attn()
        if lacks.package != "flash-attn" or str(twin) not in project.matrix.entries:
            return Wanted(cell=str(cell), lacks=lacks.said)
        cell, note = twin, f"in place of {cell}: the wheelhouse has no flash-attn wheel for it"
    try:
        locked = project.tree.load(cell)
    except UsageError as error:
        return Wanted(cell=str(cell), unlocked=str(error), note=note)
    if locked is None or locked.inputs != locking.inputs(project.matrix.entry(cell), project.matrix):
        said = "it has no lock" if locked is None else "its lock follows from an older matrix.yaml"
        return Wanted(cell=str(cell), unlocked=said, note=note)
    digest = base_digest(project, locked.base)
    if digest is None:
        return Wanted(cell=str(cell), unlocked=f"base {locked.base} has no packages.lock", note=note)
    return Wanted(cell=str(cell), layers=locked.layers, shape=shape(project, locked, digest, folders), note=note)


def digests(project: Project) -> dict[str, str]:
    """Of the folders that shape every image."""
    recipe, suite = project.tree.folder / "recipe", project.suite
    return {"recipe": build.folder_digest(recipe), "suite": build.folder_digest(suite)}


def shape(project: Project, locked: CellLock, base_digest: str, folders: Mapping[str, str]) -> Shape:
    """All that shapes a cell's image, as the project is now; `folders` are its `digests`."""
    text = render.dockerfile(locked, project.templates)
    return build.shape(text, lock=locked.digest, base=base_digest, **folders)


def base_digest(project: Project, name: str) -> str | None:
    """The digest that a base is said to have: by its image's name, or by its committed lock."""
    if image := project.matrix.bases[name].image:
        return image.rpartition("@")[2]
    path = bases.lock_path(project, name)
    return base.PackagesLock.parse(path.read_text(), file=str(path)).digest if path.exists() else None


def holdings(project: Project, engine: Engine | None) -> Holdings:
    """What is at hand: in the engine, if one answers, in the cache and in the records."""
    known = [*_committed(project), *records.all_kept()]
    images = _images(engine) if engine else frozenset()
    layers = {(layer.name, item.shape.making) for item in known if item.shape.inputs in images for layer in item.layers}
    present = {digest for name in project.matrix.bases if (digest := _present(project, name))}
    return Holdings(images=images, layers=frozenset(layers), bases=frozenset(present), records=tuple(known))


def plan(
    project: Project,
    cells: Iterable[Cell],
    house: Path | None,
    engine: Engine | None,
    standing: Mapping[str, str] = MappingProxyType({}),
) -> planning.Plan:
    """The plan for some cells of the project, beside the rest of its matrix; `standing`: those in a registry, where."""
    mine = [replace(item, stands=standing.get(item.cell, "")) for item in asked(project, cells, house)]
    names = {item.cell for item in mine}
    others = [cell for cell in project.matrix.cells if str(cell) not in names]
    return planning.plan(mine, holdings(project, engine), list(asked(project, others, house)))


def _committed(project: Project) -> list[Record]:
    found = []
    for cell in project.matrix.cells:
        with contextlib.suppress(UsageError):  # `knowngood size` and `verify` say what is wrong with it
            found.append(project.tree.load_record(cell))
    return [record for record in found if record]


def _images(engine: Engine) -> frozenset[str]:
    """The inputs of the knowngood images that the engine has."""
    key = LABEL + "inputs"
    with contextlib.suppress(KnowngoodError), sdk.client(engine) as client:
        listed = client.api.images(filters={"label": [key]})
        return frozenset(str(image["Labels"][key]).removeprefix("sha256:") for image in listed if image.get("Labels"))
    return frozenset()


def _present(project: Project, name: str) -> str | None:
    """The digest of a base that is in the cache."""
    path = bases.lock_path(project, name)
    if project.matrix.bases[name].image or not path.exists():
        return None
    lock = base.PackagesLock.parse(path.read_text(), file=str(path))
    return lock.digest if (base.layout(lock) / "index.json").exists() else None
