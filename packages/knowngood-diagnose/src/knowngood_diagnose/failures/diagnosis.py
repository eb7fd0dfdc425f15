"""What failed in a log, which component is at fault and what fixes it, by the incidents whose signatures are in it.

An incident that the versions in the log exclude is not offered, nor a silent one that depends on versions which the log
does not state. The rest are ranked: failures before silent faults, slow ones and harmless warnings; then by the line in
the log, because what follows a failure is often only its consequence. Of two in the same line, the one whose versions
the log confirms comes first. Pure, except that the log is read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.core.errors import UnknownError, UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.known_failures import IncidentTable
from knowngood_diagnose.failures.logs.last_errors import (
    LastError,
    LastErrorReader,
    advise_paste,
    complete_raise,
    find_nearest_incident,
    is_only_mentioned,
)
from knowngood_diagnose.failures.logs.log_scan import LogSource, SignatureScan
from knowngood_diagnose.failures.logs.log_versions import (
    FrameReader,
    LineEvidence,
    LoadLineTable,
    TracebackDetector,
    VersionReader,
    find_extension_package,
    judge_frames,
)
from knowngood_diagnose.failures.logs.logged_errors import ErrorReader, LoggedError
from knowngood_diagnose.failures.logs.trouble_signs import (
    NanLossReader,
    TroubleReader,
    find_lost_file,
    fit_to_rocm,
    goes_on,
    is_destructor,
    is_overtaken,
    is_probe,
    is_rocm,
    is_warning,
)
from knowngood_diagnose.failures.machines.compiler_errors import (
    COMPILERS_OWN,
    CompilerErrorReader,
    explain_compiler_error,
)
from knowngood_diagnose.failures.machines.library_errors import explain_killed_compiler
from knowngood_diagnose.failures.machines.missing_commands import find_missing_command
from knowngood_facts.compat.incident import (
    GUESS,
    Fix,
    Incident,
    IncidentKind,
    IncidentSeverity,
    IncidentTrait,
    OwnComponent,
)

if TYPE_CHECKING:
    from knowngood.core.gpus import GpuCatalog
    from knowngood_diagnose.failures.names.message_causes import MessageCause
    from knowngood_diagnose.failures.names.name_situation import NameCause


@dataclass(frozen=True, kw_only=True)
class LogKnowledge:
    """What is known beside the incidents; what is not given is not looked at."""

    load_lines: LoadLineTable = lambda _: {}
    """The lines of a package's functions by release, by which a traceback shows the release that really ran."""
    explain_names: Callable[[Sequence[LoggedError], Mapping[str, Sequence[str]]], Sequence[NameCause]] = lambda *_: []
    """Computes the causes of errors about names, given the versions in the log."""
    explain_error: Callable[
        [LastError, Mapping[str, Sequence[str]], Sequence[NameCause]], MessageCause | NameCause | None
    ] = lambda *_: None
    """Computes the cause of the last error when no known failure explains it, given the versions in the log and the
    causes of names that count only then.
    """


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A remedy of an incident, with the result of trying it against the versions in the log."""

    fix: Fix
    pins: Mapping[str, str] = field(default_factory=dict)
    """Package -> the release to install, or a range where there are no facts; empty without anything to install."""
    undecided: bool = False
    """Whether it depends on the GPU, which the log does not name; then it is not tried."""
    broken_by: str = ""
    """Why the remedy does not go with the other versions in the log; empty when it does."""

    def document(self) -> dict[str, Any]:
        """The value as `diagnose --json` prints it."""
        document = self.fix.document()
        if self.broken_by:
            return {**document, "broken_by": self.broken_by}
        return {**document, "install": render_install_command(self.pins)} if self.pins else document


def render_install_command(pins: Mapping[str, str]) -> str:
    """Return the shell command that installs these packages (name -> version or specifier)."""
    packages = [f'"{name}{text if text[:1] in "<>=!~" else f"=={text}"}"' for name, text in sorted(pins.items())]
    options = " --no-build-isolation" if "flash-attn" in pins else ""
    return f"pip install {' '.join(packages)}{options}"


class Certainty(StrEnum):
    """How sure it is that the log shows a failure; docs/diagnose.md has what was measured of either."""

    SURE = "sure"
    LIKELY = "likely"
    """The last error's words or place alone say it, another failure stands behind it, or no line is an error."""


