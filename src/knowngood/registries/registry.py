"""One repository of an OCI registry, over the distribution API: whole blobs and manifests, checked by their digest.

What the network or a busy registry spoils is tried again (after `Retry-After` where the registry says so), what the
registry refuses is a sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from knowngood import host, retrying
from knowngood.errors import KnowngoodError, MissingError, UsageError
from knowngood.registries.auth import Login
from knowngood.registries.manifests import INDEX, MANIFEST, Descriptor, Manifest, SpoiltError
from knowngood.registries.reference import DIGEST, Repository

if TYPE_CHECKING:
    import requests

_ACCEPT = f"{MANIFEST}, {INDEX}"
_BUSY = {408, 425, 429, 500, 502, 503, 504}
_SPOILT = {"DIGEST_INVALID", "SIZE_INVALID", "BLOB_UPLOAD_INVALID", "BLOB_UPLOAD_UNKNOWN", "RANGE_INVALID"}
"""What a registry says of an upload that did not arrive as it was sent."""
_BLOCK = 1 << 20
_LONGEST_WAIT = 120.0
_TIMEOUT = (20, 300)

Found = TypeVar("Found")
Opener = Callable[[], AbstractContextManager[IO[bytes]]]


class _Again(Exception):  # noqa: N818  # a reason to try once more; the last one becomes a sentence
    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def _again(error: Exception) -> bool | float:
    """Stamina's hook: whether to try again, or after how many seconds."""
    import requests

    if isinstance(error, _Again):
        return True if error.wait is None else error.wait
    return isinstance(error, requests.RequestException) and not isinstance(
        error, (requests.exceptions.SSLError, requests.exceptions.InvalidURL, requests.exceptions.MissingSchema)
    )


