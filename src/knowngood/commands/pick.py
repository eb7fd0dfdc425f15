"""`knowngood pick`: the best cells for a request, or the demands that collide."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from knowngood.cli import Answer
from knowngood.commands.asking import add_request, request_of

if TYPE_CHECKING:
    from knowngood.solving.picked import Choice, Clash, Picked


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_request(parser)
    parser.add_argument(
        "--count", type=int, choices=range(1, 101), default=3, metavar="N", help="how many cells at most (3)"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Pick."""
    from knowngood.solving import knowledge
    from knowngood.solving.picking import pick

    request = request_of(arguments)
    known = knowledge.read()
    for note in known.notes:
        print(note, file=sys.stderr)
    picked = pick(known.for_request(request), request, known.published, count=arguments.count)
    return Answer(picked.exit_code, picked.document(), _text(picked))


def _text(picked: Picked) -> str:
    lines: list[str] = []
    for choice in picked.choices:
        lines += _choice(choice)
    if picked.conflict:
        lines.append(f"nothing fits, out of {picked.considered:,} combinations; these demands collide:")
    for clash in picked.conflict:
        lines += _clash(clash)
    lines += [f"{finding.severity}: {finding.because}" for finding in picked.findings]
    return "\n".join(lines)


def _choice(choice: Choice) -> list[str]:
    state = choice.tier if choice.published else "valid by facts and rules, not built"
    extras = "".join(f", with {name} {version}" for name, version in choice.extras.items())
    warnings = [f"  {finding.severity}: {finding.because}" for finding in choice.findings]
    return [f"{choice.cell}  ({state}{extras})", *warnings]


def _clash(clash: Clash) -> list[str]:
    lines = [f"  {clash.demand}"]
    lines += [f"    {rule['because']}  [{rule['id']}; {', '.join(rule['source'])}]" for rule in clash.rules]
    if clash.relax is None:
        return [*lines, "    giving this up alone does not help"]
    change = ", ".join(f"{name} {value}" for name, value in clash.relax["change"].items())
    return [*lines, f"    the nearest that works: {change}  ({clash.relax['cell']})"]