_REPORTED = "reported"
"""The confidence of an incident that rests on reports alone."""
_CUT_PASTE = ("the whole traceback, with the error in its last line",)
_ORDER = tuple(IncidentSeverity)


@dataclass(frozen=True, kw_only=True)
class IncidentMatch:
    """An incident that shows in the log."""

    incident: Incident
    line: int
    versions_seen: Mapping[str, str]
    confirmed: bool
    """Whether the log states every version on which the incident depends."""
    fix: tuple[Remedy, ...]
    certainty: Certainty = Certainty.SURE
    specific: int = 0
    """How much of the log it quotes: the length of its signatures there."""
    is_open: bool = False
    """Whether only the kind of the failure is known, and nothing of its reason."""
    is_narrowed: bool = False
    """Whether the log's own numbers, words or code say which of its reasons holds."""

    @property
    def passes_on(self) -> bool:
        """Whether it is only the line by which one program reports the failure of another."""
        return self.incident.kind == IncidentKind.FAILS_INSIDE and bool(self.incident.signatures)

    def document(self) -> dict[str, Any]:
        """The value as `diagnose --json` prints it."""
        return {
            "incident": self.incident.id,
            "title": self.incident.title,
            "kind": str(self.incident.kind),
            "severity": str(self.incident.severity),
            "component": self.incident.component,
            "line": self.line,
            "confidence": self.incident.confidence,
            "certainty": str(self.certainty),
            "versions_confirmed": self.confirmed,
            "because": self.incident.because,
            "versions_seen": dict(self.versions_seen),
            "fix": [remedy.document() for remedy in self.fix],
            "source": list(self.incident.source),
        }


@dataclass(frozen=True, kw_only=True)
class LogSupplement:
    """What a user states beside a log."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Package or axis -> its version; `gpu` is a compute capability such as `90`. It counts more than the log's."""
    excludes: Callable[[Incident], bool] = lambda _: False
    """Whether the stated conditions of use exclude an incident."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The incidents that show in a log, best first, and what the log says about versions."""

    matches: tuple[IncidentMatch, ...]
    excluded: tuple[str, ...]
    """The incidents whose signatures are in the log, but which its versions exclude."""
    versions: Mapping[str, Sequence[str]]
    lines: int
    traceback: Mapping[str, LineEvidence] = field(default_factory=dict)
    """Package -> what the lines of its files in tracebacks say about its release."""
    install: str = ""
    """The shell command for the smallest change of packages that fixes the failures; empty when none is known."""
    last_error: LastError | None = None
    trouble: LastError | None = None
    """The last line that tells of trouble, in a log that has no error."""
    health: LastError | None = None
    """The line that shows a run in health (a loss, a clean end), in a log without an error and without trouble."""
    is_cut: bool = False
    """Whether it has a traceback, and not the error at its end."""
    nearest: Incident | None = None
    """The known failure that is most like the last error, when none is in the log."""
    paste: tuple[str, ...] = ()
    """What else would help, when no failure is known."""

    @property
    def packages_to_try(self) -> set[str]:
        """The packages whose facts are needed to try the remedies; none when there is nothing to try."""
        changed = {name for match in self.matches for remedy in match.fix for name in remedy.fix.change}
        return changed | set(self.versions) if changed and self.versions else set()

    @property
    def outcome(self) -> LogOutcome:
        """What the log shows: a known failure, a run in health, or nothing that is known."""
        if any(match.incident.severity != IncidentSeverity.HARMLESS for match in self.matches):
            return LogOutcome.KNOWN
        return LogOutcome.NO_FAILURE if self.health is not None else LogOutcome.UNKNOWN

    def document(self) -> dict[str, Any]:
        """The value as `diagnose --json` prints it."""
        return {
            "matches": [match.document() for match in self.matches],
            "install": self.install or None,
            "excluded_by_versions": list(self.excluded),
            "versions": {name: list(versions) for name, versions in self.versions.items()},
            "traceback": {name: lines.document() for name, lines in self.traceback.items()},
            "lines": self.lines,
            "outcome": str(self.outcome),
            "last_error": {"text": self.last_error.text, "line": self.last_error.line} if self.last_error else None,
            "trouble": {"text": self.trouble.text, "line": self.trouble.line} if self.trouble else None,
            "health": {"text": self.health.text, "line": self.health.line} if self.health else None,
            "nearest": self.nearest.id if self.nearest else None,
            "paste": list(self.paste),
        }


