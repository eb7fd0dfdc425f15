"""The client of the package index: which files a project has, and the HTTP session to read them with.

The index is the one that the settings of uv or pip on this host name; no host is written here.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    RepositoryPage,
    UnparsableFilenameError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_auth_from_url

from knowngood.core import retries
from knowngood.core.errors import KnowngoodError
from knowngood.core.json_document import parse_foreign_json
from knowngood.index import index_settings, server_answers
from knowngood.index.artefact import BrokenArchiveError, NoProjectError, PublishedFile, UnansweredError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packaging.version import Version

T = TypeVar("T")

_CONNECTIONS = 4
_TIMEOUT = (20, 60)  # seconds: to connect, between two bytes
_ATTEMPTS = 4
_PAGE_ERRORS = (
    ValueError,  # also a JSON document that does not parse
    KeyError,
    TypeError,
    AttributeError,
    UnparsableFilenameError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)


class SimpleIndex:
    """A package index that speaks the simple repository API (PEP 503, 691)."""

    def __init__(self, endpoint: str | None = None, *, connections: int = _CONNECTIONS) -> None:
        self.session = open_http_session(connections=connections)
        self._client = PyPISimple(endpoint or configured_index(), session=self.session)

    def files(self, project: str) -> tuple[PublishedFile, ...]:
        """Return every wheel and sdist of a project, oldest version first; `UnreadableError` when it cannot."""
        return tuple(sorted(self._files(project), key=lambda file: (file.version, file.name)))

    def _files(self, project: str) -> Iterator[PublishedFile]:
        try:
            packages = call_with_retries(lambda: self._fetch_page(project))
        except NoSuchProjectError:
            raise NoProjectError(f"the registry has no project {project} (404)") from None
        except requests.HTTPError as error:
            status = error.response.status_code
            raise UnreadableError(f"the registry answered {status} for {project}", again=status >= 500) from None
        except KnowngoodError as error:
            unsafe = isinstance(error, server_answers.UnsafeAddressError)
            reason = "it leads to an address without encryption" if unsafe else str(error)
            raise UnreadableError(f"the registry's page of {project} cannot be read: {reason}") from None
        except requests.RequestException as error:
            raise UnansweredError(
                f"the registry does not answer for {project} ({type(error).__name__}); "
                "check the network and the index configuration"
            ) from None
        except _PAGE_ERRORS as error:
            raise UnreadableError(f"the registry's page of {project} does not parse: {type(error).__name__}") from None
        if not packages:
            raise UnreadableError(f"the registry's page of {project} lists no file", again=True)
        for package, uploaded in packages:
            version = file_version(package.filename)
            if version is not None:
                yield PublishedFile(
                    name=package.filename,
                    url=package.url,
                    sha256=(package.digests or {}).get("sha256", ""),
                    version=version,
                    yanked=package.is_yanked,
                    requires_python=package.requires_python or "",
                    uploaded=uploaded[:10],
                    metadata_sha256=(package.metadata_digests or {}).get("sha256", "")
                    if package.has_metadata
                    else None,
                )

    def _fetch_page(self, project: str) -> list[tuple[DistributionPackage, str]]:
        """Return the files of a project, each with its time of upload.

        `get_project_page` of the client drops that time when the page is HTML.
        """
        address = self._client.get_project_url(project)
        response = self.session.get(address, timeout=_TIMEOUT, headers={"Accept": self._client.accept})
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise NoSuchProjectError(project, address)
        response.raise_for_status()
        if "html" not in response.headers.get("content-type", "text/html"):
            data = parse_foreign_json(response.content, "it is malformed", dict[str, Any])
            page = ProjectPage.from_json_data(data, response.url)
            return [(file, file.upload_time.isoformat() if file.upload_time else "") for file in page.packages]
        links = RepositoryPage.from_html(response.content, response.url).links
        return [
            (DistributionPackage.from_link(link, project), link.get_str_attrib("data-upload-time") or "")
            for link in links
        ]


def file_version(name: str) -> Version | None:
    """Return the version in a wheel's or sdist's file name; `None` for any other file (eggs, installers)."""
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        return parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def configured_index() -> str:
    """Return the address of the index that uv's or pip's settings name (uv's first), else the client's default."""
    env = index_settings.read_index_settings().env
    url = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or PYPI_SIMPLE_ENDPOINT
    return re.sub(r"^[A-Za-z0-9._-]+=", "", url)  # uv allows NAME=URL


class _IndexLogin(AuthBase):
    """Logs in by an address itself, or by the settings of this host, and nowhere else."""

    def __init__(self, settings: index_settings.IndexSettings) -> None:
        self._settings = settings

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = str(request.url)
        named = get_auth_from_url(url)
        login = named if any(named) else self._settings.credentials(url)
        return HTTPBasicAuth(*login)(request) if login else request


def open_http_session(*, connections: int = _CONNECTIONS) -> requests.Session:
    """Open a session of that many connections with the CA certificates and the logins of this host's settings."""
    settings = index_settings.read_index_settings()
    session = server_answers.bound_session(requests.Session(), connections=connections)
    if "ca" in settings.files:
        session.verify = str(settings.files["ca"])
    session.auth = _IndexLogin(settings)
    return session


def call_with_retries(call: Callable[[], T]) -> T:
    """Return `call()`, trying again after a pause when the connection failed or the server answered 429 or 5xx."""
    for attempt in retries.retry_attempts(on=_is_transient, attempts=_ATTEMPTS, wait_initial=0.5, wait_max=8.0):
        with attempt:
            return call()
    raise AssertionError("stamina yields at least one attempt")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in {429, 500, 502, 503, 504}
    if isinstance(error, UnreadableError):
        return error.again and not isinstance(error, BrokenArchiveError)
    return isinstance(error, requests.ConnectionError | requests.Timeout)
