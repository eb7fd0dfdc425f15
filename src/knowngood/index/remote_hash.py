"""The hash of a whole file as the index serves it; it is read only to describe damage that was noticed elsewhere."""

from __future__ import annotations

import hashlib

import requests
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.core.errors import NetworkError
from knowngood.index.package_index import call_with_retries, open_http_session

_PIECE = 1 << 20  # bytes
_TIMEOUT = (20, 120)  # seconds: to connect, between two bytes


def read_remote_hash(url: str, session: requests.Session | None = None) -> str:
    """Return the SHA-256, in hexadecimal, of the file at `url` as it arrives here; the file is not kept.

    Without `session` the settings of this host are used, with the login of the index that serves the file.

    Raises:
        NetworkError: the server does not answer, or stops before the length that it stated.
    """
    try:
        return call_with_retries(lambda: _transfer(session or open_http_session(url), url))
    except (requests.RequestException, Urllib3Error, OSError) as error:
        name = url.partition("#")[0].rpartition("/")[2]
        raise NetworkError(f"the index does not serve {name}: {type(error).__name__}") from None


def _transfer(session: requests.Session, url: str) -> str:
    digest = hashlib.sha256()
    headers = {"Accept-Encoding": "identity"}  # the bytes of the file itself
    with session.get(url, stream=True, timeout=_TIMEOUT, headers=headers) as response:
        response.raise_for_status()
        for piece in response.iter_content(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
