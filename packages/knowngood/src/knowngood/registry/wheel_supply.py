"""Compiled wheels that cells need and this machine lacks, from the places where they may lie, and put into one of them.

A place is a folder, an address or a repository of a registry, and the environment and the matrix name it. Nothing
about it is trusted: a wheel is taken when its SHA-256 is the recorded one. In a registry each wheel is an OCI artifact
whose blob is the wheel, so that the hash is the name of the blob, and whose tag contains the hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from knowngood.core.cell import Cell
from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.index.server_answers import LARGEST_FILE
from knowngood.lock import cell_lock, wheelhouse
from knowngood.lock.wheelhouse import WheelPin
from knowngood.project import core_facts
from knowngood.registry import attachments, image_reference
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import DamagedContentError, Descriptor, RegistryManifest, UnservedContentError
from knowngood.registry.registry_client import Registry

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
    named += [f"oci://{repository}" for repository in image_reference.list_repositories(project.matrix, environ)]
    return tuple(dict.fromkeys(filter(None, named)))


def supply_wheel(
    project: Project, cell: Cell, release: tuple[str, str], wheel_folder: Path, notify: Notify
) -> Path | None:
    """Fetch a wheel into the wheelhouse when its bytes are known; `None` when they are not or no place has it.

    `release` is the package and its version.

    Raises `CorruptArchiveError` when a place has other bytes under its name, and no place has the right ones.
    """
    abi = core_facts.load_torch_cxx11abi(cell.torch)
    pin = wheelhouse.find_wheel_pin(cell, project.tree, *release, cxx11abi=abi)
    places = list_wheel_places(project, os.environ)
    if pin is None or not places:
        return None

    notify(f"looking for {pin.file}")
    return fetch_pinned_wheel(pin, places, wheel_folder, notify)


def supply_wheels(project: Project, cells: Iterable[Cell], wheel_folder: Path, notify: Notify) -> list[Path]:
    """Fetch every wheel that the cells need and the wheelhouse lacks, as far as places have them; return the new ones.

    Raises as `supply_wheel` does.
    """
    fetched = []
    for cell in cells:
        for package, version in project.matrix.compiled_packages(cell):
            abi = core_facts.load_torch_cxx11abi(cell.torch)
            present, _ = wheelhouse.find_wheel(cell, wheel_folder, cxx11abi=abi, package=package, version=version)
            if present is None:
                wheel = supply_wheel(project, cell, (package, version), wheel_folder, notify)
                fetched += [wheel] if wheel else []
    return fetched


REGISTRY_SCHEMES = {"oci://": "", "oci+http://": "http://"}
"""How a place that is a repository begins -> how `Repository.parse` has it."""

_PIECE_BYTES = 1 << 20
_TIMEOUT = (20, 120)
_REGISTRY_ATTEMPTS = 2  # there are other places


def fetch_pinned_wheel(pin: WheelPin, places: Iterable[str], wheel_folder: Path, notify: Notify) -> Path | None:
    """Fetch a wheel into the wheelhouse from the first place that has it; `None` when none has.

    `notify` hears why a place gave nothing. The record, where there is one, is written beside the wheel.

    Raises `CorruptArchiveError`, or `DamagedContentError` for a registry, when a place has other bytes under this name
    and no other place has the right ones.
    """
    wrong: KnowngoodError | None = None
    wheel_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=wheel_folder, ignore_cleanup_errors=True) as scratch:
        part = Path(scratch) / pin.file
        for place in places:
            try:
                _copy_from_place(place, pin, part)
            except DamagedContentError as error:
                wrong = error
                notify(str(wrong))
                continue
            except (KnowngoodError, OSError) as error:
                notify(f"{pin.file} is not from {place}: {error}")
                continue
            if (actual := wheelhouse.file_sha256(part)) != pin.sha256:
                advice = f"{place} has another file under this name; take it away there"
                wrong = CorruptArchiveError(pin.file, expected=pin.sha256, actual=actual, advice=advice)
                notify(str(wrong))
                continue
            wheel = wheel_folder / pin.file
            part.chmod(0o644)
            part.replace(wheel)
            if pin.record:
                wheelhouse.write_wheel_record(pin.record, wheel)
            notify(f"{pin.file} from {place}")
            return wheel
    if wrong:
        raise wrong
    return None


def _copy_from_place(place: str, pin: WheelPin, target: Path) -> None:
    """Copy what a place has of a wheel to `target`; `KnowngoodError` or `OSError` when it has nothing."""
    size = pin.record.size if pin.record else LARGEST_FILE
    for scheme, prefix in REGISTRY_SCHEMES.items():
        if place.startswith(scheme):
            repository = Repository.parse(prefix + place.removeprefix(scheme).rstrip("/"))
            registry = Registry(repository, attempts=_REGISTRY_ATTEMPTS)
            with target.open("wb") as out:
                registry.copy_blob(f"sha256:{pin.sha256}", out, size)
            return
    if "://" in place:
        download_file(f"{place.rstrip('/')}/{quote(pin.file)}", target, size)
        return
    source = Path(place).expanduser() / pin.file
    if not source.is_file():
        raise MissingError("the folder has no such file")
    shutil.copyfile(source, target)


def download_file(url: str, path: Path, size: int) -> str:
    """Download a file to `path` and return its SHA-256.

    Raises `MissingError` when it cannot be fetched, or has more than `size` bytes.
    """
    import requests

    from knowngood.index.package_index import call_with_retries, open_http_session

    def get() -> str:
        digest = hashlib.sha256()
        with open_http_session().get(url, stream=True, timeout=_TIMEOUT) as response, path.open("wb") as out:
            response.raise_for_status()
            for piece in response.iter_content(_PIECE_BYTES):
                digest.update(piece)
                if out.tell() + len(piece) > size:
                    raise MissingError(f"{path.name} is longer there than the {size:,} bytes that it should have")
                out.write(piece)
            os.fsync(out.fileno())
        return digest.hexdigest()

    try:
        return call_with_retries(get)
    except requests.RequestException as error:
        status = error.response.status_code if error.response is not None else type(error).__name__
        raise MissingError(f"{path.name} cannot be fetched: {status}; check the network and the address") from None


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
