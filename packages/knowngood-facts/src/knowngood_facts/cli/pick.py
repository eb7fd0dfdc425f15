"""`knowngood pick`: find the best cells for a request, or the demands that contradict each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood.cli.main import Answer
from knowngood.evidence.cell_answer import describe_tier
from knowngood.evidence.sealed_files import UNSIGNED_EVIDENCE
from knowngood.project.cell_answers import CellAnswers
from knowngood.project.checkout import find_project
from knowngood_facts.cli.refresh import add_refresh_argument, load_fitting_knowledge
from knowngood_facts.cli.request_arguments import add_request_arguments, request_from_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_facts.cli.next_commands import NextCommand
    from knowngood_facts.compat.pick_answer import CellChoice, DemandClash, PickAnswer
    from knowngood_facts.compat.query import Query


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_request_arguments(parser)
    add_refresh_argument(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Print the best cells, or the conflict when no cell fits."""
    from knowngood_facts.cli import next_commands
    from knowngood_facts.compat.pick_answer import pick_cells

    request = request_from_arguments(arguments)
    known, request = load_fitting_knowledge(request, refresh=arguments.refresh)
    answer = pick_cells(known.for_query(request, cells=True), request, known.published)
    verdicts = next_commands.open_verdicts()
    commands = [next_commands.command_for_choice(choice, known.published, verdicts) for choice in answer.choices]
    last = next_commands.command_after_pick(answer, request, known, commands)
    document = answer.document()
    answers = CellAnswers(find_project())
    speed = [answers.speed_advice(choice.cell) if choice.published else "" for choice in answer.choices]
    for cell, command, fastest in zip(document["cells"], commands, speed, strict=True):
        cell |= {"next": command.document() if command else None, "speed": fastest or None}
    document["next"] = last.document()
    document["signed"] = known.published.seal is not None
    return Answer(answer.exit_code, document, _text(answer, request, commands, speed, last, signed=document["signed"]))


def _text(  # noqa: PLR0913
    answer: PickAnswer,
    request: Query,
    commands: Sequence[NextCommand | None],
    speed: Sequence[str],
    last: NextCommand,
    *,
    signed: bool,
) -> str:
    """Return the answer in words: what is not known first, then the cells or the conflict, a command at the end."""
    clashing = {rule["id"] for clash in answer.conflict for rule in clash.rules}
    lines = [
        f"{'unknown' if finding.id.startswith('unknown:') else finding.severity}: {finding.because}"
        for finding in answer.findings
        if finding.id not in clashing
    ]
    if answer.unknown and answer.choices:
        lines.append("what follows fits the rest of the request:")
    for choice, command, fastest in zip(answer.choices, commands, speed, strict=True):
        lines += _choice(choice, request.attn)
        lines += [f"  {fastest}"] if fastest else []
        lines += [f"  {command.text}"] if command else []
    if not signed and any(choice.published for choice in answer.choices):
        lines.append(UNSIGNED_EVIDENCE)
    if answer.conflict:
        what = "is known to fit" if answer.unsure else "fits"
        why = "ask for what is not known" if answer.unsure else "contradict each other"
        lines.append(f"nothing {what}, out of {answer.considered:,} combinations; these demands {why}:")
    lines += [f"not offered: {name}: {reason}" for name, reason in answer.left_out.items()]
    for clash in answer.conflict:
        lines += _clash(clash)
    lines += [*answer.coverage.text_lines(), *(f"note: {note}" for note in request.notes)]
    return "\n".join(lines if last in commands else [*lines, last.text])


def _choice(choice: CellChoice, setting: str | None) -> list[str]:
    state = describe_tier(choice.tier) if choice.published else "valid by facts and rules, not built"
    extras = "".join(f", with {name} {version}" for name, version in choice.extras.items() if version != "none")
    lines = [f"{choice.cell}  ({state}{extras})"]
    if choice.setting:
        limits = f"; there it refuses {', '.join(choice.setting.limits)}" if choice.setting.limits else ""
        lines.append(f"  {setting}: {choice.setting.text}{limits}")
    return lines + [f"  {finding.severity}: {finding.because}" for finding in choice.findings]


def _clash(clash: DemandClash) -> list[str]:
    lines = [f"  {clash.demand}"]
    lines += [f"    {rule['because']}  [{rule['id']}; {', '.join(rule['source'])}]" for rule in clash.rules]
    if clash.relax is None:
        return [*lines, "    giving this up alone does not help"]
    change = ", ".join(f"{name} {value}" for name, value in clash.relax["change"].items())
    return [*lines, f"    the nearest that works: {change}  ({clash.relax['cell']})"]
