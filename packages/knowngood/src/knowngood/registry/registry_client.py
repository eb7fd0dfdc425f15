"""A client for one repository of an OCI registry: whole blobs and manifests, checked by their digest.

A request that fails because of the network or a busy registry is tried again, after `Retry-After` where the registry
states it. A refusal becomes an error with one sentence.

Log in to a registry with the credentials of `docker login`: basic, or a token from the service it names.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, NotRequired, TypedDict, TypeVar
from urllib.parse import urlsplit

from knowngood.core import retries
from knowngood.core.errors import NO_SPACE_PATTERN, KnowngoodError, MissingError
from knowngood.core.json_document import parse_foreign_json
from knowngood.engine.docker_logins import check_docker_config
from knowngood.index import index_settings
from knowngood.index.server_answers import (
    LARGEST_FILE,
    AnswerTooLargeError,
    AnswerTooSlowError,
    UnsafeAddressError,
    bound_session,
    follow_address,
    parse_origin,
)
from knowngood.registry.image_reference import DIGEST, Repository
from knowngood.registry.manifests import (
    INDEX_MEDIA_TYPE,
    SERVED_MEDIA_TYPES,
    AbsentContentError,
    DamagedContentError,
    Descriptor,
    RegistryManifest,
    UnservedContentError,
)

if TYPE_CHECKING:
    import requests

_TOKEN = re.compile(r"[\x21-\x7e]+")
_CHALLENGE = re.compile(r"(?P<scheme>[A-Za-z]+)\s+(?P<rest>.*)")
_FULL_DISK = re.compile(rf'{NO_SPACE_PATTERN}|"Err":\s*28\b', re.IGNORECASE)
"""What Debian's registry says in the detail of its "unknown error"; some operations state the number of ENOSPC."""


@dataclass
class RegistryLogin:
    """The `Authorization` header for one registry, made when the registry first asks for it."""

    host: str
    plain: bool = False
    """Whether the registry, on this machine, is asked without encryption; its login may be answered so, too."""
    header: str | None = None
    _credentials: Mapping[str, str] | None = field(default=None, repr=False)

    def answer(self, session: requests.Session, challenge: str, scope: str) -> None:
        """Set `header` from the registry's `WWW-Authenticate`; `MissingError` without a login that is accepted."""
        from requests.auth import _basic_auth_str
        from requests.utils import parse_dict_header

        match = _CHALLENGE.fullmatch(challenge.strip())
        credentials = self._read_credentials()
        user, password = credentials.get("username", ""), credentials.get("password", "")
        scheme = match["scheme"].lower() if match else ""
        if scheme == "basic":
            if not user:
                raise self._no_login()
            self.header = _basic_auth_str(user, password)
            return
        if scheme != "bearer" or match is None:
            raise KnowngoodError(f"{self.host} asks for an unsupported kind of login: {challenge!r}")
        parameters: dict[str, str] = parse_dict_header(match["rest"])  # type: ignore[no-untyped-call]
        realm = parameters.get("realm", "")
        service, name, _ = parse_origin(realm)
        if service != "https" and not (self.plain and Repository(host=name, path="").loopback):
            raise KnowngoodError(
                f"{self.host} asks for credentials over an unencrypted connection, at {realm!r}; they were not sent"
            )
        query = {"service": parameters.get("service", self.host), "scope": parameters.get("scope") or scope}
        if credentials.get("identitytoken"):
            form = {**query, "grant_type": "refresh_token", "refresh_token": credentials["identitytoken"]}
            answer = session.post(realm, data={**form, "client_id": "knowngood"}, timeout=60, allow_redirects=False)
        else:
            login = (user, password) if user else None
            answer = session.get(realm, params=query, auth=login, timeout=60, allow_redirects=False)
        if answer.status_code in (400, 401, 403):
            if not credentials:
                raise self._no_login()
            raise MissingError(f"{name} refuses the login for {self.host}; run `docker login {self.host}`")
        answer.raise_for_status()
        what = f"{name} answers the login for {self.host} with no token"
        document = parse_foreign_json(answer.content, what, _TokenDocument)
        token = document.get("token") or document.get("access_token") or ""
        if not _TOKEN.fullmatch(token):
            raise KnowngoodError(what)
        self.header = f"Bearer {token}"

    def _no_login(self) -> MissingError:
        return MissingError(f"{self.host} asks for a login and there is none; run `docker login {self.host}`")

    def _read_credentials(self) -> Mapping[str, str]:
        """Return the credentials of docker's configuration or its credential helper; empty when there are none."""
        from docker.errors import DockerException

        from docker import auth

        if self._credentials is None:
            check_docker_config()
            try:
                entry = auth.load_config().resolve_authconfig(self.host) or {}
            except DockerException as error:
                raise MissingError(f"the credentials for {self.host} could not be read: {error}") from None
            # The keys of the file are in lower case, those of a helper are not.
            self._credentials = {key.lower(): str(value) for key, value in entry.items() if value}
        return self._credentials


