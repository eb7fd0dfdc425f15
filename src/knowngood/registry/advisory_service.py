"""Ask a service of security advisories over HTTP, and keep its answers for the days on which it does not answer.

An answer is what the service states in its documented form. Anything else (an error, HTML, a part of a document, no
answer in time) is no answer, so that "no vulnerability" is never made of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from knowngood.core import retries
from knowngood.core.errors import UnknownError
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.index import index_settings

if TYPE_CHECKING:
    from pathlib import Path

    import requests

STALE_AFTER = timedelta(days=7)
"""Data of a service that are older than this do not count as an answer of today."""
_ATTEMPTS = 3
_TIMEOUT = (20.0, 120.0)
"""Seconds to connect, and between two blocks of an answer."""


@dataclass(frozen=True, kw_only=True, order=True)
class Vulnerability:
    """A known vulnerability of a pinned package."""

    package: str
    version: str
    id: str
    aliases: tuple[str, ...] = ()
    fixed: str | None = None
    """The first version without it, or `None` when there is none yet."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the id and the aliases."""
        return (self.id, *self.aliases)


@dataclass(frozen=True, kw_only=True)
class AdvisoryAnswer:
    """A JSON document that a service answered, with the time of its data."""

    document: dict[str, Any]
    when: datetime


def ask_advisory_service(name: str, url: str, query: Mapping[str, Any] | None = None) -> AdvisoryAnswer:
    """Return the JSON object under an address, or the answer to a query that is posted there.

    Raises `UnknownError` when the service, called `name` in messages, gives no such object.
    """
    import requests

    try:
        for attempt in retries.retry_attempts(on=_is_passing, attempts=_ATTEMPTS, wait_max=10.0, timeout=None):
            with attempt:
                response = _send(url, query)
    except requests.RequestException as error:
        raise UnknownError(f"{name} does not answer: {_describe_failure(error)}") from None
    try:
        document = response.json()
    except ValueError:
        kind = response.headers.get("Content-Type", "").partition(";")[0] or "something"
        raise UnknownError(
            f"{name} does not answer in JSON: {kind} of {len(response.content)} bytes, perhaps cut off or of a proxy"
        ) from None
    if not isinstance(document, dict):
        raise UnknownError(f"{name} does not answer with a JSON object")
    return AdvisoryAnswer(document=document, when=_read_date(response.headers))


def describe_age(name: str, when: datetime, now: datetime) -> str | None:
    """Return a sentence when the data of a service are too old to count as an answer of today. Pure."""
    if now - when <= STALE_AFTER:
        return None
    return f"the data of {name} are stale: of {when:%Y-%m-%d}, {(now - when).days} days old; newer ones are not known"


def keep_answers(path: Path, vulnerabilities: Mapping[str, Sequence[Vulnerability]], when: datetime) -> None:
    """Add the answer about each package, `NAME==VERSION`, to a file; an answer may be an empty list."""
    entries = {
        key: {"when": when.isoformat(), "open": [asdict(v) for v in known]} for key, known in vulnerabilities.items()
    }
    write_atomically(path, json.dumps({**_read_entries(path), **entries}, sort_keys=True))


def load_kept_answers(path: Path, keys: Sequence[str]) -> tuple[list[Vulnerability], str]:
    """Return what earlier answers say about these packages, and a note with the day of the oldest of them."""
    entries = _read_entries(path)
    known = [entries[key] for key in keys if key in entries]
    if not known:
        return [], ""
    vulnerabilities = [
        Vulnerability(**{**item, "aliases": tuple(item["aliases"])}) for entry in known for item in entry["open"]
    ]
    oldest = min(entry["when"] for entry in known)[:10]
    return vulnerabilities, f"; what is shown of it is stale, of {oldest}, for {len(known)} of {len(keys)} packages"


def kept_answers_path(service: str) -> Path:
    """Return the file in the cache that keeps the answers of a service."""
    return cache_folder() / "audit" / f"{service}.json"


def _read_entries(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _send(url: str, query: Mapping[str, Any] | None) -> requests.Response:
    import requests

    ca = index_settings.read_index_settings().files.get("ca")
    method, body = ("GET", None) if query is None else ("POST", query)
    response = requests.request(method, url, json=body, timeout=_TIMEOUT, verify=str(ca) if ca else True)
    response.raise_for_status()
    return response


def _is_passing(error: Exception) -> bool:
    """Return whether a failure may pass: a broken connection, a busy or failing server."""
    import requests

    if isinstance(error, requests.HTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, (requests.exceptions.ChunkedEncodingError, requests.Timeout))


def _describe_failure(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    return str(error)


def _read_date(headers: Mapping[str, str]) -> datetime:
    """Return the time of the data: when they were changed last, or when they were sent, before caches kept them."""
    now = datetime.now(UTC)
    for name in ("Last-Modified", "Date"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            when = parsedate_to_datetime(headers[name])
            return min(when if when.tzinfo else when.replace(tzinfo=UTC), now)
    return now
