"""A wheel on the registry, read member by member over HTTP ranges: facts of a 900 MB file for kilobytes."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import requests
from remotezip import RemoteZip, RemoteZipError
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
        name = self.file.name
        try:
            yield
        except requests.HTTPError as error:
            self.close()
            status = error.response.status_code
            reason = f"the registry answered {status} for {name}"
            raise Unreadable(reason, again=status not in _FINAL) from None
        except _STOPPED as error:
            self.close()
            raise Unreadable(f"reading {name} stopped: {type(error).__name__}", again=True) from None
        except _BROKEN as error:
            self.close()
            reason = f"{name} is not a readable wheel: {error or type(error).__name__}"
            raise Unreadable(reason, again=True) from None
        except KeyError as error:
            raise Unreadable(f"{name}: {error.args[0]}") from None


_FINAL = {401, 403, 404, 410, 416}
_STOPPED = (requests.RequestException, Urllib3Error, ConnectionError, TimeoutError)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RemoteZipError, NotImplementedError, ValueError)