class LogOutcome(StrEnum):
    """What a log shows as a whole."""

    KNOWN = "known"
    """A failure that is known."""
    UNKNOWN = "unknown"
    """Nothing that is known: an error, trouble in other words, or no sign at all of how the run went."""
    NO_FAILURE = "no-failure"
    """A run in health: losses or a clean end, and nothing that tells of an error."""


def diagnose_log(  # noqa: C901, PLR0911, PLR0912, PLR0915 - what is not given is not looked at
    log: LogSource,
    incidents: Sequence[Incident],
    gpus: GpuCatalog | None = None,
    knowledge: LogKnowledge = LogKnowledge(),
    supplement: LogSupplement | None = None,
) -> Diagnosis:
    """Read a log and return the incidents that show in it.

    `gpus` gives the compute capability of the cards that the log names; `supplement` is what the user states beside the
    log.
    """
    supplement = supplement or LogSupplement()
    table = IncidentTable.of(incidents)
    scan = SignatureScan(signatures=table.marks, words=table.words)
    versions, frames, tracebacks, errors = VersionReader(), FrameReader(), TracebackDetector(), ErrorReader()
    last_errors, losses, compiler = LastErrorReader(), NanLossReader(), CompilerErrorReader()
    trouble = TroubleReader()
    scan.read(log, versions, frames, tracebacks, errors, last_errors, losses, compiler, trouble)
    failed = tracebacks.present or last_errors.error is not None
    if last_errors.error is not None:
        last_errors.error = replace(last_errors.error, log_end=trouble.log_end)
    log_versions = dict(versions.versions) | {name: [text] for name, text in supplement.versions.items()}
    traceback = judge_frames(list(frames.frames), knowledge.load_lines, log_versions)
    exact = {name: list(lines.releases) for name, lines in traceback.items() if lines.exact}
    log_versions |= {name: releases for name, releases in exact.items() if name not in log_versions}
    capabilities = list(versions.capabilities) or _capabilities(versions.cards, gpus)
    if capabilities and "gpu" not in supplement.versions:
        log_versions["gpu"] = capabilities
    possible = {**{name: lines.releases for name, lines in traceback.items() if lines.releases}, **log_versions}
    for name, lines in traceback.items():
        if lines.claimed and lines.releases:  # a stated version that the lines contradict excludes nothing alone
            possible[name] = [*log_versions[name], *lines.releases]
    matches, excluded, general = list[IncidentMatch](), list[str](), set[str]()
    of_rocm = is_rocm(log_versions, last_errors.error)
    for incident, number in table.find_by_marks(scan.lines_of):
        marks = range(number, number + len(incident.marks))
        if incident.component == OwnComponent.EXTENSION:
            general.add(incident.id)
        line = incident.line([scan.lines_of.get(mark) for mark in marks], traceback=tracebacks.present)
        if line is None or supplement.excludes(incident):
            continue
        if IncidentTrait.ANY_FILE in incident.traits and find_lost_file(last_errors.error) is not None:
            continue
        mark = next((mark for mark in marks if scan.lines_of.get(mark) == line), marks.start)
        if incident.severity == IncidentSeverity.FAILURE and is_only_mentioned(
            scan.starts_of.get(mark, ""), failed=failed
        ):
            continue
        combination = _fitting_combination(incident, possible)
        if combination is None:
            excluded.append(incident.id)
            continue
        own = zip(marks, incident.signatures, strict=False)
        seen_lines = {item.text: scan.starts_of[mark] for mark, item in own if mark in scan.starts_of}
        shown = list(seen_lines.values())
        stated = (fit_to_rocm(incident) if of_rocm else None) or incident
        shown_line = scan.starts_of.get(mark, "")
        wide = stated
        stated = stated.choose_variant(seen_lines, last_errors.error.message if last_errors.error else "")
        shown_error = LastError(text=shown_line, line=line, message=shown_line, log_end=trouble.log_end)
        stated, is_open = _narrow(stated, last_errors.error or shown_error)
        is_narrowed = stated != wide or (IncidentTrait.OPEN in incident.traits and not is_open)
        match = _weigh_warning(
            _match(stated, line, combination, log_versions, scan.texts_of.get(mark, b"")), shown, last_errors.error
        )
        if match.confirmed or not (incident.severity == IncidentSeverity.SILENT and incident.affected):
            places = [scan.lines_of.get(mark) for mark in marks]
            specific = _measure_quotes(incident, places, line)
            matches.append(replace(match, specific=specific, is_open=is_open, is_narrowed=is_narrowed))
    special = {(match.line, match.incident.kind) for match in matches if match.incident.id not in general}
    matches = [
        match
        for match in matches
        if match.incident.id not in general or (match.line, match.incident.kind) not in special
    ]
    known_lines = {
        match.line
        for match in matches
        if match.incident.severity != IncidentSeverity.HARMLESS
        and IncidentTrait.ANY_SETTING not in match.incident.traits
    }
    raised = [
        error
        for error in errors.errors
        if error.line not in known_lines
        and not COMPILERS_OWN.search(error.text)
        and not is_only_mentioned(error.text, failed=failed)
        and not (is_destructor(error.frames) and last_errors.error and last_errors.error.line != error.line)
    ]
    causes = [
        cause
        for cause in (knowledge.explain_names(raised, log_versions) if raised else ())
        if not (
            (is_warning([cause.error.text]) or is_probe(cause.error.frames))
            and is_overtaken(cause.package, cause.line, last_errors.error)
        )
        and not goes_on(cause.package, [cause.error.text], cause.line, last_errors.error)
    ]
    matches += [_computed_match(cause, log_versions) for cause in causes if not cause.is_fallback]
    if last_errors.error is None and not any(match.incident.severity == IncidentSeverity.FAILURE for match in matches):
        matches += _nan_matches(losses.line, table, log_versions)
    diagnosis = Diagnosis(
        matches=_ranked([_weigh_certainty(match, last_errors.error) for match in matches]),
        excluded=tuple(excluded),
        versions=log_versions,
        lines=scan.lines,
        traceback=traceback,
        last_error=last_errors.error,
        is_cut=tracebacks.present and last_errors.error is None,
        paste=_CUT_PASTE if tracebacks.present and last_errors.error is None else (),
    )
    failures = [match for match in diagnosis.matches if match.incident.severity != IncidentSeverity.HARMLESS]
    command = find_missing_command(last_errors.error)
    is_known = any(last_errors.error and match.line == last_errors.error.line for match in failures)
    command = "" if is_known else command
    if last_errors.error and command and (cause := knowledge.explain_error(last_errors.error, log_versions, ())):
        others = (match for match in diagnosis.matches if match.incident.id != cause.incident.id)
        return replace(diagnosis, matches=(_last_resort(cause, log_versions), *others))
    if last_errors.error and command and not last_errors.error.ends_log and not failures:
        return replace(diagnosis, last_error=None, health=trouble.find_health())  # it goes on without nvcc or the like
    if last_errors.error is None and not failures and not diagnosis.is_cut:
        sign = trouble.find_sign({match.line for match in diagnosis.matches})
        if sign is not None:
            from knowngood_diagnose.failures.names.message_causes import explain_told_command  # few logs need it

            if (own_command := explain_told_command(sign)) is not None:
                return replace(diagnosis, matches=(_last_resort(own_command, log_versions), *diagnosis.matches))
            return _with_hints(replace(diagnosis, trouble=sign), sign, table, has_traceback=False)
        health = trouble.find_health()
        paste = () if health else tuple(advise_paste([*log_versions], has_gpu=True, has_traceback=False))
        return replace(diagnosis, health=health, paste=paste)
    if all(match.passes_on for match in failures) and any(
        IncidentTrait.BUILD in match.incident.traits for match in failures
    ):
        unstated = LastError(text="", line=failures[0].line, log_end=trouble.log_end)
        if built := _explain_build(compiler, last_errors.error or unstated):
            return replace(diagnosis, matches=(_computed_match(built, log_versions), *diagnosis.matches))
    if last_errors.error is None or not all(match.passes_on for match in failures):
        return diagnosis
    if compiler.error is not None and compiler.error.line == last_errors.error.line:
        first = _computed_match(explain_compiler_error(compiler.error), log_versions)
        return replace(diagnosis, matches=(first, *diagnosis.matches))
    if any(match.line == last_errors.error.line for match in failures):
        return diagnosis
    fallbacks = [cause for cause in causes if cause.is_fallback]
    if (reason := knowledge.explain_error(last_errors.error, log_versions, fallbacks)) is not None:
        return replace(diagnosis, matches=(_last_resort(reason, log_versions), *diagnosis.matches))
    if not failures and (cut := complete_raise(last_errors.error)):
        rest = replace(supplement, versions={name: texts[-1] for name, texts in log_versions.items() if texts})
        inner = diagnose_log(io.BytesIO(cut.encode()), table, gpus, knowledge, rest)
        if inner.outcome == LogOutcome.KNOWN:
            line = last_errors.error.line
            likely = (replace(match, line=line, certainty=Certainty.LIKELY) for match in inner.matches)
            return replace(diagnosis, matches=tuple(likely))
    has_traceback = tracebacks.present
    return diagnosis if failures else _with_hints(diagnosis, last_errors.error, table, has_traceback=has_traceback)


