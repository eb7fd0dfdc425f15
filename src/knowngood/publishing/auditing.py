"""Asks both services about everything that cells lock: the edge of `knowngood.publishing.audit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from knowngood.errors import KnowngoodError
from knowngood.publishing import allowlist, audit, release
from knowngood.system.packages_lock import PackagesLock

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.project import Project
    from knowngood.publishing.allowlist import Accepted
    from knowngood.publishing.audit import Report, Vulnerability

Found = TypeVar("Found")


def ask(here: Project, cells: Sequence[Cell], tracker: str, say: Callable[[str], None]) -> tuple[Report, int]:
    """What the services know of the cells' wheels and bases, and how many wheels that are.

    A service that does not answer is in the report.
    """
    allowed = _allowed(here)
    found: list[Vulnerability] = []
    unanswered: list[str] = []
    pins, locks = _locked(here, cells)
    say(f"asking OSV about {len(pins)} wheels")
    found += _asked(lambda: audit.wheels(pins), unanswered)
    if locks:
        say(f"asking Debian's tracker about {len({p for lock in locks for p in lock.packages})} packages")
        found += _asked(lambda: _debian(locks, tracker), unanswered)
    return audit.judge(found, unanswered, allowed), len(pins)


def _locked(here: Project, cells: Sequence[Cell]) -> tuple[set[tuple[str, str]], list[PackagesLock]]:
    pins: set[tuple[str, str]] = set()
    bases: dict[str, PackagesLock] = {}
    for cell in cells:
        locked = release.committed(here, cell)
        pins |= {(item.name, item.version) for item in locked.distributions}
        under = release.base(here, locked)
        if isinstance(under, PackagesLock):
            bases[locked.base] = under
    return pins, list(bases.values())


def _debian(locks: list[PackagesLock], url: str) -> list[Vulnerability]:
    from knowngood import paths
    from knowngood.system import apt, debian

    tracker = audit.fetch_tracker(url)
    found = []
    for lock in locks:
        folder = paths.cache_dir() / "audit"
        mirror = apt.PrivateApt(folder / f"apt-{lock.suite}", debian.debian_archives(lock.suite, folder / "host"))
        mirror.refresh()
        sources = mirror.source_names([package.name for package in lock.packages])
        found += audit.debian(lock.packages, lock.suite, sources, tracker)
    return found


def _asked(ask: Callable[[], list[Found]], unanswered: list[str]) -> list[Found]:
    try:
        return ask()
    except KnowngoodError as error:
        unanswered.append(str(error))
        return []


def _allowed(here: Project) -> list[Accepted]:
    path = here.root / allowlist.FILE
    if not path.exists():
        return []
    return allowlist.parse(path.read_text(encoding="utf-8"), allowlist.FILE, datetime.now(UTC).date())
