"""Ask a service of security advisories over HTTP, and keep its answers for the days on which it does not answer.

An answer is what the service states in its documented form. Anything else (an error, HTML, a part of a document, no
answer in time) is no answer, so that "no vulnerability" is never made of it.

Ask OSV about the distributions that cells lock, each version once. Its form: https://google.github.io/osv.dev/.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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
_LARGEST_ANSWER = 512 << 20
"""Bytes; Debian's tracker answers with all that it knows."""
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
    from pydantic_core import from_json  # as every JSON here, with a bound of its depth

    try:
        for attempt in retries.retry_attempts(on=_is_passing, attempts=_ATTEMPTS, wait_max=10.0, timeout=None):
            with attempt:
                response = _send(url, query)
    except requests.RequestException as error:
        raise UnknownError(f"{name} does not answer: {_describe_failure(error)}") from None
    try:
        document = from_json(response.content)
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

    from knowngood.index import server_answers

    ca = index_settings.read_index_settings().files.get("ca")
    method, body = ("GET", None) if query is None else ("POST", query)
    with server_answers.bound_session(requests.Session(), largest=_LARGEST_ANSWER) as session:
        response = session.request(method, url, json=body, timeout=_TIMEOUT, verify=str(ca) if ca else True)
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


OSV_QUERY_URL = "https://api.osv.dev/v1/query"
OSV_VARIABLE = "PIP_AUDIT_OSV_URL"
"""Names a mirror, for pip-audit too."""
_REQUESTS_AT_ONCE = 8
_PAGE_LIMIT = 100


def find_osv_vulnerabilities(pins: Collection[tuple[str, str]]) -> tuple[dict[str, list[Vulnerability]], datetime]:
    """Return `NAME==VERSION` -> vulnerabilities of distributions (name, version), and the time of the oldest data.

    Raises `UnknownError` when OSV does not answer about each of them.
    """
    url = os.environ.get(OSV_VARIABLE) or OSV_QUERY_URL
    versions = _public_versions(pins)
    pool = ThreadPoolExecutor(_REQUESTS_AT_ONCE)
    try:
        # The first alone: a service that is not there is asked once, and not for every package.
        answers = [_ask_about(url, *pin) for pin in versions[:1]]
        answers += pool.map(lambda pin: _ask_about(url, *pin), versions[1:])
    finally:
        pool.shutdown(cancel_futures=True)
    vulnerabilities = {key: entries for key, (entries, _) in zip(osv_keys(pins), answers, strict=True)}
    return vulnerabilities, min((when for _, when in answers), default=datetime.now(UTC))


def osv_keys(pins: Collection[tuple[str, str]]) -> list[str]:
    """Return `NAME==VERSION` of each version that OSV is asked about: names are normalized, local parts left out."""
    return [f"{name}=={version}" for name, version in _public_versions(pins)]


def parse_osv_page(document: dict[str, Any], name: str, version: str) -> tuple[list[Vulnerability], str]:
    """Return the vulnerabilities of one page of an answer and the token of the next page, which is empty at the end.

    Raises `UnknownError` when it is not written as OSV documents it. Pure.
    """
    if not document.keys() <= {"vulns", "next_page_token"}:
        raise UnknownError(
            f"OSV answers about {name} with {', '.join(sorted(document))[:80]}, which is no list of vulnerabilities"
        )
    try:
        entries = [entry for entry in document.get("vulns") or [] if not entry.get("withdrawn")]
        return [_parse_entry(entry, name, version) for entry in entries], str(document.get("next_page_token") or "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnknownError(f"OSV's answer about {name} cannot be read ({error!r})") from None


def merge_aliases(vulnerabilities: Iterable[Vulnerability]) -> list[Vulnerability]:
    """Return the vulnerabilities of one package, those with a name in common as one. Pure.

    Databases report the same vulnerability under several names; PYSEC's comes first, then the CVE.
    """
    merged: list[Vulnerability] = []
    for item in vulnerabilities:
        same = [other for other in merged if set(other.ids) & set(item.ids)]
        merged = [other for other in merged if other not in same]
        names = sorted({name for other in (item, *same) for name in other.ids}, key=_name_order)
        fixes = [other.fixed for other in (item, *same) if other.fixed]
        merged.append(
            Vulnerability(
                package=item.package,
                version=item.version,
                id=names[0],
                aliases=tuple(sorted(names[1:])),
                fixed=min(fixes, key=Version, default=None),
            )
        )
    return merged


def _public_versions(pins: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted({(str(canonicalize_name(name)), Version(version).public) for name, version in pins})


def _ask_about(url: str, name: str, version: str) -> tuple[list[Vulnerability], datetime]:
    query: dict[str, Any] = {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
    vulnerabilities: list[Vulnerability] = []
    oldest = datetime.now(UTC)
    tokens: set[str] = set()
    for _ in range(_PAGE_LIMIT):
        answer: AdvisoryAnswer = ask_advisory_service("OSV", url, query)
        page, token = parse_osv_page(answer.document, name, version)
        vulnerabilities += page
        oldest = min(oldest, answer.when)
        if not token:
            return merge_aliases(vulnerabilities), oldest
        if token in tokens:
            break
        tokens.add(token)
        query["page_token"] = token
    raise UnknownError(f"OSV's answer about {name} has no last page")


def _parse_entry(entry: dict[str, Any], name: str, version: str) -> Vulnerability:
    if Version(entry.get("schema_version", "1.0.0")).major != 1:
        raise ValueError(f"{entry['id']} has schema {entry['schema_version']}")
    fixes = [
        fixed
        for affected in entry.get("affected") or []
        if canonicalize_name(affected["package"]["name"]) == name and affected["package"]["ecosystem"] == "PyPI"
        for span in affected.get("ranges") or []
        if span["type"] == "ECOSYSTEM"
        for event in span["events"]
        if (fixed := event.get("fixed")) and _is_later(fixed, version)
    ]
    return Vulnerability(
        package=name,
        version=version,
        id=str(entry["id"]),
        aliases=tuple(str(alias) for alias in entry.get("aliases") or []),
        fixed=min(fixes, key=Version, default=None),
    )


def _is_later(fixed: str, version: str) -> bool:
    try:
        return Version(fixed) > Version(version)
    except InvalidVersion:
        return False


def _name_order(name: str) -> tuple[int, str]:
    return (0 if name.startswith("PYSEC") else 1 if name.startswith("CVE") else 2, name)