def _narrow(incident: Incident, error: LastError) -> tuple[Incident, bool]:
    """The failure with what the log says of its reason, and whether the reason is left open."""
    if not incident.narrowed_by:
        return incident, IncidentTrait.OPEN in incident.traits or GUESS in incident.title
    from knowngood_diagnose.failures.reason_readers import narrow_reason  # not at the top: it imports all readers

    return narrow_reason(incident, error)


def _explain_build(compiler: CompilerErrorReader, error: LastError) -> MessageCause | None:
    """Why a build failed, by the compiler's first error, else by a compiler that was killed."""
    return explain_compiler_error(compiler.error) if compiler.error is not None else explain_killed_compiler(error)


def _with_hints(
    diagnosis: Diagnosis, error: LastError, incidents: Sequence[Incident], *, has_traceback: bool
) -> Diagnosis:
    """The diagnosis of an unknown failure with the nearest known one, and what else would help."""
    paste = advise_paste([*diagnosis.versions], has_gpu="gpu" in diagnosis.versions, has_traceback=has_traceback)
    return replace(diagnosis, nearest=find_nearest_incident(error, incidents), paste=tuple(paste))


def _capabilities(cards: Sequence[str], gpus: GpuCatalog | None) -> list[str]:
    capabilities: list[str] = []
    for card in cards if gpus else ():
        try:
            names = gpus.find_capabilities(card) if gpus else []
        except (UsageError, UnknownError):
            continue
        capabilities += [name for sm in names if (name := sm.removeprefix("sm_")) not in capabilities]
    return capabilities