@dataclass
class Registry:
    """A repository that is read and written; `insecure` speaks plain HTTP, to this machine only."""

    repository: Repository
    insecure: bool = False
    attempts: int = 6
    login: Login = field(init=False)

    def __post_init__(self) -> None:
        if self.insecure and not self.repository.loopback:
            raise UsageError(f"--insecure is for a registry on this machine, {self.repository.host} is not on it")
        self.login = Login(self.repository.host)

    @cached_property
    def _session(self) -> requests.Session:
        import requests

        session = requests.Session()
        if ca := host.settings().files.get("ca"):
            session.verify = str(ca)
        session.headers.update({"User-Agent": "knowngood", "Accept-Encoding": "identity"})
        session.trust_env = not self.repository.loopback  # no proxy on the way to this machine
        session.auth = lambda request: request  # or requests would send what .netrc has
        return session

    @cached_property
    def _base(self) -> str:
        from docker.auth import INDEX_NAME

        # The one registry whose name is not where it answers.
        name = f"registry-1.{INDEX_NAME}" if self.repository.host == INDEX_NAME else self.repository.host
        return f"{'http' if self.insecure else 'https'}://{name}/v2/{self.repository.path}/"

    def digest(self, reference: str) -> str | None:
        """The digest of the manifest under a tag; `None` if there is none."""
        return found.descriptor.digest if (found := self.manifest(reference)) else None

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest under a tag or a digest; `None` if there is none, `SpoiltError` if it is another than named."""
        said = self._ask("GET", f"manifests/{reference}", headers={"Accept": _ACCEPT}, absent=True)
        if said is None:
            return None
        found = Manifest(data=said.content, media=said.headers.get("Content-Type", "").partition(";")[0])
        for name in (reference, said.headers.get("Docker-Content-Digest", "")):
            if DIGEST.fullmatch(name) and found.descriptor.digest != name:
                raise SpoiltError(
                    f"{self.repository} serves other bytes for the manifest {name}: they are {found.descriptor.digest}"
                )
        return found

    def put_manifest(self, manifest: Manifest, reference: str) -> bool:
        """Put the manifest under a tag or its digest; returns whether the registry keeps track of its subject."""
        said = self._ask("PUT", f"manifests/{reference}", headers={"Content-Type": manifest.media}, body=manifest.data)
        return said is not None and "OCI-Subject" in said.headers

    def referrers(self, digest: str) -> Manifest | None:
        """The index of what refers to a manifest, `None` where the registry has no such list."""
        said = self._ask("GET", f"referrers/{digest}", headers={"Accept": INDEX}, absent=True)
        if said is None or said.headers.get("Content-Type", "").partition(";")[0] != INDEX:
            return None
        return Manifest(data=said.content, media=INDEX)

    def has(self, blob: Descriptor) -> bool:
        """Whether the registry has the blob, in its whole length."""
        said = self._ask("HEAD", f"blobs/{blob.digest}", absent=True)
        return said is not None and said.headers.get("Content-Length", str(blob.size)) == str(blob.size)

    def put(self, blob: Descriptor, opener: Opener) -> None:
        """Upload a blob; what arrives spoilt is sent again."""
        self._retried(lambda: self._put(blob, opener), f"blobs/{blob.digest}")

    def _put(self, blob: Descriptor, opener: Opener) -> None:
        begun = self._send("POST", "blobs/uploads/")
        with opener() as body:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
            sent = self._send("PATCH", self._location(begun), headers=headers, body=body)
        place = self._location(sent)
        joined = f"{place}{'&' if urlsplit(place).query else '?'}digest={blob.digest}"
        self._send("PUT", joined, headers={"Content-Length": "0"})

    def put_bytes(self, data: bytes, media: str) -> Descriptor:
        """Upload a small blob unless it is there."""
        blob = Descriptor.of(data, media)
        if not self.has(blob):
            self.put(blob, lambda: contextlib.closing(io.BytesIO(data)))
        return blob

    def read(self, blob: Descriptor) -> bytes:
        """A small blob's bytes; `SpoiltError` when they are others."""
        parts: list[bytes] = []
        self.check(blob, into=parts)
        return b"".join(parts)

    def check(self, blob: Descriptor, *, into: list[bytes] | None = None) -> None:
        """Read a whole blob back; `SpoiltError` when its bytes are others."""

        def attempt() -> str:
            parts: list[bytes] = []
            seen = hashlib.sha256()
            for block in self._blocks(blob.digest):
                seen.update(block)
                if into is not None:
                    parts.append(block)
            if into is not None:
                into[:] = parts
            return f"sha256:{seen.hexdigest()}"

        found = self._retried(attempt, f"blobs/{blob.digest}")
        if found != blob.digest:
            raise SpoiltError(f"{self.repository} serves other bytes for the blob {blob.digest}: they are {found}")

    def _blocks(self, digest: str) -> Iterator[bytes]:
        with self._send("GET", f"blobs/{digest}", stream=True) as said:
            yield from said.iter_content(_BLOCK)

    def _ask(
        self,
        method: str,
        place: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        absent: bool = False,
    ) -> requests.Response | None:
        """One request, repeated while that helps; with `absent`, what is not there is `None`."""
        try:
            return self._retried(lambda: self._send(method, place, headers=headers, body=body), place)
        except _AbsentError:
            if absent:
                return None
            raise

    def _retried(self, attempt: Callable[[], Found], place: str) -> Found:
        import requests

        try:
            for one in retrying.attempts(on=_again, attempts=self.attempts, timeout=600):
                with one:
                    return attempt()
        except (_Again, requests.RequestException) as error:
            raise MissingError(
                f"{self.repository.host} did not do it in {self.attempts} attempts ({place}): {error}; "
                "what has arrived is kept there: run it again"
            ) from None
        raise AssertionError

    def _send(
        self,
        method: str,
        place: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: IO[bytes] | bytes | None = None,
        stream: bool = False,
    ) -> requests.Response:
        """One request; logs in when the registry asks for it."""
        url = urljoin(self._base, place)
        for chance in (True, False):
            ours = urlsplit(url).netloc == urlsplit(self._base).netloc
            login = {"Authorization": self.login.header} if self.login.header and ours else {}
            said = self._session.request(
                method, url, headers={**(headers or {}), **login}, data=body, stream=stream, timeout=_TIMEOUT
            )
            if said.status_code != HTTPStatus.UNAUTHORIZED or not ours or not chance:
                break
            scope = f"repository:{self.repository.path}:pull,push"
            self.login.answer(self._session, said.headers.get("WWW-Authenticate", ""), scope)
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
        _raise(said, f"{method} {self.repository} {place.partition('?')[0]}")
        return said

    def _location(self, said: requests.Response) -> str:
        place = said.headers.get("Location")
        if not place:
            raise KnowngoodError(f"{self.repository.host} does not say where an upload goes: is it an OCI registry?")
        return urljoin(said.url, place)


class _AbsentError(KnowngoodError):
    """What was asked for is not there."""


def _raise(said: requests.Response, what: str) -> None:
    if said.ok:
        return
    code, words = _told(said)
    reason = f"{what}: {said.status_code} {words}".strip()
    if said.status_code in _BUSY:
        raise _Again(reason, wait=_wait(said.headers.get("Retry-After"), reason))
    if code in _SPOILT and said.request.method != "GET":
        raise _Again(reason)
    if said.status_code == HTTPStatus.NOT_FOUND:
        raise _AbsentError(reason)
    if said.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise MissingError(f"{reason}; this login may not do that")
    raise KnowngoodError(f"the registry refuses {reason}")


def _told(said: requests.Response) -> tuple[str, str]:
    """The registry's own error: its code, and its words."""
    try:
        first = said.json()["errors"][0]
        return str(first.get("code", "")), f"{first.get('code', '')} {first.get('message', '')}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", str(said.reason or "")


def _wait(header: str | None, reason: str) -> float | None:
    """Seconds that `Retry-After` asks for."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    if seconds > _LONGEST_WAIT:
        raise MissingError(f"{reason}; it asks to come back in {seconds:.0f} s: run it again then")
    return max(seconds, 0.0)
