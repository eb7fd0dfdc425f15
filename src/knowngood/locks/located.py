"""Where the configured index has the wheels of a lock; a lock itself names no index."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.errors import MissingError

if TYPE_CHECKING:
    from knowngood.harvest.index import File, SimpleIndex
    from knowngood.locks.lock import Distribution

THREADS = 4


def locate(distributions: Iterable[Distribution], index: SimpleIndex) -> dict[str, File]:
    """The index's file of each wheel, by its sha256; without those that were compiled for a cell and are on no index.

    Raises `MissingError` when the index does not answer or lacks one.
    """
    from knowngood.harvest.index import Unreadable

    wanted = {item.sha256: item for item in distributions if not Version(item.version).local}
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            pages = pool.map(index.files, sorted({item.name for item in wanted.values()}))
            found = {file.sha256: file for page in pages for file in page if file.sha256 in wanted}
    except Unreadable as error:
        raise MissingError(f"the index must tell where the wheels are: {error}") from None
    if missing := [item.file for sha256, item in wanted.items() if sha256 not in found]:
        raise MissingError(f"the configured index does not have {missing[0]} with the hash of the lock")
    return found
