"""Ask OSV and Debian's tracker about everything that cells lock; `vulnerability_audit` has the pure part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from knowngood.core.data_files import read_data_text
from knowngood.core.errors import KnowngoodError
from knowngood.core.notify import Notify
from knowngood.lock.debian_lock import PackagesLock
from knowngood.registry import audit_allowlist, image_release, vulnerability_audit

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.project.checkout import Project
    from knowngood.registry.audit_allowlist import AcceptedVulnerability
    from knowngood.registry.vulnerability_audit import AuditReport, Vulnerability

AnswerT = TypeVar("AnswerT")


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
        vulnerabilities += _answer_or_note(lambda: vulnerability_audit.audit_wheels(pins), unanswered)
    else:
        unanswered.append("the cells lock no wheel, so nothing was looked up")
    if locks:
        notify(f"asking Debian's tracker about {len({p for lock in locks for p in lock.packages})} packages")
        vulnerabilities += _answer_or_note(lambda: _audit_debian(locks, tracker), unanswered)
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


def _audit_debian(locks: list[PackagesLock], url: str) -> list[Vulnerability]:
    from knowngood.base import debian_host, private_apt
    from knowngood.core import local_files

    tracker = vulnerability_audit.fetch_debian_tracker(url)
    vulnerabilities = []
    for lock in locks:
        folder = local_files.cache_folder() / "audit"
        mirror = private_apt.PrivateApt(
            folder / f"apt-{lock.suite}", debian_host.find_debian_archives(lock.suite, folder / "host")
        )
        mirror.refresh()
        sources = mirror.source_names([package.name for package in lock.packages])
        vulnerabilities += vulnerability_audit.debian_vulnerabilities(lock.packages, lock.suite, sources, tracker)
    return vulnerabilities


def _answer_or_note(ask: Callable[[], list[AnswerT]], unanswered: list[str]) -> list[AnswerT]:
    try:
        return ask()
    except KnowngoodError as error:
        unanswered.append(str(error))
        return []


def _read_allowlist(project: Project) -> list[AcceptedVulnerability]:
    path = project.root / audit_allowlist.ALLOWLIST_FILE
    if not path.exists():
        return []
    return audit_allowlist.parse_allowlist(
        read_data_text(path, audit_allowlist.ALLOWLIST_FILE), audit_allowlist.ALLOWLIST_FILE, datetime.now(UTC).date()
    )
