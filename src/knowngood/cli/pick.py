"""`knowngood pick`: find the best cells for a request, or the demands that contradict each other."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from knowngood.cli.main import Answer
from knowngood.cli.request_arguments import add_request_arguments, request_from_arguments

if TYPE_CHECKING:
    from knowngood.compat.pick_answer import CellChoice, DemandClash, PickAnswer


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_request_arguments(parser)
    parser.add_argument(
        "--count",
        type=int,
        choices=range(1, 101),
        default=3,
        metavar="N",
        help="the most cells to list (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Print the best cells, or the conflict when no cell fits."""
    from knowngood.compat import knowledge
    from knowngood.compat.pick_answer import pick_cells

    request = request_from_arguments(arguments)
    known = knowledge.load_knowledge()
    for note in known.notes:
        print(note, file=sys.stderr)
    answer = pick_cells(known.for_query(request), request, known.published, count=arguments.count)
    return Answer(answer.exit_code, answer.document(), _text(answer))


def _text(answer: PickAnswer) -> str:
    lines: list[str] = []
    for choice in answer.choices:
        lines += _choice(choice)
    if answer.conflict:
        lines.append(f"nothing fits, out of {answer.considered:,} combinations; these demands contradict each other:")
    lines += [f"not offered: {name}: {reason}" for name, reason in answer.left_out.items()]
    for clash in answer.conflict:
        lines += _clash(clash)
    lines += [f"{finding.severity}: {finding.because}" for finding in answer.findings]
    return "\n".join(lines)


def _choice(choice: CellChoice) -> list[str]:
    state = choice.tier if choice.published else "valid by facts and rules, not built"
    extras = "".join(f", with {name} {version}" for name, version in choice.extras.items())
    warnings = [f"  {finding.severity}: {finding.because}" for finding in choice.findings]
    return [f"{choice.cell}  ({state}{extras})", *warnings]


def _clash(clash: DemandClash) -> list[str]:
    lines = [f"  {clash.demand}"]
    lines += [f"    {rule['because']}  [{rule['id']}; {', '.join(rule['source'])}]" for rule in clash.rules]
    if clash.relax is None:
        return [*lines, "    giving this up alone does not help"]
    change = ", ".join(f"{name} {value}" for name, value in clash.relax["change"].items())
    return [*lines, f"    the nearest that works: {change}  ({clash.relax['cell']})"]
