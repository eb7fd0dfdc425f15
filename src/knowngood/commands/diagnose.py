"""`knowngood diagnose`: what failed in a log, whose fault it is, what fixes it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cli import Answer
from knowngood.errors import KnowngoodError, UsageError, from_os

if TYPE_CHECKING:
    from knowngood.diagnosing.diagnose import Diagnosis, Match
    from knowngood.diagnosing.known import Known


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("log", nargs="?", metavar="LOG", help="a log file; - or nothing is stdin")
    parser.add_argument("--incidents", metavar="FOLDER", help="read these incidents in place of knowngood's own")


def run(arguments: argparse.Namespace) -> Answer:
    """Diagnose one log."""
    from knowngood.diagnosing import known as diagnose_known
    from knowngood.diagnosing.diagnose import diagnose

    name = arguments.log or "-"
    if name == "-" and arguments.log is None and sys.stdin.isatty():
        raise UsageError("no log; name a file, or pipe it in: `my-training 2>&1 | knowngood diagnose`")
    known = diagnose_known.read(Path(arguments.incidents) if arguments.incidents else None)
    if name == "-":
        found = diagnose(sys.stdin.buffer, known.incidents, known.cards, _table)
    else:
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name} is a folder; name the log file in it")
        try:
            with path.open("rb") as log:
                found = diagnose(log, known.incidents, known.cards, _table)
        except FileNotFoundError:
            raise UsageError(f"there is no file {name}") from None
        except OSError as error:
            raise from_os(error) or KnowngoodError(f"{name} cannot be read: {error}") from None
    found = _tried(found, known)
    return Answer(0 if found.matches else 3, found.document(), _text(found))


def _tried(found: Diagnosis, known: Known) -> Diagnosis:
    """With the remedies tried against the facts, where there is anything to try."""
    from knowngood.diagnosing import remedies
    from knowngood.incidents import rules
    from knowngood.solving import knowledge

    packages = remedies.concerned(found)
    if not packages or known.cards is None:
        return found
    told = (made for incident in known.incidents if (made := rules.of(incident)) is not None)
    return remedies.judged(found, knowledge.universe_of(packages, [*known.rules, *told], known.cards))


def _table(package: str) -> Mapping[str, Any]:
    """Where the functions of a package's releases stand; nothing when that was not harvested."""
    import json

    from knowngood import resources

    try:
        releases = json.loads((resources.root() / "facts" / "lines" / f"{package}.json").read_bytes())["releases"]
        return {version: entry["facts"] for version, entry in releases.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _text(found: Diagnosis) -> str:
    lines: list[str] = []
    for number, match in enumerate(found.matches, 1):
        lines += [*([""] if lines else []), *_paragraph(number, match)]
    if not found.matches:
        lines.append("I don't know: no known failure stands in this log.")
    if found.install:
        lines += ["", f"the smallest change that goes with the rest of the log: {found.install}"]
    if found.excluded:
        lines.append(f"looks like, but the versions in the log exclude it: {', '.join(found.excluded)}")
    for name, told in found.traceback.items():
        if told.claimed:
            lines.append(
                f"{name}: the log says {told.claimed}, but {told.frame} says {told.span}: another one runs, or "
                "its files were changed"
            )
        elif not told.releases:
            lines.append(f"{name}: its lines in the traceback are of no release: a mix, or files that were changed")
        elif name not in found.versions:
            lines.append(f"{name}: by its lines in the traceback {told.span}")
    seen = ", ".join(f"{name} {' / '.join(versions)}" for name, versions in found.versions.items())
    return "\n".join([*lines, f"versions in the log: {seen or 'none'}"])


def _paragraph(number: int, match: Match) -> list[str]:
    incident = match.incident
    how = {"failure": "", "silent": " (silent)", "harmless": " (harmless)"}[str(incident.severity)]
    sure = "versions confirmed by the log" if match.confirmed else incident.confidence
    lines = [
        f"{number}. {incident.title}{how}",
        f"   line {match.line}; at fault: {incident.component}  [{incident.id}; {sure}; {', '.join(incident.source)}]",
        f"   {incident.because}",
    ]
    for remedy in match.fix:
        change = ", ".join(f"{name} {versions}" for name, versions in remedy.fix.change.items())
        cost = f" (costs: {remedy.fix.cost})" if remedy.fix.cost else ""
        lines.append(f"   fix: {': '.join(filter(None, [change, remedy.fix.note]))}{cost}")
        if remedy.broken_by:
            lines.append(f"        not here: {remedy.broken_by}")
    return lines
