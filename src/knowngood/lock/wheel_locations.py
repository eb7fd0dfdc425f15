"""Find the files of a lock on the configured index; a lock itself names no index."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.errors import MissingError

if TYPE_CHECKING:
    from knowngood.index.artefact import PublishedFile
    from knowngood.index.package_index import SimpleIndex
    from knowngood.lock.cell_lock import Distribution

INDEX_THREADS = 4


def locate_wheels(distributions: Iterable[Distribution], index: SimpleIndex) -> dict[str, PublishedFile]:
    """Return sha256 -> file on the index, without wheels that were compiled for a cell and are on no index.

    Raises `MissingError` when the index does not answer or lacks a file.
    """
    from knowngood.index.artefact import UnreadableError

    wanted = {item.sha256: item for item in distributions if not Version(item.version).local}
    try:
        with ThreadPoolExecutor(INDEX_THREADS) as pool:
            pages = pool.map(index.files, sorted({item.name for item in wanted.values()}))
            files = {file.sha256: file for page in pages for file in page if file.sha256 in wanted}
    except UnreadableError as error:
        raise MissingError(f"the index must tell where the wheels are: {error}") from None
    if missing := [item.file for sha256, item in wanted.items() if sha256 not in files]:
        raise MissingError(f"the configured index does not have {missing[0]} with the hash of the lock")
    return files
