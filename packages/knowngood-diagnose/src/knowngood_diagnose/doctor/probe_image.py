"""Describes an image without pulling it: by a cell's id, by the engine, or by a registry. An edge."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from docker.errors import ImageNotFound, NotFound

from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture, detect_host_architecture
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.project.checkout import find_project
from knowngood.registry.image_reference import ImageReference
from knowngood.registry.manifests import Descriptor, RegistryManifest, parse_image_configuration
from knowngood.registry.registry_client import Registry
from knowngood_diagnose.doctor.system_state import ImageDescription


def describe_image(name: str, notify: Notify, *, host: HostArchitecture | None = None) -> ImageDescription:
    """Return the description of a cell, by its id or an alias of the matrix, or of an image, by its name.

    Of a name that means images for several hosts, that for `host` is taken (default: this machine's). A cell is
    described by its image in the engine, and where there is none, by what its id says.

    Raises `MissingError` when neither the engine nor a registry has the image.
    """
    host = host or detect_host_architecture() or DEFAULT_HOST
    cell = _find_cell(name, host)
    notify("asking the engine")
    engine = container_engine.find_running_engine()
    if cell:
        return _describe_cell(cell, engine)
    if engine and (description := _ask_engine(name.removeprefix("http://"), engine)):
        return description
    return _ask_registry(name, notify, host, runtimes=_list_runtimes(engine))


def _find_cell(name: str, host: HostArchitecture) -> Cell | None:
    """Return the cell with this id, or with this alias in matrix.yaml; `None` when the name is neither.

    An alias of a cell for x86-64 means its twin for `host`, where matrix.yaml has one.
    """
    with contextlib.suppress(UsageError):
        return parse_cell(name)
    if any(character in name for character in "/:@"):
        return None  # a reference to an image
    matrix = find_project().matrix
    if name not in matrix.aliases:
        return None
    cell = parse_cell(matrix.aliases[name])
    twin = cell.on_host(host)
    return twin if cell.host == DEFAULT_HOST and twin in matrix.cells else cell


def _describe_cell(cell: Cell, engine: Engine | None) -> ImageDescription:
    """Return the description of the engine's image of a cell, or else what its id says."""
    if engine:
        with contextlib.suppress(KnowngoodError):  # what the id says is enough
            if image := _ask_engine(f"knowngood:{cell}", engine):
                return replace(image, name=str(cell))
    return describe_cell_by_id(cell)


def describe_cell_by_id(cell: Cell) -> ImageDescription:
    """Return the description of an image of a cell, with the labels that such an image has."""
    labels = {LABEL_PREFIX + str(axis): value for axis, value in cell.axes().items()}
    return ImageDescription(
        name=str(cell),
        where="a cell by its id",
        labels={LABEL_PREFIX + "cell": str(cell)} | labels,
        architecture=cell.host.debian,
    )


def _ask_engine(name: str, engine: Engine) -> ImageDescription | None:
    with container_engine.docker_client(engine) as client:
        try:
            attrs = client.images.get(name).attrs
        except (ImageNotFound, NotFound):
            return None
        runtimes = tuple(client.info().get("Runtimes") or {})
    config = attrs.get("Config") or {}
    return ImageDescription(
        name=name,
        where=f"the engine at {engine.host}",
        digest=str(attrs.get("Id", "")),
        labels=_texts(config.get("Labels")),
        variables=_variables(config.get("Env")),
        architecture=str(attrs.get("Architecture", "")),
        runtimes=runtimes,
    )


def _list_runtimes(engine: Engine | None) -> tuple[str, ...] | None:
    if engine is None:
        return None
    with contextlib.suppress(KnowngoodError), container_engine.docker_client(engine) as client:
        return tuple(client.info().get("Runtimes") or {})
    return None


def _ask_registry(
    name: str, notify: Notify, host: HostArchitecture, *, runtimes: tuple[str, ...] | None
) -> ImageDescription:
    try:
        reference = ImageReference.parse(name)
    except UsageError as error:
        raise MissingError(
            f"no engine here has an image {name!r}, and it is no reference to one in a registry: {error}; "
            "`knowngood cells` lists the ids and aliases of cells, which can be judged too"
        ) from None
    name = str(reference)
    notify(f"asking {reference.repository.host}")
    registry = Registry(reference.repository)
    manifest = registry.manifest(reference.name)
    if manifest and manifest.is_index:
        manifest = registry.manifest(_choose_digest(manifest, name, host))
    if manifest is None:
        raise MissingError(f"{reference.repository} has no {reference.name}")
    content, *layers = manifest.blobs()
    config = parse_image_configuration(registry.read(content))
    inner = config.get("config") or {}
    return ImageDescription(
        name=name,
        where=reference.repository.host,
        digest=manifest.descriptor.digest,
        labels=inner.get("Labels") or {},
        variables=_variables(inner.get("Env")),
        architecture=config.get("architecture", ""),
        download=sum(layer.size for layer in layers),
        runtimes=runtimes,
    )


def _choose_digest(index: RegistryManifest, name: str, host: HostArchitecture) -> str:
    """Return the digest of the first manifest for a host in an index of anybody's."""
    for item in index.document.get("manifests") or []:
        platform = item.get("platform")
        if platform and (platform["os"], platform["architecture"]) == ("linux", host.debian):
            return Descriptor.read(item).digest
    raise KnowngoodError(f"{name} has no image for {host.oci_platform}")


def _texts(items: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in items.items()} if isinstance(items, dict) else {}


def _variables(items: Any) -> dict[str, str]:
    pairs = (str(item).partition("=") for item in items or ())
    return {name: value for name, _, value in pairs}