def _fitting_combination(
    incident: Incident, log_versions: Mapping[str, Sequence[str]]
) -> Mapping[str, SpecifierSet] | None:
    """Of the affected combinations that the log's versions allow, the one of which most packages are in the log.

    `None` when the versions exclude all; empty when the incident affects no combinations.
    """
    if not incident.affected:
        return {}
    allowed = [
        combination
        for combination in incident.affected
        if all(
            _any_inside(specifier, log_versions[name])
            for name, specifier in combination.items()
            if name in log_versions
        )
    ]
    return max(allowed, key=lambda combination: sum(name in log_versions for name in combination), default=None)


def _any_inside(specifier: SpecifierSet, versions: Sequence[str]) -> bool:
    """Whether one of the versions is inside; a text that is no version excludes nothing."""
    for version in versions:
        try:
            if specifier.contains(Version(version)):
                return True
        except InvalidVersion:
            return True
    return False


def _match(
    incident: Incident,
    line: int,
    combination: Mapping[str, SpecifierSet],
    log_versions: Mapping[str, Sequence[str]],
    text: bytes,
) -> IncidentMatch:
    if incident.component == OwnComponent.EXTENSION:
        incident = replace(incident, component=find_extension_package(text))
    packages = dict.fromkeys([*combination, *(name for fix in incident.fix for name in fix.change), incident.component])
    versions_seen = {}
    for name in packages:
        specifier = combination.get(name)
        fitting = [
            version for version in log_versions.get(name, ()) if specifier is None or _any_inside(specifier, [version])
        ]
        if fitting:
            versions_seen[name] = fitting[-1]
    return IncidentMatch(
        incident=incident,
        line=line,
        versions_seen=versions_seen,
        confirmed=bool(combination) and all(name in log_versions for name in combination),
        fix=tuple(
            Remedy(fix=fix, undecided=_is_undecided(fix, log_versions))
            for fix in incident.fix
            if not _is_done_already(fix, versions_seen) and _is_for_gpu(fix, log_versions)
        ),
    )


