"""What failed in a log, whose fault it is, what fixes it: from the incidents whose signatures stand in it.

An incident that the versions in the log exclude is not offered, nor a silent one of certain versions that the log does
not state. The rest are ranked: failures before silent faults
before harmless warnings, and the first to appear in the log first, since what follows it is often only its
consequence. Of two in one line, the one whose versions the log confirms comes first. Pure, but for the reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.diagnosing.frames import Frames, LineEvidence, Tables, Tracebacks, evidence
from knowngood.diagnosing.log import Scan, Source
from knowngood.diagnosing.remedy import Remedy
from knowngood.diagnosing.versions import Versions
from knowngood.incidents.model import Fix, Incident, Severity

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from knowngood.gpus import Gpus

_ORDER = (Severity.FAILURE, Severity.SILENT, Severity.HARMLESS)


@dataclass(frozen=True, kw_only=True)
class Match:
    """An incident that stands in the log."""

    incident: Incident
    line: int
    versions_seen: Mapping[str, str]
    confirmed: bool
    """Whether the log states every version on which the incident depends."""
    fix: tuple[Remedy, ...]

    def document(self) -> dict[str, Any]:
        """As `diagnose --json` shows it."""
        return {
            "incident": self.incident.id,
            "title": self.incident.title,
            "kind": str(self.incident.kind),
            "severity": str(self.incident.severity),
            "component": self.incident.component,
            "line": self.line,
            "confidence": self.incident.confidence,
            "versions_confirmed": self.confirmed,
            "because": self.incident.because,
            "versions_seen": dict(self.versions_seen),
            "fix": [remedy.document() for remedy in self.fix],
            "source": list(self.incident.source),
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Matches, best first, and what was seen but does not fit."""

    matches: tuple[Match, ...]
    excluded: tuple[str, ...]
    versions: Mapping[str, Sequence[str]]
    lines: int
    traceback: Mapping[str, LineEvidence] = field(default_factory=dict)
    """Package -> what the lines of its files in tracebacks say of its release."""
    install: str = ""
    """The smallest change of packages that mends the failures, as a line for a shell; empty when none is known."""

    def document(self) -> dict[str, Any]:
        """As `diagnose --json` shows it."""
        return {
            "matches": [match.document() for match in self.matches],
            "install": self.install or None,
            "excluded_by_versions": list(self.excluded),
            "versions": {name: list(versions) for name, versions in self.versions.items()},
            "traceback": {name: told.document() for name, told in self.traceback.items()},
            "lines": self.lines,
        }


def diagnose(
    source: Source, known: Sequence[Incident], gpus: Gpus | None = None, tables: Tables = lambda _: {}
) -> Diagnosis:
    """Read a log and say which incidents stand in it; `tables` have where the functions of releases stand."""
    scan = Scan(signatures=[item for incident in known for item in incident.marks])
    versions, frames, tracebacks = Versions(), Frames(), Tracebacks()
    scan.read(source, versions, frames, tracebacks)
    seen = dict(versions.found)
    traceback = evidence(list(frames.found), tables, seen)
    seen |= {name: list(told.releases) for name, told in traceback.items() if name not in seen and told.exact}
    capabilities = list(versions.capabilities) or _capabilities(versions.cards, gpus)
    if capabilities:
        seen["gpu"] = capabilities
    possible = {**{name: told.releases for name, told in traceback.items() if told.releases}, **seen}
    for name, told in traceback.items():
        if told.claimed and told.releases:  # of two that contradict each other neither excludes anything alone
            possible[name] = [*seen[name], *told.releases]
    matches, excluded, number = [], [], 0
    for incident in known:
        marks = range(number, number + len(incident.marks))
        number = marks.stop
        line = incident.line([scan.found.get(mark) for mark in marks], traceback=tracebacks.seen)
        if line is None:
            continue
        fitting = _fitting(incident, possible)
        if fitting is None:
            excluded.append(incident.id)
            continue
        match = _match(incident, line, fitting, seen)
        if match.confirmed or not (incident.severity == Severity.SILENT and incident.affected):
            matches.append(match)
    return Diagnosis(
        matches=_ranked(matches), excluded=tuple(excluded), versions=seen, lines=scan.lines, traceback=traceback
    )


def _capabilities(cards: Sequence[str], gpus: Gpus | None) -> list[str]:
    from knowngood.errors import UsageError

    found: list[str] = []
    for card in cards if gpus else ():
        try:
            names = gpus.find(card) if gpus else []
        except UsageError:
            continue
        found += [name for sm in names if (name := sm.removeprefix("sm_")) not in found]
    return found


def _fitting(incident: Incident, seen: Mapping[str, Sequence[str]]) -> Mapping[str, SpecifierSet] | None:
    """The first combination that the versions seen allow, best the one they confirm; `None` when they exclude all."""
    if not incident.affected:
        return {}
    allowed = [
        combination
        for combination in incident.affected
        if all(_inside(specifier, seen[name]) for name, specifier in combination.items() if name in seen)
    ]
    return max(allowed, key=lambda combination: sum(name in seen for name in combination), default=None)


def _inside(specifier: SpecifierSet, versions: Sequence[str]) -> bool:
    """Whether one of the versions seen is inside; what is no version says nothing, and so excludes nothing."""
    from packaging.version import InvalidVersion, Version

    for version in versions:
        try:
            if specifier.contains(Version(version)):
                return True
        except InvalidVersion:
            return True
    return False


def _match(
    incident: Incident, line: int, fitting: Mapping[str, SpecifierSet], seen: Mapping[str, Sequence[str]]
) -> Match:
    concerned = dict.fromkeys([*fitting, *(name for fix in incident.fix for name in fix.change), incident.component])
    shown = {}
    for name in concerned:
        versions = seen.get(name, ())
        inside = [version for version in versions if name not in fitting or _inside(fitting[name], [version])]
        if inside:
            shown[name] = inside[-1]
    return Match(
        incident=incident,
        line=line,
        versions_seen=shown,
        confirmed=bool(fitting) and all(name in seen for name in fitting),
        fix=tuple(Remedy(fix=fix) for fix in incident.fix if not _done_already(fix, shown)),
    )


def _done_already(fix: Fix, shown: Mapping[str, str]) -> bool:
    """Whether what a remedy asks for is what the log shows to be there, so that it is none."""
    return bool(fix.change) and all(
        name in shown and fix.change[name] != "*" and _inside(specifier, [shown[name]])
        for name, specifier in fix.ranges.items()
    )


def _ranked(matches: Sequence[Match]) -> tuple[Match, ...]:
    """See the module's text."""
    return tuple(
        sorted(matches, key=lambda match: (_ORDER.index(match.incident.severity), match.line, _certainty(match)))
    )


def _certainty(match: Match) -> tuple[bool, int, int]:
    """Less is surer: confirmed by versions, then the more particular signature."""
    particular = len(match.incident.context) * 40 + max(len(item.text) for item in match.incident.signatures)
    return not match.confirmed, -len(match.versions_seen), -particular