class _TokenDocument(TypedDict):
    token: NotRequired[str]
    access_token: NotRequired[str]


_ACCEPT = ", ".join(SERVED_MEDIA_TYPES)
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
_DAMAGED_UPLOAD_CODES = {
    "DIGEST_INVALID",
    "SIZE_INVALID",
    "BLOB_UPLOAD_INVALID",
    "BLOB_UPLOAD_UNKNOWN",
    "RANGE_INVALID",
}
"""Error codes for an upload that did not arrive as it was sent."""
_LENGTH = re.compile(r"\d{1,15}")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")
_BLOCK_BYTES = 1 << 20
_LARGEST_ANSWER = 4 << 20
"""Bytes of a manifest, a list or an error; the specification asks registries to take no larger manifest."""
_LARGEST_DOCUMENT = 256 << 20
"""Bytes of a blob that is read into memory."""
_LONGEST_WAIT_SECONDS = 120.0
_LONGEST_MESSAGE = 300
"""Characters of a registry's own message that are repeated."""
_TIMEOUT = (20, 300)

ResultT = TypeVar("ResultT")
OpenBlob = Callable[[], AbstractContextManager[IO[bytes]]]


class _RetryLater(Exception):  # noqa: N818  # a reason to try again; the last one becomes the error's text
    def __init__(self, reason: str, *, wait: float | None = None, fault: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.fault = fault
        """Whether the registry itself failed (5xx), rather than asked to wait."""


def _retry_decision(error: Exception) -> bool | float:
    """Tell stamina whether to try again, or after how many seconds."""
    import requests

    if isinstance(error, _RetryLater):
        return True if error.wait is None else error.wait
    final = (KnowngoodError, requests.exceptions.SSLError, requests.exceptions.InvalidHeader)
    return isinstance(error, AnswerTooSlowError) or (
        isinstance(error, requests.RequestException) and not isinstance(error, final)
    )


def _advise_after_failure(error: Exception) -> str:
    """Return what to do about a request that failed; without TLS, trying again would change nothing."""
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return (
            "it has no TLS, or no certificate that is trusted here; one without TLS on this machine is http://HOST/PATH"
        )
    return "the registry keeps what has arrived, so run it again"


@dataclass
class Registry:
    """A repository that is read and written."""

    repository: Repository
    attempts: int = 6
    login: RegistryLogin = field(init=False)

    def __post_init__(self) -> None:
        self.login = RegistryLogin(self.repository.host, plain=self.repository.plain)

    @cached_property
    def _session(self) -> requests.Session:
        import requests

        session = bound_session(requests.Session(), connections=8, largest=_LARGEST_ANSWER)
        if ca := index_settings.read_index_settings().files.get("ca"):
            session.verify = str(ca)
        session.headers.update({"User-Agent": "knowngood", "Accept-Encoding": "identity"})
        session.trust_env = not self.repository.loopback  # no proxy for a registry on this machine
        session.auth = lambda request: request  # otherwise requests would send the credentials of .netrc
        return session

    @cached_property
    def _base(self) -> str:
        from docker.auth import INDEX_NAME

        # Docker Hub is the only registry that answers under another host name.
        name = f"registry-1.{INDEX_NAME}" if self.repository.host == INDEX_NAME else self.repository.host
        return f"{'http' if self.repository.plain else 'https'}://{name}/v2/{self.repository.path}/"

    def digest(self, reference: str) -> str | None:
        """Return the digest of the manifest under a tag, or `None`."""
        return manifest.descriptor.digest if (manifest := self.manifest(reference)) else None

    def manifest(self, reference: str) -> RegistryManifest | None:
        """Return the manifest under a tag or a digest, or `None`; `DamagedContentError` when it has another digest."""
        response = self._request("GET", f"manifests/{reference}", headers={"Accept": _ACCEPT}, absent=True)
        if response is None:
            return None
        manifest = RegistryManifest(data=response.content, media=_media_type(response))
        for name in (reference, response.headers.get("Docker-Content-Digest", "")):
            if DIGEST.fullmatch(name) and manifest.descriptor.digest != name:
                raise DamagedContentError(
                    f"{self.repository} serves other bytes for the manifest {name}: {manifest.descriptor.digest}"
                )
        return manifest

    def put_manifest(self, manifest: RegistryManifest, reference: str) -> bool:
        """Put a manifest under a tag or its digest, and return whether the registry lists it as a referrer itself.

        A registry may remember a manifest whose file is gone, and then write nothing; so it is also sent as a blob.
        """
        tracked = self._put_manifest(manifest, reference)
        with contextlib.suppress(DamagedContentError, UnservedContentError):
            if self.manifest(manifest.descriptor.digest) is None:
                self.put(manifest.descriptor, lambda: contextlib.closing(io.BytesIO(manifest.data)))
                return self._put_manifest(manifest, reference)
        return tracked

    def _put_manifest(self, manifest: RegistryManifest, reference: str) -> bool:
        response = self._request(
            "PUT", f"manifests/{reference}", headers={"Content-Type": manifest.media}, body=manifest.data
        )
        return response is not None and "OCI-Subject" in response.headers

    def referrers(self, digest: str) -> RegistryManifest | None:
        """Return the index of what refers to a manifest, or `None` where the registry has no referrers API."""
        response = self._request("GET", f"referrers/{digest}", headers={"Accept": INDEX_MEDIA_TYPE}, absent=True)
        if response is None or _media_type(response) != INDEX_MEDIA_TYPE:
            return None
        return RegistryManifest(data=response.content, media=INDEX_MEDIA_TYPE)

    def has(self, blob: Descriptor) -> bool:
        """Return whether the registry has the blob with its full length.

        It is asked for the last byte, because some registries answer HEAD from memory, also for a file that is gone.
        """
        try:
            return self._retry(lambda: self._read_length(blob), f"blobs/{blob.digest}") == blob.size
        except (AbsentContentError, DamagedContentError, UnservedContentError):
            return False

    def _read_length(self, blob: Descriptor) -> int:
        headers = {"Range": f"bytes={blob.size - 1}-{blob.size - 1}"} if blob.size else {}
        with self._send("GET", f"blobs/{blob.digest}", headers=headers, stream=True) as response:
            length = response.headers.get("Content-Length", "")
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                length = response.headers.get("Content-Range", "").rpartition("/")[2]
                next(response.iter_content(1), None)
        return int(length) if _LENGTH.fullmatch(length) else blob.size

    def put(self, blob: Descriptor, opener: OpenBlob) -> None:
        """Upload a blob; an upload that arrives damaged is sent again."""
        self._retry(lambda: self._put(blob, opener), f"blobs/{blob.digest}")

    def _put(self, blob: Descriptor, opener: OpenBlob) -> None:
        upload = self._send("POST", "blobs/uploads/")
        with opener() as body:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
            upload = self._send("PATCH", self._location(upload), headers=headers, body=body)
        location = self._location(upload)
        url = f"{location}{'&' if urlsplit(location).query else '?'}digest={blob.digest}"
        self._send("PUT", url, headers={"Content-Length": "0"})

    def put_bytes(self, data: bytes, media: str) -> Descriptor:
        """Upload a small blob unless the registry has it, and return its descriptor."""
        blob = Descriptor.of(data, media)
        if not self.has(blob):
            self.put(blob, lambda: contextlib.closing(io.BytesIO(data)))
        return blob

    def read(self, blob: Descriptor) -> bytes:
        """Return the bytes of a small blob; `DamagedContentError` when they do not have its digest, or are too many."""
        if blob.size > _LARGEST_DOCUMENT:
            raise DamagedContentError(f"{self.repository}: {blob.digest} of {blob.size:,} bytes is too large to read")
        content = io.BytesIO()
        self.copy_blob(blob.digest, content, blob.size)
        return content.getvalue()

    def check(self, blob: Descriptor) -> None:
        """Read a whole blob back; `DamagedContentError` when its bytes do not have its digest, or are too many."""
        self.copy_blob(blob.digest, None, blob.size)

    def copy_blob(self, digest: str, out: IO[bytes] | None, size: int = LARGEST_FILE) -> None:
        """Read a whole blob and write it to `out`, from its start, and never more than `size` bytes.

        Raises `DamagedContentError` when it has another digest, or more bytes.
        """

        def attempt() -> str:
            sha256, length = hashlib.sha256(), 0
            if out:
                out.seek(0)
                out.truncate()
            for block in self._blocks(digest):
                sha256.update(block)
                length += len(block)
                if length > size:
                    raise DamagedContentError(
                        f"{self.repository} serves more than the {size:,} bytes that {digest} should have"
                    )
                if out:
                    out.write(block)
            return f"sha256:{sha256.hexdigest()}"

        actual = self._retry(attempt, f"blobs/{digest}")
        if actual != digest:
            raise DamagedContentError(f"{self.repository} serves other bytes for the blob {digest}: {actual}")

    def _blocks(self, digest: str) -> Iterator[bytes]:
        with self._send("GET", f"blobs/{digest}", stream=True) as response:
            yield from response.iter_content(_BLOCK_BYTES)

    def _request(
        self,
        method: str,
        place: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        absent: bool = False,
    ) -> requests.Response | None:
        """Send a request, again while that can help; with `absent`, the answer is `None` for what is not there."""
        try:
            return self._retry(lambda: self._send(method, place, headers=headers, body=body), place)
        except AbsentContentError:
            if absent:
                return None
            raise

    def _retry(self, attempt: Callable[[], ResultT], place: str) -> ResultT:
        import requests

        try:
            for context in retries.retry_attempts(on=_retry_decision, attempts=self.attempts, timeout=600):
                with context:
                    return attempt()
        except AnswerTooLargeError as error:
            raise DamagedContentError(f"{self.repository}: {place}: {error}") from None
        except UnsafeAddressError:
            raise
        except (_RetryLater, requests.RequestException) as error:
            broken = error.fault if isinstance(error, _RetryLater) else _is_cut_off(error)
            raise (UnservedContentError if broken else MissingError)(
                f"{self.repository.host}: the request failed after {self.attempts} attempts ({place}): {error}; "
                f"{_advise_after_failure(error)}"
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
        """Send one request, and log in when the registry asks for it."""
        url = follow_address(self._base, place)
        own = parse_origin(self._base)
        for may_log_in in (True, False):
            login = {"Authorization": self.login.header} if self.login.header and parse_origin(url) == own else {}
            response = self._session.request(
                method, url, headers={**(headers or {}), **login}, data=body, stream=stream, timeout=_TIMEOUT
            )
            asked_by_own = response.status_code == HTTPStatus.UNAUTHORIZED and parse_origin(response.url) == own
            if not asked_by_own or not may_log_in:
                break
            scope = f"repository:{self.repository.path}:pull,push"
            self.login.answer(self._session, response.headers.get("WWW-Authenticate", ""), scope)
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
        _raise_for_status(response, f"{method} {self.repository} {place.partition('?')[0]}")
        read = method == "GET" and place.startswith(("manifests/", "blobs/"))
        if read and _media_type(response) == "text/html":
            response.close()
            raise MissingError(
                f"{self.repository.host} is not a registry: it answers HTML; check the name and the proxy"
            )
        return response

    def _location(self, response: requests.Response) -> str:
        location = response.headers.get("Location")
        if not location:
            raise KnowngoodError(f"{self.repository.host} names no location for an upload: is it an OCI registry?")
        return follow_address(response.url, location)


def _media_type(response: requests.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _is_cut_off(error: Exception) -> bool:
    import requests

    return isinstance(error, requests.exceptions.ChunkedEncodingError)


def _raise_for_status(response: requests.Response, request: str) -> None:
    if response.ok:
        return
    code, message = _registry_error(response)
    reason = f"{request}: {response.status_code} {message}".strip()
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR and _FULL_DISK.search(response.text):
        raise MissingError(f"{reason}: the registry's disk is full; make room there and run it again")
    if response.status_code in _RETRY_STATUS:
        raise _RetryLater(
            reason,
            wait=_retry_after_seconds(response.headers.get("Retry-After"), reason),
            fault=response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    if code in _DAMAGED_UPLOAD_CODES and response.request.method != "GET":
        raise _RetryLater(reason)
    if response.status_code == HTTPStatus.NOT_FOUND:
        raise AbsentContentError(reason)
    if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise DamagedContentError(f"{reason}: it is shorter than it should be")
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise MissingError(f"{reason}; this login may not do that")
    raise KnowngoodError(f"the registry refuses {reason}")


class _RegistryError(TypedDict):
    code: NotRequired[str]
    message: NotRequired[str]


class _ErrorDocument(TypedDict):
    errors: list[_RegistryError]


def _registry_error(response: requests.Response) -> tuple[str, str]:
    """Return the code and the message of the registry's own error."""
    try:
        first = parse_foreign_json(response.content, "", _ErrorDocument)["errors"][0]
    except (KnowngoodError, LookupError):
        return "", str(response.reason or "")
    code = first.get("code", "")
    return code, f"{code} {first.get('message', '')}"[:_LONGEST_MESSAGE]


def _retry_after_seconds(header: str | None, reason: str) -> float | None:
    """Return the seconds that `Retry-After` asks for, or `None`; `MissingError` when that is too long to wait."""
    if not header:
        return None
    if _SECONDS.fullmatch(header):
        seconds = float(header)
    else:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    if seconds > _LONGEST_WAIT_SECONDS:
        raise MissingError(f"{reason}; the registry asks to wait {seconds:.0f} s: run it again then")
    return max(seconds, 0.0)
