"""Reads a site's `catalog.json`, from a file or from where the site is served."""

from __future__ import annotations

from pathlib import Path

from knowngood.errors import KnowngoodError, NetworkError, UsageError, from_os
from knowngood.site.catalog import Catalog, read

LIMIT = 200_000_000
"""Bytes; a catalog of 500 cells with 5,000 runs has some five million."""


def catalog(origin: str) -> Catalog:
    """The catalog at a URL, in a file, or in a site's folder."""
    if origin.startswith(("http://", "https://")):
        return read(_get(origin), origin)
    path = Path(origin)
    path = path / "catalog.json" if path.is_dir() else path
    try:
        return read(path.read_bytes(), origin)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise from_os(error) or KnowngoodError(f"{path} cannot be read: {error}") from None


def _get(url: str) -> bytes:
    import requests

    try:
        with requests.get(url, timeout=30, stream=True) as answer:
            if answer.status_code != requests.codes.ok:
                raise NetworkError(f"{url} answers {answer.status_code} {answer.reason}")
            found = bytearray()
            for part in answer.iter_content(1 << 20):
                found += part
                if len(found) > LIMIT:
                    raise UsageError(f"{url} is larger than {LIMIT:,} bytes; that is no catalog")
            return bytes(found)
    except requests.RequestException as error:
        raise NetworkError(f"{url} cannot be read: {error}") from None
