"""What a server answers, within bounds: its size, its pace, and where it sends the client on.

A server, or whoever stands before it, may be broken or hostile. Every HTTP session of this program is bounded here:

- an answer that is read whole has at most so many bytes, counted after decompression;
- the head of an answer, and each minute of its body, must bring something: one byte a second is no answer; and what is
  read whole must come to its end;
- an address of an encrypted connection never leads to one without encryption.

What an answer says is checked by `core.json_document.parse_foreign_json`.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationValueError

from knowngood.core.errors import KnowngoodError

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

LARGEST_PAGE = 64 << 20
"""Bytes of an answer that is read whole; a project with the most files on the public index has some 20 MB."""
LARGEST_FILE = 64 << 30
"""Bytes of an answer that is read piece by piece, where nobody states its size."""
HEAD_SECONDS = 330.0
"""For the head of an answer; a registry may take minutes to move a large blob before it answers."""
PACE_SECONDS = 60.0
LEAST_BYTES = 256 << 10
"""A body must bring so many bytes in each `PACE_SECONDS` that are spent waiting for it."""
WHOLE_SECONDS = 600.0
"""For the body of an answer that is read whole."""
_PIECE = 64 << 10
_PORTS = {"http": 80, "https": 443}


class AnswerTooLargeError(KnowngoodError, requests.RequestException):
    """An answer has more bytes than there can be of what was asked for."""


class AnswerTooSlowError(KnowngoodError, requests.Timeout):
    """An answer comes so slowly that nobody would wait for its end."""


class UnsafeAddressError(KnowngoodError, requests.RequestException):
    """A server names an address to which nothing may be sent."""


Origin = tuple[str, str, int]
"""Scheme, host and port of an address: what must be the same for a login to be sent."""


def parse_origin(address: str) -> Origin:
    """Return scheme, host and port of an address; `UnsafeAddressError` when it is none of HTTP."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme in _PORTS and parts.hostname:
            return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
    raise UnsafeAddressError(f"{address[:200]!r} is not an address of HTTP")


def follow_address(current: str, target: str) -> str:
    """Return the address to which the answer of `current` leads, as a redirect or as the place of an upload.

    Raises `UnsafeAddressError` when it is not of HTTP, or leads from an encrypted connection to one without encryption.
    """
    try:
        address = urljoin(current, target)
    except ValueError:
        address = target
    scheme, host, _ = parse_origin(address)
    was, source, _ = parse_origin(current)
    if was == "https" and scheme != "https":
        raise UnsafeAddressError(
            f"{source} was asked over https and leads to {scheme}://{host}, without encryption; nothing was sent there"
        )
    return address


class _BoundedBody:
    """The body of an answer, read piece by piece so that its size and pace are seen. In all else it is urllib3's."""

    def __init__(self, raw: HTTPResponse, largest: int, seconds: float) -> None:
        self._raw = raw
        self._largest, self._seconds = largest, seconds
        self._bytes = self._counted = 0
        self._waited = self._begun = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amt: int = _PIECE, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the body in pieces, as `urllib3.HTTPResponse.stream` does."""
        while piece := self.read(amt, decode_content=decode_content):
            yield piece

    def read(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """Return so many bytes of the body, fewer only at its end."""
        pieces, missing = [], amt
        while missing is None or missing > 0:
            piece = self._read_piece(_PIECE if missing is None else min(missing, _PIECE), decode_content)
            if not piece:
                break
            pieces.append(piece)
            missing = None if missing is None else missing - len(piece)
        return b"".join(pieces)

    def _read_piece(self, amt: int, decode_content: bool | None) -> bytes:
        start = time.monotonic()
        piece = self._raw.read1(amt, decode_content=decode_content)
        self._waited += time.monotonic() - start
        self._bytes += len(piece)
        if self._bytes > self._largest:
            raise AnswerTooLargeError(f"the answer is longer than {self._largest:,} bytes; it was not read further")
        if self._waited - self._begun > PACE_SECONDS and piece:
            if self._bytes - self._counted < LEAST_BYTES:
                raise AnswerTooSlowError(f"{self._bytes:,} bytes in {self._waited:.0f} s, the last ones too slowly")
            self._begun, self._counted = self._waited, self._bytes
        if self._waited > self._seconds:
            raise AnswerTooSlowError(f"{self._bytes:,} bytes in {self._waited:.0f} s, and no end")
        return piece


class _HeadDeadline:
    """A connection that is cut when the head of an answer does not come; a socket's timeout is for each byte."""

    sock: socket.socket | None

    def getresponse(self) -> Any:
        late = threading.Event()
        timer = threading.Timer(HEAD_SECONDS, self._cut, [late])
        timer.daemon = True
        timer.start()
        try:
            answer = super().getresponse()  # type: ignore[misc] # of the connection that this is mixed into
        finally:
            timer.cancel()
        if late.is_set():  # a head that was cut reads as one that ended
            raise TimeoutError("the head of the answer did not come")
        return answer

    def _cut(self, late: threading.Event) -> None:
        late.set()
        with contextlib.suppress(OSError, TypeError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # type: ignore[arg-type] # also of one with TLS


class _PlainConnection(_HeadDeadline, HTTPConnection):
    pass


class _EncryptedConnection(_HeadDeadline, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _EncryptedConnection


class BoundedAdapter(HTTPAdapter):
    """Sends the requests of a session, and bounds what comes back."""

    def __init__(self, *, connections: int, largest: int) -> None:
        self._largest = largest
        super().__init__(pool_connections=connections, pool_maxsize=connections)

    def init_poolmanager(self, *words: Any, **more: Any) -> None:
        """Make the pools of connections, of the kind above."""
        super().init_poolmanager(*words, **more)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _EncryptedPool}

    def send(self, request: requests.PreparedRequest, stream: bool = False, *words: Any, **more: Any) -> Any:
        """Send a request; the answer's body is bounded, more closely where it is not a file that is streamed."""
        try:
            response = super().send(request, stream, *words, **more)
        except LocationValueError:  # such as a host with a label of 100 letters
            raise UnsafeAddressError(f"{str(request.url)[:200]!r} is not an address of HTTP") from None
        bounds = (LARGEST_FILE, math.inf) if stream and response.ok else (self._largest, WHOLE_SECONDS)
        response.raw = _BoundedBody(response.raw, *bounds)
        if response.is_redirect:
            follow_address(str(request.url), response.headers["Location"])
        return response


def bound_session(session: requests.Session, *, connections: int = 4, largest: int | None = None) -> requests.Session:
    """Bound what the servers of a session can make this program do, and return it.

    `largest` are the bytes of an answer that is read whole, by default `LARGEST_PAGE`.
    """
    for scheme in _PORTS:
        session.mount(f"{scheme}://", BoundedAdapter(connections=connections, largest=largest or LARGEST_PAGE))
    return session
