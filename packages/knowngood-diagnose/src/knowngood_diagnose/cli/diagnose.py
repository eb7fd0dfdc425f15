"""`knowngood diagnose`: find out what failed in a log, which component is at fault, and what fixes it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cli.main import Answer
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError, UsageError, error_from_os
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.local_files import FACTS_FOLDER
from knowngood_facts.cli.request_arguments import StatedRequest, add_list_argument, add_use_arguments, parse_request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from knowngood.core.gpus import GpuCatalog
    from knowngood_diagnose.failures.diagnosis import Diagnosis, IncidentMatch, LogSupplement, Remedy
    from knowngood_diagnose.failures.known_failures import KnownFailures
    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.log_scan import LogSource
    from knowngood_diagnose.failures.logs.logged_errors import LoggedError
    from knowngood_diagnose.failures.names.message_causes import MessageCause
    from knowngood_diagnose.failures.names.name_situation import NameCause
    from knowngood_facts.compat.incident import Incident
    from knowngood_facts.compat.universe import Universe


_SENTENCE_END = lazy_pattern(r"(?<=\w[.!?]) (?=[A-Z`])")
_EPILOG = """\
examples:
  my-training 2>&1 | knowngood diagnose
  pip freeze > freeze.txt; knowngood diagnose train.log -r freeze.txt --gpu A100

It explains failures of the environment of training: packages and their releases, binaries, builds, GPUs, drivers, CUDA,
kernels, NCCL, launchers, memory, containers. Of an error of your own code or data it says that it is yours, and where.

