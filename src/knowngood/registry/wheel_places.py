"""Compiled wheels from the places where they may lie: a folder, an address, a repository of a registry. An edge.

Nothing about a place is trusted: a wheel is taken when its SHA-256 is the recorded one. In a registry, that hash is the
name of the blob.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.lock import wheelhouse
from knowngood.lock.recorded_wheels import WheelPin
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import DamagedContentError
from knowngood.registry.registry_client import Registry
from knowngood.wheels import published_wheel

REGISTRY_SCHEMES = {"oci://": False, "oci+http://": True}
"""How a place that is a repository begins -> whether it is asked over plain HTTP (for this machine only)."""

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
    for scheme, insecure in REGISTRY_SCHEMES.items():
        if place.startswith(scheme):
            repository = Repository.parse(place.removeprefix(scheme).rstrip("/"))
            registry = Registry(repository, insecure=insecure, attempts=_REGISTRY_ATTEMPTS)
            with target.open("wb") as out:
                registry.copy_blob(f"sha256:{pin.sha256}", out)
            return
    if "://" in place:
        published_wheel.download_file(f"{place.rstrip('/')}/{quote(pin.file)}", target)
        return
    source = Path(place).expanduser() / pin.file
    if not source.is_file():
        raise MissingError("the folder has no such file")
    shutil.copyfile(source, target)
