"""A wheel on the registry, read member by member over HTTP ranges: facts of a 900 MB file for kilobytes."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import requests
from remotezip import RemoteIOError, RemoteZip, RemoteZipError
from urllib3.exceptions import HTTPError as Urllib3Error

from knowngood.harvest.artefact import Store
from knowngood.harvest.index import File, Unreadable, retried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_PIECE = 1 << 20
_TAIL = 1 << 20  # bytes read first: the central directory of a torch wheel is about 1.5 MB
_TIMEOUT = (20, 120)


class RemoteWheel:
    """The `Artefact` of a wheel; nothing is asked of the network until it is needed and not in the cache."""

    def __init__(self, file: File, session: requests.Session, cache: Path | None = None) -> None:
        self.file = file
        self._session = session
        self._store = Store(file, cache)

    @cached_property
    def size(self) -> int:
        """Bytes of the whole wheel, as the registry's server states them."""
        return int(self._store.json("about", "size", lambda: retried(self._ask_size)))

    @cached_property
    def members(self) -> Mapping[str, int]:
        """Path in the wheel -> uncompressed bytes."""
        return dict(self._store.json("about", "members", lambda: retried(self._list)))

    def read(self, member: str) -> bytes:
        """A member's content."""
        return self._store.bytes("member", member, lambda: retried(lambda: self._fetch(member)))

    def stream(self, member: str) -> Iterator[bytes]:
        """A member's content in pieces of a megabyte."""
        with self._as_unreadable(), self._zip.open(member) as opened:
            while piece := opened.read(_PIECE):
                yield piece

    def derived(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value computed once."""
        return self._store.json("derived", name, compute)

    def close(self) -> None:
        """Close the connection, when there is one."""
        opened = self.__dict__.pop("_zip", None)
        if opened is not None:
            opened.close()

    @cached_property
    def _zip(self) -> RemoteZip:
        return RemoteZip(self.file.url, initial_buffer_size=_TAIL, session=self._session, timeout=_TIMEOUT)

    def _ask_size(self) -> int:
        with self._as_unreadable():
            answer = self._session.head(self.file.url, timeout=_TIMEOUT, allow_redirects=True)
            answer.raise_for_status()
            return int(answer.headers["Content-Length"])

    def _list(self) -> dict[str, int]:
        with self._as_unreadable():
            return {info.filename: info.file_size for info in self._zip.infolist() if not info.is_dir()}

    def _fetch(self, member: str) -> bytes:
        with self._as_unreadable():
            return bytes(self._zip.read(member))

    @contextmanager
    def _as_unreadable(self) -> Iterator[None]:
        """Turn what the network or a broken archive raises into a reason; the wheel is opened anew."""
        try:
            yield
        except (requests.RequestException, RemoteZipError, *_STOPPED, *_BROKEN) as error:
            self.close()
            raise _reason(self.file.name, error) from None
        except KeyError as error:
            raise Unreadable(f"{self.file.name}: {error.args[0]}") from None


_STOPPED = (Urllib3Error, ConnectionError, TimeoutError)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError)
_FINAL = {401, 403, 404, 410, 416}


def _reason(name: str, error: Exception) -> Unreadable:
    """A sentence without addresses: what stands in the facts must be the same for every registry."""
    cause = error.__context__ if isinstance(error, RemoteIOError) else error
    if isinstance(cause, requests.HTTPError):
        status = cause.response.status_code
        return Unreadable(f"the registry answered {status} for {name}", again=status not in _FINAL)
    if isinstance(cause, requests.RequestException | Urllib3Error | ConnectionError | TimeoutError):
        return Unreadable(f"reading {name} stopped: {type(cause).__name__}", again=True)
    detail = "no ranges are served" if isinstance(error, RemoteZipError) else str(error) or type(error).__name__
    return Unreadable(f"{name} is not a readable wheel: {detail}", again=True)
