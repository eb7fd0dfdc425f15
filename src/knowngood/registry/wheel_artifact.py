"""Compiled wheels in a registry: an OCI artifact for each, whose blob is the wheel and whose tag contains its hash."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.cell import Cell
from knowngood.lock import cell_lock, wheelhouse
from knowngood.registry import attachments
from knowngood.registry.manifests import DamagedContentError, Descriptor, RegistryManifest, UnservedContentError

if TYPE_CHECKING:
    from knowngood.project.checkout import Project
    from knowngood.registry.registry_client import Registry

WHEEL_MEDIA_TYPE = "application/vnd.knowngood.wheel+zip"


class WheelPushStatus(StrEnum):
    """What became of a wheel that a published cell contains."""

    PUSHED = "pushed"
    UNCHANGED = "unchanged"
    """The registry has it, of the right size or (where every byte is read) with the right bytes."""
    ABSENT = "not in the wheelhouse"
    """The registry lacks it, and so does this machine, so it cannot be pushed."""


def wheel_tag(sha256: str) -> str:
    """Return the tag of the artifact of a wheel. Pure."""
    return f"wheel-{sha256}"


def list_compiled_wheels(project: Project, cell: Cell) -> list[cell_lock.Distribution]:
    """Return the wheels of a cell's lock that no index has; none when it has no lock."""
    locked = project.tree.load(cell)
    return [item for item in locked.distributions if item.made_here] if locked else []


def push_wheels(
    registry: Registry,
    wheels: list[cell_lock.Distribution],
    wheel_folder: Path,
    *,
    every_byte: bool,
    dry_run: bool,
) -> Iterator[tuple[cell_lock.Distribution, WheelPushStatus]]:
    """Push what the registry lacks of these wheels, from the wheelhouse, and yield what became of each.

    With `every_byte`, the registry's bytes are read, and damaged ones are replaced. With `dry_run`, nothing is sent.

    Raises `CorruptArchiveError` when the wheelhouse has a wheel with other bytes than the locked one.
    """
    for item in wheels:
        blob = Descriptor(media=WHEEL_MEDIA_TYPE, digest=f"sha256:{item.sha256}", size=item.size)
        manifest = attachments.artifact_manifest(WHEEL_MEDIA_TYPE, item.file, blob)
        path = wheel_folder / item.file
        if _is_sound(registry, blob, every_byte=every_byte) and _has_manifest(registry, item.sha256, manifest):
            yield item, WheelPushStatus.UNCHANGED
            continue
        if not path.is_file():
            yield item, WheelPushStatus.ABSENT
            continue
        wheelhouse.check_wheel_hash(wheelhouse.WheelhouseWheel(path=path, version=item.version), item.sha256)
        if not dry_run:
            registry.put_bytes(attachments.EMPTY_CONFIG, attachments.EMPTY_MEDIA_TYPE)
            registry.put(blob, lambda path=path: path.open("rb"))  # type: ignore[misc]
            registry.put_manifest(manifest, wheel_tag(item.sha256))
        yield item, WheelPushStatus.PUSHED


def _is_sound(registry: Registry, blob: Descriptor, *, every_byte: bool) -> bool:
    if not registry.has(blob):
        return False
    if every_byte:
        try:
            registry.check(blob)
        except (DamagedContentError, UnservedContentError):
            return False
    return True


def _has_manifest(registry: Registry, sha256: str, manifest: RegistryManifest) -> bool:
    try:
        return registry.digest(wheel_tag(sha256)) == manifest.descriptor.digest
    except (DamagedContentError, UnservedContentError):
        return False