exit codes: 0 a known failure; 1 none, the log shows a run in health (losses, a clean end); 2 a file or option that
cannot be used; 3 nothing that is known, which says nothing about health
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("log", nargs="?", metavar="LOG", help="a log file (default: - for stdin)")
    add_use_arguments(parser, also=", or a version: transformers==4.44.2")
    add_list_argument(parser, also=", for what the log does not state")
    parser.add_argument(
        "--incidents", metavar="FOLDER", help="read the incidents of this folder instead of knowngood's own"
    )
    parser.add_argument(
        "--list", dest="words", nargs="+", metavar="WORD", help="list the known failures that are told in these words"
    )
    parser.add_argument(
        "--why", action="store_true", help="print the whole reason, every remedy and the sources of each answer"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Diagnose one log; exit 1 when it shows a run in health, and 3 when it shows nothing that is known."""
    from knowngood_diagnose.failures.known_failures import load_known_failures

    known = load_known_failures(Path(arguments.incidents) if arguments.incidents else None)
    if not arguments.words:
        return answer_log(arguments, known)
    if arguments.log:
        raise UsageError(f"--list searches the known failures and reads no log; leave {arguments.log} out")
    return _list_incidents(known.incidents, [word.lower() for word in arguments.words])


def _list_incidents(incidents: Sequence[Incident], words: Sequence[str]) -> Answer:
    """List the incidents whose texts have all words, first those whose titles have most of them; exit 1 for none."""
    listed = sorted((item for item in incidents if _has(item, words)), key=lambda item: _rank(item, words))
    shown = [f"{item.id}: {item.title}" for item in listed] or [f"no known failure is told in: {' '.join(words)}"]
    document = {"incidents": [{"incident": item.id, "title": item.title} for item in listed]}
    return Answer(0 if listed else 1, document, "\n".join(shown))


def _has(incident: Incident, words: Sequence[str]) -> bool:
    texts = (incident.id, incident.title, incident.because, *(item.text for item in incident.signatures))
    return all(word in " ".join(texts).lower() for word in words)


def _rank(incident: Incident, words: Sequence[str]) -> tuple[bool, int, str]:
    """The least is the best: it quotes the words one behind the other, and has them in its title."""
    quoted = (incident.title, *(item.text for item in incident.signatures))
    is_quoted = any(" ".join(words) in text.lower() for text in quoted)
    return not is_quoted, -len(set(words).intersection(incident.title.lower().split())), incident.id


def answer_log(arguments: argparse.Namespace, known: KnownFailures) -> Answer:
    """Diagnose one log by what is known already."""
    from knowngood_diagnose.failures.diagnosis import LogKnowledge, diagnose_log

    name = arguments.log or "-"
    if name == "-" and arguments.log is None and sys.stdin.isatty():
        raise UsageError("no log; name a file, or pipe it in: `my-training 2>&1 | knowngood diagnose`")
    supplement = _read_supplement(arguments, known)

    knowledge = LogKnowledge(load_lines=_function_lines, explain_names=_explain_names, explain_error=_explain_error)

    def diagnose(log: LogSource) -> Diagnosis:
        return diagnose_log(log, known.incidents, known.catalog, knowledge, supplement)

    if name == "-":
        diagnosis = diagnose(sys.stdin.buffer)
    else:
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name} is a folder; name the log file in it")
        try:
            with path.open("rb") as log:
                diagnosis = diagnose(log)
        except FileNotFoundError:
            raise UsageError(f"there is no file {name}") from None
        except OSError as error:
            raise error_from_os(error) or KnowngoodError(f"{name} cannot be read: {error}") from None
    diagnosis = _try_remedies(diagnosis, known)
    code = {"known": 0, "no-failure": 1, "unknown": 3}[diagnosis.outcome]
    return Answer(code, diagnosis.document(), _text(diagnosis, len(known.incidents), why=arguments.why))


def _read_supplement(arguments: argparse.Namespace, known: KnownFailures) -> LogSupplement | None:
    """Return what the options state beside the log, `None` without any."""
    from knowngood_diagnose.failures.diagnosis import LogSupplement

    if not (arguments.gpu or arguments.used or arguments.files):
        return None
    from knowngood_facts.compat.findings import conditions_apply
    from knowngood_facts.compat.rule import rule_from_incident
    from knowngood_facts.compat.use_conditions import settle_query

    pins = [text for text in arguments.used if "==" in text]
    used = [text for text in arguments.used if "==" not in text]
    request = parse_request(StatedRequest(requirements=pins, used=used, files=arguments.files, gpu=arguments.gpu))
    if used and known.catalog is not None:
        settled = settle_query(_load_universe(known, known.catalog, ()), request)
        request = settled.query
        for note in settled.notes:
            print(f"note: {note}", file=sys.stderr)
    versions = {
        item.name: f"{item.version}+{item.local}" if item.local else item.version
        for item in request.packages
        if item.version
    }
    versions |= dict(request.axes)
    if arguments.gpu and known.catalog is not None:
        versions["gpu"] = known.catalog.find_capabilities(arguments.gpu)[0].removeprefix("sm_")
    conditions = request.stated_conditions if used else {}

    def excludes(incident: Incident) -> bool:
        rule = rule_from_incident(incident) if conditions else None
        return rule is not None and conditions_apply(rule, conditions) is False

    return LogSupplement(versions=versions, excludes=excludes)


def _try_remedies(diagnosis: Diagnosis, known: KnownFailures) -> Diagnosis:
    """Return the diagnosis with its remedies tried against the facts, when there is something to try."""
    packages = diagnosis.packages_to_try
    if not packages or known.catalog is None:
        return diagnosis
    from knowngood_diagnose.failures.remedy_trial import try_remedies

    return try_remedies(diagnosis, _load_universe(known, known.catalog, packages))


def _load_universe(known: KnownFailures, gpus: GpuCatalog, packages: Collection[str]) -> Universe:
    """Return the facts about some packages with all rules, those of incidents among them."""
    from knowngood.evidence.model_runs import list_run_models
    from knowngood_facts.compat.factbook import FactFolder
    from knowngood_facts.compat.metadata_store import MetadataStore
    from knowngood_facts.compat.universe import build_universe
    from knowngood_facts.facts.package_metadata import read_package_metadata

    root = local_files.data_folder()
    folder = root / FACTS_FOLDER
    metadata = MetadataStore(read=lambda name: read_package_metadata(name, folder / "metadata"), names=tuple)
    book = FactFolder(path=folder, metadata=metadata).read_book(packages)
    return replace(build_universe(book, gpus, known.rules), models=list_run_models(root / "evidence"))


def _function_lines(package: str) -> Mapping[str, Any]:
    """Return release -> the lines of its functions, nothing when they were not harvested; raises `InputError`."""
    from knowngood_facts.facts.fact_store import LINES_FOLDER, load_fact_document

    try:
        document = load_fact_document(local_files.data_folder() / FACTS_FOLDER / LINES_FOLDER / f"{package}.json")
    except FileNotFoundError:
        return {}
    return {version: entry["facts"] for version, entry in document["releases"].items()}


def _explain_names(errors: Sequence[LoggedError], versions: Mapping[str, Sequence[str]]) -> Sequence[NameCause]:
    from knowngood_diagnose.failures.names import atlas_shelf, name_causes  # not at the top: most logs need none

    return name_causes.explain_names(errors, versions, atlas_shelf.open_shelf())


def _explain_error(
    error: LastError, versions: Mapping[str, Sequence[str]], causes: Sequence[NameCause]
) -> MessageCause | NameCause | None:
    from knowngood_diagnose.failures.explainers import explain_error  # not at the top: it imports all explainers

    return explain_error(error, versions, causes)


def _text(diagnosis: Diagnosis, known: int, *, why: bool) -> str:
    lines: list[str] = []
    for number, match in enumerate(diagnosis.matches, 1):
        lines += [*([""] if lines else []), *(_paragraph(number, match) if why else _summary(number, match))]
    lines = _with_outcome(diagnosis, lines, known)
    if diagnosis.install:
        lines += ["", f"the smallest change that fits the other versions in the log: {diagnosis.install}"]
    if diagnosis.excluded:
        lines.append(f"similar, but excluded by the versions in the log: {', '.join(diagnosis.excluded)}")
    for name, reading in diagnosis.traceback.items():
        if reading.claimed:
            lines.append(
                f"{name}: the log states {reading.claimed}, but {reading.frame} is a line of {reading.span}: "
                "another release runs, or its files were changed"
            )
        elif not reading.releases:
            lines.append(
                f"{name}: its lines in the traceback fit no release: releases are mixed, or files were changed"
            )
        elif name not in diagnosis.versions:
            lines.append(f"{name}: {reading.span}, by its lines in the traceback")
    versions_text = ", ".join(f"{name} {' / '.join(versions)}" for name, versions in diagnosis.versions.items())
    return "\n".join([*lines, f"versions in the log: {versions_text or 'none'}"])


def _with_outcome(diagnosis: Diagnosis, lines: list[str], known: int) -> list[str]:
    """The matches with what the log shows as a whole, after looking for so many known failures."""
    if diagnosis.health is not None and diagnosis.outcome == "no-failure":
        shown = f"line {diagnosis.health.line} shows a run in health: {diagnosis.health.text}"
        lines = [f"no failure: {shown}", *(["what else it has is harmless:"] if lines else []), *lines]
    elif diagnosis.outcome == "unknown":
        lines = [*_unknown(diagnosis, known), *(["what it has is harmless:"] if lines else []), *lines]
    elif diagnosis.last_error:
        lines += ["", f"the last error, in line {diagnosis.last_error.line}: {diagnosis.last_error.text}"]
    return lines


def _unknown(diagnosis: Diagnosis, known: int) -> list[str]:
    """What is known of a log whose failure is not."""
    error = diagnosis.last_error
    lines = [
        "unknown: nothing known is in this log",
        f"  looked for: {known} known failures, errors, tracebacks, words of trouble at its end, losses, a clean end",
    ]
    if error:
        lines = ["unknown: this log has an error that is no known failure"]
    if diagnosis.trouble:
        lines = [
            "unknown: this log has no error that is known, but tells of trouble",
            f"  the last such line, {diagnosis.trouble.line}: {diagnosis.trouble.text}",
        ]
    if diagnosis.is_cut:
        lines = ["unknown: this log ends within a traceback, before the error"]
    if error:
        lines.append(f"  the last error, in line {error.line}: {error.text}")
    if diagnosis.nearest:
        lines.append(f"  the nearest known failure: {diagnosis.nearest.title} [{diagnosis.nearest.id}]")
    if diagnosis.paste:
        lines.append(f"  what would say more, in the log or beside it (-r, --gpu): {', '.join(diagnosis.paste)}")
    return lines


def _summary(number: int, match: IncidentMatch) -> list[str]:
    """The cause in a line, one reason, and one remedy with the command that does it."""
    incident = match.incident
    lines = [
        _title(number, match),
        f"   line {match.line}; at fault: {incident.component}  [{incident.id}]",
        f"   {_SENTENCE_END.split(incident.because, maxsplit=1)[0]}",
    ]
    from knowngood_diagnose.failures.diagnosis import render_install_command

    fitting = next((remedy for remedy in match.fix if not remedy.broken_by), None)
    for remedy in match.fix if fitting is None else (fitting,):
        lines += _describe_remedy(remedy)
    if fitting is not None and fitting.pins:
        lines.append(f"   run: {render_install_command(fitting.pins)}")
    more = len(match.fix) - 1
    if more > 0 and fitting is not None:
        lines.append(f"   and {more} other remed{'y' if more == 1 else 'ies'}: --why")
    return lines


def _paragraph(number: int, match: IncidentMatch) -> list[str]:
    """All that is known of a match."""
    incident = match.incident
    sure = "versions confirmed by the log" if match.confirmed else incident.confidence
    lines = [
        _title(number, match),
        f"   line {match.line}; at fault: {incident.component}  [{incident.id}; {sure}; {', '.join(incident.source)}]",
        f"   {incident.because}",
    ]
    for remedy in match.fix:
        lines += _describe_remedy(remedy)
    return lines


def _title(number: int, match: IncidentMatch) -> str:
    how = "" if match.incident.severity == "failure" else f" ({match.incident.severity})"
    return f"{number}. {'likely: ' if match.certainty == 'likely' else ''}{match.incident.title}{how}"


def _describe_remedy(remedy: Remedy) -> list[str]:
    change = ", ".join(f"{name} {versions}" for name, versions in remedy.fix.change.items())
    cost = f" (costs: {remedy.fix.cost})" if remedy.fix.cost else ""
    only = f" (only on GPUs {remedy.fix.gpu})" if remedy.undecided else ""
    lines = [f"   fix: {': '.join(filter(None, [change, remedy.fix.note]))}{only}{cost}"]
    return [*lines, f"        not here: {remedy.broken_by}"] if remedy.broken_by else lines
