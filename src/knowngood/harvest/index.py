"""The registry client: which files a project has, and a polite HTTP session to read them with.

The registry is the one that the environment names, as pip and uv do; no host is written here.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import requests
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    NoSuchProjectError,
    PyPISimple,
    UnparsableFilenameError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter

from knowngood import retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from packaging.version import Version

T = TypeVar("T")

_CONNECTIONS = 4
_TIMEOUT = (20, 60)  # seconds: to connect, between two bytes
_ATTEMPTS = 4
_GARBAGE = (
    ValueError,  # also a JSON document that does not parse
    KeyError,
    TypeError,
    AttributeError,
    UnparsableFilenameError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)


class Unreadable(Exception):  # noqa: N818 - a reason to record, not an error of the program
    """Something could not be read; the text is the reason that the facts keep.

    `again` says that a later harvest should try once more: the network failed, not the artefact.
    """

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


class Unanswered(Unreadable):
    """The registry did not answer at all."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, again=True)


@dataclass(frozen=True, kw_only=True)
class File:
    """One published file of a release."""

    name: str
    url: str
    sha256: str
    version: Version
    yanked: bool
    """Whether the index marks it as withdrawn (PEP 592)."""
    requires_python: str | None

    @property
    def is_wheel(self) -> bool:
        """A wheel; anything else is a source distribution."""
        return self.name.endswith(".whl")


class Index(Protocol):
    """What the readers need of a registry; the tests have one made of a folder."""

    @property
    def session(self) -> requests.Session: ...

    def files(self, project: str) -> tuple[File, ...]:
        """Every wheel and sdist of a project; `Unreadable` when the registry has no proper page of it."""
        ...


class SimpleIndex:
    """A registry that speaks the simple repository API (PEP 503, 691)."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.session = http_session()
        self._client = PyPISimple(endpoint or configured_index(), session=self.session)

    def files(self, project: str) -> tuple[File, ...]:
        """Every wheel and sdist of a project, oldest version first."""
        return tuple(sorted(self._files(project), key=lambda file: (file.version, file.name)))

    def _files(self, project: str) -> Iterator[File]:
        try:
            page = retried(lambda: self._client.get_project_page(project, timeout=_TIMEOUT))
        except NoSuchProjectError:
            raise Unreadable(f"the registry has no project {project} (404)") from None
        except requests.HTTPError as error:
            status = error.response.status_code
            raise Unreadable(f"the registry answered {status} for {project}", again=status >= 500) from None
        except requests.RequestException as error:
            raise Unanswered(
                f"the registry does not answer for {project} ({type(error).__name__}); "
                "check the network and the index configuration"
            ) from None
        except _GARBAGE as error:
            raise Unreadable(f"the registry's page of {project} does not parse: {type(error).__name__}") from None
        if not page.packages:
            raise Unreadable(f"the registry's page of {project} lists no file", again=True)
        for package in page.packages:
            version = file_version(package.filename)
            if version is not None:
                yield File(
                    name=package.filename,
                    url=package.url,
                    sha256=(package.digests or {}).get("sha256", ""),
                    version=version,
                    yanked=package.is_yanked,
                    requires_python=package.requires_python,
                )


def file_version(name: str) -> Version | None:
    """The version a wheel's or sdist's file name carries; `None` for any other file (eggs, installers)."""
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[1]
        return parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def configured_index() -> str:
    """The index that uv's and pip's own settings name, in this order; else the default of the client library."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        value = os.environ.get(variable)
        if value:
            name, separator, url = value.partition("=")  # uv allows NAME=URL
            return url if separator and name.isidentifier() else value
    return _from_pip_files(_pip_files()) or PYPI_SIMPLE_ENDPOINT


def _pip_files() -> tuple[Path, ...]:
    home = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = os.environ.get("PIP_CONFIG_FILE")
    return (
        *([Path(named)] if named else []),
        config / "pip" / "pip.conf",
        home / ".pip" / "pip.conf",
        Path("/etc/pip.conf"),
    )


def _from_pip_files(files: Sequence[Path]) -> str | None:
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        value = parser.get("global", "index-url", fallback=None)
        if value:
            return value
    return None


def http_session() -> requests.Session:
    """A session of few connections, with the certificates that pip was told to use."""
    session = requests.Session()
    adapter = HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    certificates = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("PIP_CERT")
    if certificates:
        session.verify = certificates
    return session


def retried(call: Callable[[], T]) -> T:
    """`call()`, again after a pause when the connection failed or the server answered 429 or 5xx."""
    for attempt in retrying.attempts(on=_is_transient, attempts=_ATTEMPTS, wait_initial=0.5, wait_max=8.0):
        with attempt:
            return call()
    raise AssertionError("stamina yields at least one attempt")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, requests.HTTPError):
        return error.response is not None and error.response.status_code in {429, 500, 502, 503, 504}
    if isinstance(error, Unreadable):
        return error.again
    return isinstance(error, requests.ConnectionError | requests.Timeout)
