"""`knowngood audit`: known vulnerabilities of what cells lock, by OSV (through pip-audit) and by Debian's tracker.

A service that does not answer makes the answer unknown, never good.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood import host
from knowngood.errors import MissingError, UnknownError

if TYPE_CHECKING:
    from knowngood.publishing.allowlist import Accepted
    from knowngood.system.packages_lock import Package

TRACKER = "https://security-tracker.debian.org/tracker/data/json"
_SECONDS = 900


@dataclass(frozen=True, kw_only=True, order=True)
class Vulnerability:
    """One known vulnerability of one pinned package."""

    package: str
    version: str
    id: str
    aliases: tuple[str, ...] = ()
    fixed: str | None = None
    """The first version without it; `None` when there is none yet."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All its names."""
        return (self.id, *self.aliases)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the services know, and which of them did not answer."""

    open: tuple[Vulnerability, ...]
    accepted: tuple[Vulnerability, ...]
    unanswered: tuple[str, ...]
    unused: tuple[Accepted, ...]
    """Entries of the allowlist that nothing found is about."""


def judge(found: Iterable[Vulnerability], unanswered: Sequence[str], allowed: Sequence[Accepted]) -> Report:
    """Sort what was found by the allowlist. Pure."""
    sides: dict[bool, list[Vulnerability]] = {True: [], False: []}
    used: set[int] = set()
    for item in sorted(set(found)):
        by = [entry for entry in allowed if entry.covers(item.package, item.ids)]
        used.update(entry.line for entry in by)
        sides[bool(by)].append(item)
    # What nobody could look up may well be about an entry.
    unused = () if unanswered else tuple(entry for entry in allowed if entry.line not in used)
    return Report(open=tuple(sides[False]), accepted=tuple(sides[True]), unanswered=tuple(unanswered), unused=unused)


def wheels(pins: Collection[tuple[str, str]]) -> list[Vulnerability]:
    """Vulnerabilities of distributions (name, version); raises `UnknownError` when the service does not say of each."""
    found = []
    for text in requirements(pins):
        found += _pip_audit(text)
    return found


def requirements(pins: Iterable[tuple[str, str]]) -> list[str]:
    """Requirement files with every pin, each name at most once in a file. Pure."""
    versions: dict[str, set[str]] = defaultdict(set)
    for name, version in pins:
        versions[canonicalize_name(name)].add(Version(version).public)
    rounds = max(map(len, versions.values()), default=0)
    ordered = {name: sorted(found) for name, found in sorted(versions.items())}
    return [
        "".join(f"{name}=={found[index]}\n" for name, found in ordered.items() if index < len(found))
        for index in range(rounds)
    ]


def _pip_audit(text: str) -> list[Vulnerability]:
    ca = host.settings().files.get("ca")
    env = {**os.environ, **({"REQUESTS_CA_BUNDLE": str(ca)} if ca else {})}
    with tempfile.TemporaryDirectory(prefix="knowngood-") as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(text)
        argv = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--disable-pip", "--no-deps"]
        argv += ["--cache-dir", folder, "--format", "json", "--progress-spinner", "off", "--requirement", str(file)]
        try:
            done = subprocess.run(
                argv, check=False, capture_output=True, text=True, env=env, timeout=_SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise UnknownError(f"OSV did not answer in {_SECONDS} s, so nothing is known of the wheels") from None
    if "No module named pip_audit" in done.stderr:
        raise MissingError("auditing wheels needs pip-audit; install it with `pip install 'knowngood[audit]'`")
    try:
        return parse_pip_audit(json.loads(done.stdout), text)
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UnknownError(f"pip-audit got no answer from OSV, so nothing is known of the wheels: {last}") from None


def parse_pip_audit(document: Mapping[str, Any], asked: str) -> list[Vulnerability]:
    """Read pip-audit's document; raises `UnknownError` when it skipped a package that was asked for. Pure."""
    told = {item["name"]: item for item in document["dependencies"] if "vulns" in item}
    missing = [line.partition("==")[0] for line in asked.splitlines() if line.partition("==")[0] not in told]
    if missing:
        raise UnknownError(f"pip-audit says nothing of {', '.join(missing)}, so not every wheel was audited")
    return [
        Vulnerability(
            package=name,
            version=item["version"],
            id=entry["id"],
            aliases=tuple(sorted(entry.get("aliases", []))),
            fixed=min(entry["fix_versions"], key=Version, default=None),
        )
        for name, item in told.items()
        for entry in item["vulns"]
    ]


def debian(
    packages: Iterable[Package], suite: str, sources: Mapping[str, str], tracker: Mapping[str, Any]
) -> list[Vulnerability]:
    """Vulnerabilities of Debian packages by the tracker's data; `sources` gives a package's source. Pure.

    Left out is what Debian calls unimportant: no danger in practice.
    """
    from debian.debian_support import NativeVersion

    found = []
    for package in packages:
        for name, entry in tracker.get(sources.get(package.name, package.name), {}).items():
            state = entry.get("releases", {}).get(suite)
            if not state or state.get("urgency") == "unimportant":
                continue
            fixed = state.get("fixed_version")
            # "0": the release never had it.
            if state["status"] == "resolved" and (
                fixed is None or fixed == "0" or NativeVersion(package.version) >= NativeVersion(fixed)
            ):
                continue
            found.append(Vulnerability(package=package.name, version=package.version, id=name, fixed=fixed))
    return found


def fetch_tracker(url: str) -> dict[str, Any]:
    """The tracker's whole data; raises `UnknownError` when it does not answer."""
    import requests

    ca = host.settings().files.get("ca")
    try:
        said = requests.get(url, timeout=(20, 120), verify=str(ca) if ca else True)
        said.raise_for_status()
        return dict(said.json())
    except (requests.RequestException, ValueError, TypeError) as error:
        raise UnknownError(
            f"Debian's security tracker does not answer, so nothing is known of the base's packages: {error}"
        ) from None
