"""`knowngood check`: does this combination of packages, GPU and driver work?"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood_facts.cli.refresh import add_refresh_argument, load_fitting_knowledge
from knowngood_facts.cli.request_arguments import add_list_argument, add_request_arguments, request_from_arguments

if TYPE_CHECKING:
    from knowngood_facts.compat.check_answer import CheckAnswer
    from knowngood_facts.compat.findings import Finding
    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.compat.query import Query

_NOT_WITH_BATCH = (
    "requirements",
    "files",
    "here",
    "extras",
    "groups",
    "all",
    "gpu",
    "driver",
    "nvcc",
    "python",
    "glibc",
    "attn",
    "used",
    "refresh",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_request_arguments(parser)
    parser.add_argument(
        "--nvcc", metavar="VERSION", help="the version of the CUDA toolkit that compiles extensions, such as 12.8"
    )
    parser.add_argument("--glibc", metavar="VERSION")
    add_list_argument(parser)
    parser.add_argument(
        "--extra", dest="extras", action="append", default=[], metavar="NAME", help="an extra of the project in FILE"
    )
    parser.add_argument(
        "--group", dest="groups", action="append", default=[], metavar="NAME", help="a group of the project in FILE"
    )
    parser.add_argument("--here", action="store_true", help="check what is installed beside the python in use")
    parser.add_argument(
        "--all", action="store_true", help="show also what holds only under conditions of use that were not stated"
    )
    add_refresh_argument(parser)
    parser.add_argument(
        "--batch", metavar="FILE", help="read a query (JSON) from each line and print an answer in a line; - is stdin"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Answer one question, or a file of questions."""
    from knowngood_facts.cli import next_commands
    from knowngood_facts.compat import knowledge

    if arguments.batch is not None:
        shared_arguments.refuse_options(arguments, _NOT_WITH_BATCH, "does nothing with --batch, whose queries state it")
        return _answer_batch(knowledge.load_knowledge(refreshed=True), arguments.batch)
    if not (arguments.requirements or arguments.files or arguments.here) and not sys.stdin.isatty():
        arguments.files = ["-"]
    if (arguments.extras or arguments.groups) and not arguments.files:
        raise UsageError("--extra and --group name parts of a project; give its file with -r, as in -r pyproject.toml")
    request = request_from_arguments(arguments)
    if not (request.packages or request.unread or request.gpu is not None or request.axes):
        raise UsageError("nothing to check; name packages, as in torch==2.6.0, or give -r FILE, --here or --batch FILE")
    known, request = load_fitting_knowledge(request, refresh=arguments.refresh)
    result = _answer_query(known, request)
    result = replace(result, notes=(*request.notes, *result.notes, *known.seal_notes))
    answer = Answer(result.verdict.exit_code, result.document(), _text(result, request, show_all=arguments.all))
    return next_commands.end_check_answer(answer, known, request, result, refreshed=arguments.refresh)


def _answer_query(known: CompatKnowledge, request: Query, *, of_many: bool = False) -> CheckAnswer:
    from knowngood_facts.compat.check_answer import check_query

    return check_query(known.for_query(request, whole=of_many), request, known.published)


def _answer_batch(known: CompatKnowledge, name: str) -> Answer:
    """Print one compact answer for each line. A line that is not a query is answered with its error."""
    source = sys.stdin if name == "-" else Path(name).open(encoding="utf-8")  # noqa: SIM115 - closed below
    gc.freeze()  # the universe stays; collecting garbage in it took a tenth of the time
    code = 0
    write = sys.stdout.write
    with source as lines:
        for line in lines:
            if not line.strip():
                continue
            answer = _answer_line(known, line)
            code = 2 if "error" in answer else code
            write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")) + "\n")
    return Answer(code, None)


def _answer_line(known: CompatKnowledge, line: str) -> dict[str, Any]:
    from knowngood_facts.compat import query

    try:
        return _answer_query(known, query.query_from_document(json.loads(line)), of_many=True).document()
    except (ValueError, RecursionError) as error:
        return {"error": f"not a JSON document: {error}", "exit": 2}
    except KnowngoodError as error:
        return {"error": str(error), "exit": error.exit_code}


def _text(result: CheckAnswer, request: Query, *, show_all: bool) -> str:
    """The answer for people: the verdict, the change, then the reasons."""
    lines = [str(result.verdict)]
    if result.changes:
        lines.append("  change: " + ", ".join(f"{name} to {version}" for name, version in result.changes.items()))
    if result.cell:
        lines.append(f"  cell: {result.cell}")
    left_out = [finding for finding in result.findings if finding.undecided and not show_all]
    for finding in result.findings:
        if finding not in left_out:
            lines += _finding_lines(finding)
    if left_out:
        keys = {key for finding in left_out for key in finding.when} - request.stated_conditions.keys()
        hold = "1 more holds" if len(left_out) == 1 else f"{len(left_out)} more hold"
        shown = "shows it" if len(left_out) == 1 else "shows them"
        lines.append(f"  {hold} only under conditions that were not stated ({', '.join(sorted(keys))}): --all {shown}")
    lines += [f"  evidence: {run}" for run in result.evidence]
    if result.uncovered or result.coverage.lines:
        alone = f" (without the rest: {result.covered_verdict})" if result.covered else ""
        lines.append(f"  covered by facts: {_listed(result.covered) or 'nothing'}{alone}")
    lines += [f"  {line}" for line in result.coverage.text_lines()]
    return "\n".join([*lines, *(f"  note: {note}" for note in result.notes)])


def _listed(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}".rstrip() for name, version in packages.items())


def _finding_lines(finding: Finding) -> list[str]:
    packages = " ".join(f"{name} {version}" for name, version in finding.packages.items())
    condition = "".join(f" when {key} {value}" for key, value in finding.when.items())
    sources = ", ".join((*finding.source, *finding.pages))
    return [
        f"  {finding.severity}{condition}: {finding.because}",
        f"    {packages}  [{finding.id}; {finding.confidence}; {sources}]",
        *(f"    fix: {_fix(fix)}" for fix in finding.fix),
    ]


def _fix(fix: Any) -> str:
    change = ", ".join(f"{name} {version}" for name, version in (fix.get("change") or {}).items())
    return ": ".join(filter(None, [change, str(fix.get("note", ""))]))
