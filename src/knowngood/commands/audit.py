"""`knowngood audit [SELECT]`: known vulnerabilities of the wheels and Debian packages that cells lock."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common

if TYPE_CHECKING:
    from knowngood.allowlist import Accepted
    from knowngood.audit import Report, Vulnerability
    from knowngood.cell import Cell
    from knowngood.packages_lock import PackagesLock

Found = TypeVar("Found")


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument(
        "--tracker",
        metavar="URL",
        default=os.environ.get("KNOWNGOOD_DEBIAN_TRACKER"),
        help="Debian's vulnerability data (default: KNOWNGOOD_DEBIAN_TRACKER, else Debian's own server); "
        "PIP_AUDIT_OSV_URL does the same for OSV",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Ask both services about everything that the cells lock; what one does not answer is unknown."""
    from knowngood import audit, progress, select

    here = project.find()
    allowed = _allowed(here)
    cells = select.select(here.matrix.cells, here.matrix.aliases, arguments.select)
    found: list[Vulnerability] = []
    unanswered: list[str] = []
    with progress.reporter("audit") as say:
        pins, locks = _locked(here, cells)
        say(f"asking OSV about {len(pins)} wheels")
        found += _asked(lambda: audit.wheels(pins), unanswered)
        if locks:
            say(f"asking Debian's tracker about {len({p for lock in locks for p in lock.packages})} packages")
            found += _asked(lambda: _debian(locks, arguments.tracker or audit.TRACKER), unanswered)
    report = audit.judge(found, unanswered, allowed)
    code = 1 if report.open else 3 if report.unanswered else 0
    return Answer(code, {"cells": [str(cell) for cell in cells], **_document(report)}, _text(report, len(pins)))


def _locked(here: project.Project, cells: list[Cell]) -> tuple[set[tuple[str, str]], list[PackagesLock]]:
    from knowngood import release
    from knowngood.packages_lock import PackagesLock

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
    from knowngood import apt, audit, debian, paths

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
    from knowngood.errors import KnowngoodError

    try:
        return ask()
    except KnowngoodError as error:
        unanswered.append(str(error))
        return []


def _allowed(here: project.Project) -> list[Accepted]:
    from datetime import UTC, datetime

    from knowngood import allowlist

    path = here.root / allowlist.FILE
    if not path.exists():
        return []
    return allowlist.parse(path.read_text(encoding="utf-8"), allowlist.FILE, datetime.now(UTC).date())


def _document(report: Report) -> dict[str, object]:
    return {
        "open": [asdict(item) for item in report.open],
        "accepted": [asdict(item) for item in report.accepted],
        "unanswered": list(report.unanswered),
        "unused": [{"id": entry.id, "package": entry.package, "line": entry.line} for entry in report.unused],
    }


def _text(report: Report, wheels: int) -> str:
    from knowngood import allowlist

    lines = [
        f"{item.package} {item.version}: {item.id}" + (f", fixed in {item.fixed}" if item.fixed else ", no fix yet")
        for item in report.open
    ]
    lines += [f"unknown: {reason}" for reason in report.unanswered]
    lines += [
        f"{allowlist.FILE}:{entry.line}: nothing found is about {entry.id} of {entry.package}; remove the entry"
        for entry in report.unused
    ]
    told = f"{len(report.open)} open, {len(report.accepted)} accepted by {allowlist.FILE}"
    return "\n".join(
        [*lines, f"{wheels} wheels and their bases: {told}" + (", not all known" * bool(report.unanswered))]
    )
