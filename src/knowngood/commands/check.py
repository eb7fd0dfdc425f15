"""`knowngood check`: does this combination work."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.cli import Answer
from knowngood.commands.asking import add_request, request_of
from knowngood.errors import KnowngoodError, UsageError

if TYPE_CHECKING:
    from knowngood.solving.knowledge import Knowledge
    from knowngood.solving.query import Request
    from knowngood.solving.verdict import Result


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_request(parser)
    parser.add_argument("-r", "--requirements", dest="files", action="append", default=[], metavar="FILE")
    parser.add_argument("--here", action="store_true", help="what is installed beside the python in use")
    parser.add_argument("--batch", metavar="FILE", help="a query a line (JSON), an answer a line; - is stdin")


def run(arguments: argparse.Namespace) -> Answer:
    """Answer one question, or a batch."""
    from knowngood.solving import knowledge

    if arguments.batch is not None:
        return _batch(knowledge.read(), arguments.batch)
    if not (arguments.requirements or arguments.files or arguments.here) and not sys.stdin.isatty():
        arguments.files = ["-"]
    request = request_of(arguments)
    if not request.packages and request.gpu is None and not request.axes:
        raise UsageError("nothing to check; name packages, as in torch==2.6.0, or give -r FILE, --here or --batch FILE")
    known = knowledge.read()
    for note in known.notes:
        print(note, file=sys.stderr)
    result = answer(known, request)
    return Answer(result.verdict.exit_code, result.document(), _text(result))


def answer(known: Knowledge, request: Request) -> Result:
    """The answer to a request."""
    from knowngood.solving.check import check

    return check(known.for_request(request), request, known.published)


def _batch(known: Knowledge, name: str) -> Answer:
    """One compact answer a line; a line that is no query is answered with its error, and the others go on."""
    source = sys.stdin if name == "-" else Path(name).open(encoding="utf-8")  # noqa: SIM115 - closed below
    import gc

    gc.freeze()  # the universe stays; looking through it for garbage after each few answers is a tenth of the time
    code = 0
    write = sys.stdout.write
    with source as lines:
        for line in lines:
            if not line.strip():
                continue
            made = _line(known, line)
            code = 2 if "error" in made else code
            write(json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n")
    return Answer(code, None)


def _line(known: Knowledge, line: str) -> dict[str, Any]:
    from knowngood.solving import query

    try:
        return answer(known, query.from_document(json.loads(line))).document()
    except ValueError as error:
        return {"error": f"not a JSON document: {error}", "exit": 2}
    except KnowngoodError as error:
        return {"error": str(error), "exit": error.exit_code}


def _text(result: Result) -> str:
    lines = [str(result.verdict)]
    for finding in result.findings:
        packages = " ".join(f"{name} {version}" for name, version in finding.packages.items())
        condition = "".join(f" when {key} {value}" for key, value in finding.when.items())
        lines.append(f"  {finding.severity}{condition}: {finding.because}")
        sources = ", ".join((*finding.source, *finding.pages))
        lines.append(f"    {packages}  [{finding.id}; {finding.confidence}; {sources}]")
        lines += [f"    fix: {_fix(fix)}" for fix in finding.fix]
    if result.changes:
        lines.append("  change: " + ", ".join(f"{name} to {version}" for name, version in result.changes.items()))
    if result.cell:
        lines.append(f"  cell: {result.cell}")
    lines += [f"  seen: {run}" for run in result.evidence]
    if result.uncovered:
        lines.append(f"  not covered by facts: {', '.join(result.uncovered)}")
    return "\n".join([*lines, *(f"  note: {note}" for note in result.notes)])


def _fix(fix: Any) -> str:
    change = ", ".join(f"{name} {version}" for name, version in (fix.get("change") or {}).items())
    return ": ".join(filter(None, [change, str(fix.get("note", ""))]))
