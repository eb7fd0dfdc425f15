"""What follows when an archive arrives corrupt in a build: its hash on the index decides whether to build once more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from knowngood.core.errors import CorruptArchiveError, NetworkError
from knowngood.core.notify import Notify
from knowngood.lock.cell_lock import Distribution

Product = TypeVar("Product")


def repeat_after_damage(work: Callable[[], Product], distributions: Iterable[Distribution], notify: Notify) -> Product:
    """Return the product of `work`, a build from these distributions.

    When an archive arrives corrupt, it is read from the index once more, for its hash. The build is repeated, once,
    only where the index serves the right bytes.

    Raises:
        CorruptArchiveError: the index serves other bytes than were locked, or the archive arrived corrupt twice.
    """
    try:
        return work()
    except CorruptArchiveError as error:
        failure, served = examine_damage(error, distributions)
        if not served:
            raise failure from None
        notify(f"{failure.file} arrived corrupt, but the index serves the right bytes: building once more")
    try:
        return work()
    except CorruptArchiveError as error:
        raise examine_damage(error, distributions)[0] from None


def examine_damage(
    error: CorruptArchiveError, distributions: Iterable[Distribution]
) -> tuple[CorruptArchiveError, bool]:
    """Return the error with the file's name and both hashes, and whether the index serves the bytes that were locked.

    The file is read from the index for that. An archive that is not one of the distributions is returned as it is.
    """
    names = {name: item for item in distributions for name in (item.file, f"{item.name}=={item.version}")}
    item = names.get(error.file)
    if item is None:
        return error, False
    try:
        actual = _read_served_hash(item)
    except NetworkError as unread:
        actual, advice = error.actual, f"{unread}, so it could not be read again"
    else:
        advice = "the index or a proxy before it serves other bytes than were locked: have the file put right there"
        if actual == item.sha256:
            advice = "the index serves the right bytes when it is asked alone: look at the proxy and at this machine"
    sound = actual == item.sha256
    failure = CorruptArchiveError(
        item.file,
        expected=item.sha256,
        actual=error.actual if sound else actual,
        detail=error.detail,
        advice=advice,
    )
    return failure, sound


def _read_served_hash(item: Distribution) -> str:
    """Return the SHA-256 of the distribution's file as the index serves it now; `NetworkError` when it does not."""
    from knowngood.index.artefact import UnreadableError
    from knowngood.index.package_index import SimpleIndex
    from knowngood.index.remote_hash import read_remote_hash

    try:
        files = SimpleIndex().files(item.name)
    except UnreadableError as error:
        raise NetworkError(str(error)) from None
    url = next((file.url for file in files if file.name == item.file), None)
    if url is None:
        raise NetworkError(f"the index does not list {item.file}")
    return read_remote_hash(url)
