"""What an image says of itself, without pulling it: a cell by its id, an engine's, a registry's. An edge."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from knowngood.doctor.seen import Image
from knowngood.errors import KnowngoodError, MissingError, UsageError

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine
    from knowngood.registries.registry import Registry

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MOST = 4 << 20
"""Bytes of an image's configuration."""


def find(name: str, say: Callable[[str], None], *, insecure: bool = False) -> Image:
    """The image of a name; `MissingError` when neither the engine nor a registry has it."""
    if found := _cell(name):
        return found
    say("asking the engine")
    engine = _engine()
    if engine and (found := _of_engine(name, engine)):
        return found
    return _of_registry(name, say, insecure=insecure, runtimes=_runtimes(engine))


def _cell(name: str) -> Image | None:
    """A cell of which nothing but its id is needed."""
    from knowngood.cell import parse
    from knowngood.render import LABEL

    try:
        cell = parse(name)
    except UsageError:
        return None
    labels = {LABEL + "cell": name} | {LABEL + str(axis): value for axis, value in cell.axes().items()}
    return Image(name=name, where="a cell by its id", labels=labels)


def _engine() -> Engine | None:
    from knowngood.engines import engine

    system = engine.find_system()
    return system if isinstance(system, engine.Engine) else engine.find_embedded()


def _of_engine(name: str, engine: Engine) -> Image | None:
    from docker.errors import ImageNotFound, NotFound

    from knowngood.engines import sdk

    with sdk.client(engine) as client:
        try:
            attrs = client.images.get(name).attrs
        except (ImageNotFound, NotFound):
            return None
        runtimes = tuple(client.info().get("Runtimes") or {})
    config = attrs.get("Config") or {}
    return Image(
        name=name,
        where=f"the engine at {engine.host}",
        digest=str(attrs.get("Id", "")),
        labels=_texts(config.get("Labels")),
        variables=_variables(config.get("Env")),
        architecture=str(attrs.get("Architecture", "")),
        runtimes=runtimes,
    )


def _runtimes(engine: Engine | None) -> tuple[str, ...] | None:
    from knowngood.engines import sdk

    if engine is None:
        return None
    with contextlib.suppress(KnowngoodError), sdk.client(engine) as client:
        return tuple(client.info().get("Runtimes") or {})
    return None


def _of_registry(name: str, say: Callable[[str], None], *, insecure: bool, runtimes: tuple[str, ...] | None) -> Image:
    from knowngood.registries.reference import Reference
    from knowngood.registries.registry import Registry

    try:
        wanted = Reference.parse(name)
    except UsageError as error:
        raise MissingError(
            f"no engine here has an image {name!r}, and it names none in a registry: {error}; "
            "`knowngood cells` lists the cells, by whose ids an image can be judged too"
        ) from None
    say(f"asking {wanted.repository.host}")
    registry = Registry(wanted.repository, insecure=insecure)
    found = registry.manifest(wanted.name)
    document = found.document if found else {}
    if "manifests" in document:
        found = registry.manifest(_of_this_machine(document["manifests"], name))
        document = found.document if found else {}
    if found is None:
        raise MissingError(f"{wanted.repository} has no {wanted.name}")
    config = _config(registry, document, name)
    inner = config.get("config") or {}
    return Image(
        name=name,
        where=wanted.repository.host,
        digest=found.descriptor.digest,
        labels=_texts(inner.get("Labels")),
        variables=_variables(inner.get("Env")),
        architecture=str(config.get("architecture", "")),
        download=sum(int(layer.get("size", 0)) for layer in document.get("layers", [])),
        runtimes=runtimes,
    )


def _of_this_machine(manifests: list[Mapping[str, Any]], name: str) -> str:
    """The digest of the manifest for this machine, out of an index."""
    here = architecture()
    for item in manifests:
        on = item.get("platform") or {}
        if (on.get("os"), on.get("architecture")) == ("linux", here):
            return str(item["digest"])
    raise KnowngoodError(f"{name} has no image for linux/{here}")


def _config(registry: Registry, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    from knowngood.registries.manifests import Descriptor

    try:
        described = Descriptor.read(document["config"])
        if described.size > _MOST:
            raise KnowngoodError(f"{name}: a configuration of {described.size:,} bytes is none")
        return dict(json.loads(registry.read(described)))
    except (KeyError, TypeError, ValueError):
        raise KnowngoodError(f"{name} is not an image: its manifest names no configuration") from None


def architecture() -> str:
    """The machine's, as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _texts(items: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in items.items()} if isinstance(items, dict) else {}


def _variables(items: Any) -> dict[str, str]:
    pairs = (str(item).partition("=") for item in items or ())
    return {name: value for name, _, value in pairs}