def _nan_matches(
    line: int, incidents: Sequence[Incident], log_versions: Mapping[str, Sequence[str]]
) -> list[IncidentMatch]:
    """The incident of losses that are nan from a line on; none for line 0."""
    if not line:
        return []
    return [_match(item, line, {}, log_versions, b"") for item in incidents if IncidentTrait.NAN_LOSSES in item.traits]


def _weigh_warning(match: IncidentMatch, shown: Sequence[str], error: LastError | None) -> IncidentMatch:
    """The match, harmless where the lines that show it only warn and the last error tells of something else."""
    component = match.incident.component
    overtaken = is_warning(shown) and is_overtaken(component, match.line, error)
    if overtaken or goes_on(component, shown, match.line, error):
        return replace(match, incident=replace(match.incident, severity=IncidentSeverity.HARMLESS))
    return match


def _weigh_certainty(match: IncidentMatch, error: LastError | None) -> IncidentMatch:
    """The match, only likely where it passes on another failure, where no line says that the program failed, and where
    what is known rests on reports alone, which name one of the causes of their words.
    """
    is_unnamed = match.passes_on or match.is_open or IncidentTrait.KIND_ONLY in match.incident.traits
    is_reported = match.incident.confidence == _REPORTED and not match.is_narrowed
    is_unproven = not match.confirmed and (error is None or is_reported)
    is_likely = is_unnamed or is_unproven or _lies_elsewhere(match)
    return replace(match, certainty=Certainty.LIKELY) if is_likely else match


