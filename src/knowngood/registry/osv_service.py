"""Ask OSV about the distributions that cells lock, each version once. Its form: https://google.github.io/osv.dev/."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core.errors import UnknownError
from knowngood.registry.advisory_service import AdvisoryAnswer, Vulnerability, ask_advisory_service

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
