"""Ask OSV and Debian's tracker about everything that cells lock; `vulnerability_audit` has the pure part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError, UnknownError
from knowngood.core.notify import Notify
from knowngood.lock.debian_lock import PackagesLock
from knowngood.registry import advisory_service, audit_allowlist, image_release, osv_service, vulnerability_audit

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.lock.debian_lock import DebianPackage
    from knowngood.project.checkout import Project
    from knowngood.registry.advisory_service import Vulnerability
    from knowngood.registry.audit_allowlist import AcceptedVulnerability
    from knowngood.registry.vulnerability_audit import AuditReport


def audit_cells(project: Project, cells: Sequence[Cell], tracker: str, notify: Notify) -> tuple[AuditReport, int]:
    """Audit the wheels and bases of cells; return the report and the number of wheels.

    A service that does not answer is named in the report, and so is what could not be looked up at all.
    """
    allowed = _read_allowlist(project)
    vulnerabilities: list[Vulnerability] = []
    unanswered: list[str] = []
    pins, locks, pulled = _pins_and_bases(project, cells)
    unanswered += [
        f"base {name} is pulled as {image}: no lock says which packages it has, so none of them was looked up"
        for name, image in pulled.items()
    ]
    if pins:
        notify(f"asking OSV about {len(pins)} wheels")
        keys = osv_service.osv_keys(pins)
        vulnerabilities += answer_or_kept("OSV", keys, lambda: osv_service.find_osv_vulnerabilities(pins), unanswered)
    else:
        unanswered.append("the cells lock no wheel, so nothing was looked up")
    packages = {_debian_key(lock, package): (lock, package) for lock in locks for package in lock.packages}
    if packages:
        notify(f"asking Debian's tracker about {len(packages)} packages")
        vulnerabilities += answer_or_kept(
            "Debian's security tracker", list(packages), lambda: _audit_debian(locks, tracker), unanswered
        )
    return vulnerability_audit.apply_allowlist(vulnerabilities, unanswered, allowed), len(pins)


def _pins_and_bases(
    project: Project, cells: Sequence[Cell]
) -> tuple[set[tuple[str, str]], list[PackagesLock], dict[str, str]]:
    """Return the pinned distributions of cells, the locks of bootstrapped bases, and the images of pulled ones."""
    pins: set[tuple[str, str]] = set()
    bases: dict[str, PackagesLock] = {}
    pulled: dict[str, str] = {}
    for cell in cells:
        locked = image_release.require_lock(project, cell)
        pins |= {(item.name, item.version) for item in locked.distributions}
        base = image_release.read_base_source(project, locked)
        if isinstance(base, PackagesLock):
            bases[locked.base] = base
        else:
            pulled[locked.base] = base
    return pins, list(bases.values()), pulled


def _debian_key(lock: PackagesLock, package: DebianPackage) -> str:
    return f"{lock.suite}/{package.name}=={package.version}"


def _audit_debian(locks: list[PackagesLock], url: str) -> tuple[dict[str, list[Vulnerability]], datetime]:
    from knowngood.base import debian_host, private_apt
    from knowngood.core import local_files

    answer = advisory_service.ask_advisory_service("Debian's security tracker", url)
    vulnerabilities: dict[str, list[Vulnerability]] = {}
    for lock in locks:
        folder = local_files.cache_folder() / "audit"
        mirror = private_apt.PrivateApt(
            folder / f"apt-{lock.suite}", debian_host.find_debian_archives(lock.suite, folder / "host")
        )
        mirror.refresh()
        sources = mirror.source_names([package.name for package in lock.packages])
        for package in lock.packages:
            vulnerabilities[_debian_key(lock, package)] = []
        try:
            known = vulnerability_audit.debian_vulnerabilities(lock.packages, lock.suite, sources, answer.document)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnknownError(f"the data of Debian's security tracker cannot be read ({error!r})") from None
        for item in known:
            vulnerabilities[f"{lock.suite}/{item.package}=={item.version}"].append(item)
    return vulnerabilities, answer.when


def answer_or_kept(
    service: str,
    keys: Sequence[str],
    ask: Callable[[], tuple[dict[str, list[Vulnerability]], datetime]],
    notes: list[str],
) -> list[Vulnerability]:
    """Return what a service answers about packages, else what it answered earlier.

    A note is added when it does not answer, and when its data are stale; the result of the audit is then not good.
    """
    path = advisory_service.kept_answers_path(re.sub(r"\W+", "-", service.lower()))
    try:
        answers, when = ask()
    except KnowngoodError as error:
        kept, note = advisory_service.load_kept_answers(path, keys)
        notes.append(f"{error}{note}")
        return kept
    advisory_service.keep_answers(path, answers, when)
    if stale := advisory_service.describe_age(service, when, datetime.now(UTC)):
        notes.append(stale)
    return [item for known in answers.values() for item in known]


def _read_allowlist(project: Project) -> list[AcceptedVulnerability]:
    path = project.root / audit_allowlist.ALLOWLIST_FILE
    if not path.exists():
        return []
    return audit_allowlist.parse_allowlist(
        read_data_text(path, audit_allowlist.ALLOWLIST_FILE), audit_allowlist.ALLOWLIST_FILE, datetime.now(UTC).date()
    )
