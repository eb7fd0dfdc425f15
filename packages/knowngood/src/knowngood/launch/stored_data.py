"""What `knowngood run` leaves on a machine that can be made again: derived images, caches. An edge.

Never the images of cells, the wheelhouse, or what belongs to other users of this machine or of its engine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import UsageError
from knowngood.core.local_files import cache_folder
from knowngood.engine import container_engine
from knowngood.launch.container_run import CACHE_VOLUME, CLIENT_LABEL, CONTAINER_LABEL, DOWNLOAD_VOLUME
from knowngood.launch.derived_image import DERIVED_LABEL, DERIVED_REPOSITORY
from knowngood.launch.run_guard import is_client_gone

if TYPE_CHECKING:
    from pathlib import Path

    from docker import DockerClient
    from knowngood.engine.container_engine import Engine


class StoredKind(StrEnum):
    """A kind of data that can be made again."""

    IMAGES = "images"
    """Images with added packages."""
    VOLUMES = "volumes"
    """This user's volumes: downloaded models of each project, and of each project and image its compiled kernels."""
    BUILD_CACHE = "build-cache"
    """What the embedded engine keeps of builds, which makes the next one faster."""
    CONTAINERS = "containers"
    """Containers of this user's runs whose docker command was killed."""
    TOOLKITS = "toolkits"
    """CUDA toolkits for `run --dev` and `compile`; they are downloaded again."""
    FILES = "files"
    """Logs, resolutions of added packages, answers that are kept."""


_FOLDERS = ("added", "checked", "diagnose", "logs", "runs", "suites")
"""The folders of the cache that hold nothing which takes long to make."""


@dataclass(frozen=True, kw_only=True)
class StoredItem:
    """One thing that can be removed."""

    kind: StoredKind
    name: str
    size: int
    """The bytes that its removal frees; at most these, for what shares content with others."""
    in_use: bool = False
    """Whether a container or a build uses it now."""
    removed: bool = False
    problem: str = ""
    """Why it could not be removed."""

    def document(self) -> dict[str, Any]:
        """Return the item as `engine prune --json` prints it."""
        return {
            "kind": str(self.kind),
            "name": self.name,
            "bytes": self.size,
            "in_use": self.in_use,
            "removed": self.removed,
            "problem": self.problem,
        }


def parse_stored_kinds(words: Iterable[str]) -> tuple[StoredKind, ...]:
    """Return the kinds that are named, all without any; raises `UsageError` for another word."""
    kinds = []
    for word in words:
        if word not in set(StoredKind):
            raise UsageError(f"there is no {word!r} to prune; there are {', '.join(StoredKind)}")
        kinds.append(StoredKind(word))
    return tuple(kinds) or tuple(StoredKind)


def list_stored_items(engine: Engine | None, user: int) -> list[StoredItem]:
    """Return what can be removed; without an engine that runs, only files."""
    items = []
    if engine:
        with container_engine.docker_client(engine) as client:
            usage = client.df()
        items = [*_derived_images(usage), *_cache_volumes(usage, user), *_abandoned_containers(usage, user)]
        items += [_build_cache(usage)] if engine.embedded else []
    kinds = {**dict.fromkeys(_FOLDERS, StoredKind.FILES), "toolkits": StoredKind.TOOLKITS}
    for name, kind in kinds.items():
        if size := _folder_size(cache_folder() / name):
            items.append(StoredItem(kind=kind, name=name, size=size))
    return items


def remove_stored_item(engine: Engine | None, item: StoredItem) -> StoredItem:
    """Remove an item that is not in use, and return it with what became of it."""
    from docker.errors import APIError

    if item.in_use:
        return replace(item, problem="in use")
    if item.kind in (StoredKind.FILES, StoredKind.TOOLKITS):
        shutil.rmtree(cache_folder() / item.name, ignore_errors=True)
        return replace(item, removed=True)
    assert engine is not None  # noqa: S101 - it was listed by one
    with container_engine.docker_client(engine) as client:
        try:
            return replace(item, removed=True, size=_remove_from_engine(client, item))
        except APIError as error:
            return replace(item, problem=str(error.explanation or error))


def _remove_from_engine(client: DockerClient, item: StoredItem) -> int:
    """Remove an item and return the bytes that this freed, as far as the engine says."""
    if item.kind is StoredKind.BUILD_CACHE:
        return int(client.api.prune_builds(all=True).get("SpaceReclaimed") or 0)
    if item.kind is StoredKind.CONTAINERS:
        client.containers.get(item.name).remove(force=True, v=True)
    elif item.kind is StoredKind.VOLUMES:
        client.volumes.get(item.name).remove()
    else:
        client.images.remove(item.name)
    return item.size


def _derived_images(usage: dict[str, Any]) -> list[StoredItem]:
    """Return the derived images; the size of one is what it has beyond the image of its cell, if that is there."""
    images = usage.get("Images") or ()
    sizes = {tag: int(image["Size"]) for image in images for tag in image.get("RepoTags") or ()}
    items = []
    for image in images:
        cell = (image.get("Labels") or {}).get(DERIVED_LABEL)
        for tag in image.get("RepoTags") or ():
            if cell and tag.startswith(f"{DERIVED_REPOSITORY}:"):
                below = sizes.get(f"knowngood:{cell}", max(int(image.get("SharedSize") or 0), 0))
                size = max(int(image["Size"]) - below, 0)
                used = int(image.get("Containers") or 0) > 0
                items.append(StoredItem(kind=StoredKind.IMAGES, name=tag, size=size, in_use=used))
    return items


def _cache_volumes(usage: dict[str, Any], user: int) -> list[StoredItem]:
    items = []
    for volume in usage.get("Volumes") or ():
        if re.fullmatch(rf"({CACHE_VOLUME}|{DOWNLOAD_VOLUME})-{user}(-[0-9a-f]+)?", volume["Name"]):
            data = volume.get("UsageData") or {}
            used = int(data.get("RefCount", 0)) > 0
            size = max(int(data.get("Size", 0)), 0)
            items.append(StoredItem(kind=StoredKind.VOLUMES, name=volume["Name"], size=size, in_use=used))
    return items


def _abandoned_containers(usage: dict[str, Any], user: int) -> list[StoredItem]:
    """Return the containers of killed runs; what one wrote is their size."""
    items = []
    for container in usage.get("Containers") or ():
        labels = container.get("Labels") or {}
        if labels.get(CONTAINER_LABEL) == str(user) and is_client_gone(labels.get(CLIENT_LABEL, "")):
            name, size = container["Names"][0].removeprefix("/"), int(container.get("SizeRw") or 0)
            items.append(StoredItem(kind=StoredKind.CONTAINERS, name=name, size=size))
    return items


def _build_cache(usage: dict[str, Any]) -> StoredItem:
    records = [record for record in usage.get("BuildCache") or () if not record.get("InUse")]
    size = sum(int(record["Size"]) for record in records)
    return StoredItem(kind=StoredKind.BUILD_CACHE, name="of the embedded engine", size=size)


def _folder_size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
