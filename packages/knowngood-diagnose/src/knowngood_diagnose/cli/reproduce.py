"""`knowngood reproduce [INCIDENT]`: make a known failure and its cure happen, or list what can be reproduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import UsageError
from knowngood.core.formatting import format_table
from knowngood.engine import container_engine
from knowngood.project.checkout import find_project
from knowngood_diagnose.reproductions import reproduction, reproduction_run
from knowngood_diagnose.reproductions.local_places import CurrentEnvironment, VirtualEnvironments, unpack_release
from knowngood_diagnose.reproductions.reproduce_image import ReproductionImages
from knowngood_diagnose.reproductions.reproduction_run import reproduce_failure, reproduction_exit_code
from knowngood_facts.compat.rule_files import load_incidents

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from knowngood.core.notify import Notify
    from knowngood_diagnose.reproductions.reproduction import ReproductionPlace


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "incident", nargs="?", metavar="INCIDENT", help="the id of an incident; without it, all are listed"
    )
    parser.add_argument(
        "--in",
        dest="place",
        choices=("image", "venv", "here"),
        default="image",
        help="images, built like those of cells; virtual environments on this machine; or the environment that "
        "knowngood runs in, unchanged (default: %(default)s)",
    )
    parser.add_argument(
        "--side", metavar="SIDE", help="only `failing`, `fixed` or the side with this name; writes no evidence"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Reproduce one incident, or list all that can be reproduced."""
    if arguments.incident is None:
        return _list_reproductions()
    case = reproduction.load_reproduction(arguments.incident)
    sides = case.definition.choose_sides(arguments.side)
    if not sides:
        known = ", ".join(map(repr, case.definition.sides))
        raise UsageError(f"{arguments.incident} has no side {arguments.side!r}; its sides are {known}")
    with report_progress(arguments.incident) as notify:
        place = _prepare_place(arguments.place, notify)
        evidence = reproduce_failure(case, _incidents(), place, unpack_release, sides=sides, notify=notify)
    path = None if arguments.side else reproduction_run.store_reproduction(evidence)
    text = _table(evidence, part=bool(arguments.side))
    if path:
        text += f"\nevidence: {path}"
    return Answer(reproduction_exit_code(evidence), {**evidence, "evidence": path and str(path)}, text)


def _prepare_place(name: str, notify: Notify) -> ReproductionPlace:
    if name == "here":
        return CurrentEnvironment()
    if name == "venv":
        return VirtualEnvironments(locked_at=find_project().matrix.locked_at)

    return ReproductionImages(find_project(), container_engine.ensure_engine(notify=notify))


def _incidents() -> Mapping[str, Any]:
    return {incident.id: incident for incident in load_incidents()}


def _table(evidence: Mapping[str, Any], *, part: bool) -> str:
    rows = [[side["side"], side["outcome"], reproduction_run.describe_side(side)] for side in evidence["sides"]]
    lines = [format_table(["side", "outcome", "what it did"], rows)]
    lines += [f"stands in: {item['module']}, for {item['for']}" for item in evidence["stand_ins"]]
    return "\n".join([*lines, *([] if part else [f"{evidence['reproduction']}: {evidence['outcome']}"])])


def _list_reproductions() -> Answer:
    rows, document = [], []
    for name in reproduction.list_reproductions():
        summary = reproduction_run.summarize_reproduction(name)
        last = summary.runs[-1] if summary.runs else None
        document.append(
            {
                "incident": name,
                "outcome": summary.outcome,
                "runs": [{key: item[key] for key in ("where", "when", "outcome", "file")} for item in summary.runs],
            }
        )
        where = ", ".join(sorted(item["where"] for item in summary.runs))
        rows.append([name, summary.outcome if last else "never run", where, last["file"] if last else ""])
    return Answer(0, document, format_table(["incident", "last seen", "in", "evidence"], rows))