def _lies_elsewhere(match: IncidentMatch) -> bool:
    """Whether all that was computed is that the release has the name, so that something else failed."""
    return match.incident.kind == IncidentKind.FAILS_INSIDE and not match.incident.signatures


def _last_resort(cause: NameCause | MessageCause, log_versions: Mapping[str, Sequence[str]]) -> IncidentMatch:
    """A cause that the last error's words or place alone give, when nothing else is known."""
    return replace(_computed_match(cause, log_versions), certainty=Certainty.LIKELY)


def _computed_match(cause: NameCause | MessageCause, log_versions: Mapping[str, Sequence[str]]) -> IncidentMatch:
    """A cause that was computed, as a match; its versions were looked at already."""
    names = dict.fromkeys([cause.package, *(name for fix in cause.incident.fix for name in fix.change)])
    versions_seen = {name: log_versions[name][-1] for name in names if name in log_versions}
    if cause.version:
        versions_seen[cause.package] = cause.version
    return IncidentMatch(
        incident=cause.incident,
        line=cause.line,
        versions_seen=versions_seen,
        confirmed=bool(cause.version),
        fix=tuple(Remedy(fix=fix) for fix in cause.incident.fix),
        certainty=Certainty.LIKELY if getattr(cause, "is_likely", False) else Certainty.SURE,
    )


def _is_for_gpu(fix: Fix, log_versions: Mapping[str, Sequence[str]]) -> bool:
    """Whether a remedy may be meant for the GPU of the log; any may where the log names none."""
    gpus = log_versions.get("gpu", ())
    return not (fix.gpu and gpus) or _any_inside(SpecifierSet(fix.gpu), gpus)


def _is_undecided(fix: Fix, log_versions: Mapping[str, Sequence[str]]) -> bool:
    """Whether a remedy depends on the GPU, and the log names none."""
    return bool(fix.gpu) and not log_versions.get("gpu")


def _is_done_already(fix: Fix, versions: Mapping[str, str]) -> bool:
    """Whether the log shows the very versions that a remedy would install."""
    return bool(fix.change) and all(
        name in versions and fix.change[name] != "*" and _any_inside(specifier, [versions[name]])
        for name, specifier in fix.ranges.items()
    )


def _ranked(matches: Sequence[IncidentMatch]) -> tuple[IncidentMatch, ...]:
    """Sort matches in the order that the module's docstring explains."""
    return tuple(
        sorted(
            matches,
            key=lambda match: (
                _ORDER.index(match.incident.severity),
                match.passes_on,
                IncidentTrait.ANY_SETTING in match.incident.traits,
                match.line,
                _uncertainty(match),
            ),
        )
    )


def _uncertainty(match: IncidentMatch) -> tuple[bool, int, int]:
    """The least is the surest: confirmed by versions, with more versions, with the more specific signature."""
    return not match.confirmed, -len(match.versions_seen), -match.specific


_SLOT = lazy_pattern(r"\{\w+\}")


def _measure_quotes(incident: Incident, lines: Sequence[int | None], line: int) -> int:
    """How specific the quotes of an incident in a line are: what also needs other words of the log counts more."""
    quoted = (item for item, place in zip(incident.signatures, lines, strict=False) if place == line)
    return len(incident.context) * 40 + max((len(_SLOT.sub("", item.text)) for item in quoted), default=0)


def explain_log(log: Path) -> str:
    """Return a line for each known failure in a log, the best first; the extension `knowngood.explain_log`."""
    from knowngood_facts.compat.rule_files import load_incidents

    with log.open("rb") as opened:
        matches = diagnose_log(opened, load_incidents()).matches
    lines = []
    for match in matches[:3]:
        fixes = "; ".join(str(fix["note"]) for fix in match.document()["fix"])
        lines.append(f"\nknown: {match.incident.title} [{match.incident.id}]" + (f"; fix: {fixes}" if fixes else ""))
    return "".join(lines)
