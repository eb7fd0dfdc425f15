"""The command with which an answer of `pick` and `check` ends, so that it can be typed as it is printed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.cli.main import Answer
from knowngood.core.cell import Cell, parse_cell, parse_framework
from knowngood.core.errors import UsageError
from knowngood.launch.cell_verdict import list_run_words
from knowngood.project.checkout import Project, find_project
from knowngood_facts.compat.check_answer import CheckAnswer, CheckVerdict
from knowngood_facts.compat.query import MACHINE, VERSION_AXES, PackageSpec, Query

if TYPE_CHECKING:
    from knowngood.launch.cell_verdict import CellVerdicts
    from knowngood_facts.compat.knowledge import CompatKnowledge
    from knowngood_facts.compat.matrix_cells import PublishedCells
    from knowngood_facts.compat.pick_answer import CellChoice, PickAnswer

_LIST_CELLS = "knowngood cells"


@dataclass(frozen=True, kw_only=True)
class NextCommand:
    """A command to type next."""

    command: str
    purpose: str
    """What it is for: `run it`, `add it`, ..."""
    note: str = ""
    """What it costs, or what it needs."""

    @property
    def text(self) -> str:
        """The command as it is printed, on a line that is not wrapped, and below it the note."""
        return f"{self.purpose}: {self.command}" + (f"\n    ({self.note})" if self.note else "")

    def document(self) -> dict[str, str]:
        """The value as `--json` prints it."""
        return {"command": self.command, "purpose": self.purpose, "note": self.note}


def open_verdicts() -> CellVerdicts:
    """Return the verdicts on the project's cells, for this machine and the engine that answers here."""
    from knowngood.engine import container_engine
    from knowngood.launch.cell_verdict import CellVerdicts
    from knowngood.project.cell_answers import CellAnswers

    answers = CellAnswers(Project(find_project().root))  # matrix.yaml may have been written since it was read
    return CellVerdicts(answers, container_engine.find_running_engine(builds=False), os.environ)


def command_to_run_cell(cell: Cell, verdicts: CellVerdicts) -> NextCommand:
    """Return the command that runs a program in the image of a cell, as the pages have it, with what that costs."""
    if str(cell) in verdicts.project.matrix.entries:
        verdict = verdicts.judge(cell)
        words, note = verdict.run_words(), verdict.cost
    else:
        words = list_run_words(str(cell), locked=False, compiling=cell.flash_attn_package == "flash-attn")
        note = ""
    return NextCommand(command=" && ".join(map(shlex.join, words)), purpose="run it", note=note)


def command_to_add(choice: CellChoice) -> NextCommand:
    """Return the command that adds a cell that `pick` offers to matrix.yaml."""
    cell, requirements = cell_with_extras(choice)
    words = [str(cell)]
    if requirements:
        cell = choice.cell
        pins = {"torch": cell.torch, "transformers": cell.transformers, "flash-attn": "none", "flash-attn-4": "none"}
        pins |= {cell.flash_attn_package or "flash-attn": cell.flash_attn if cell.flash_attn_package else "none"}
        words = ["--gpu", cell.gpu, "--python", cell.python]
        words += [f"{name}=={version}" for name, version in (pins | dict(choice.extras)).items()]
    return NextCommand(command=shlex.join(["knowngood", "add", *words]), purpose="add it")


def cell_with_extras(choice: CellChoice) -> tuple[Cell, tuple[str, ...]]:
    """Return the cell that `pick` offers with the first of its extras as its framework, and requirements for the rest.

    A package whose name an id cannot have, such as transformer-engine-cu12, is a requirement too.
    """
    cell, requirements = choice.cell, []
    for name, version in choice.extras.items():
        if version == "none":
            continue
        if cell.framework_pin is None and _is_framework(name, version):
            cell = replace(cell, framework=name + version)
        else:
            requirements.append(f"{name}=={version}")
    return cell, tuple(requirements)


def _is_framework(name: str, version: str) -> bool:
    try:
        return parse_framework(name + version) == (name, version)
    except UsageError:
        return False


def command_for_choice(choice: CellChoice, published: PublishedCells, verdicts: CellVerdicts) -> NextCommand | None:
    """Return the command for one cell that `pick` offers; `None` when no base has its Python."""
    if choice.published:
        return command_to_run_cell(choice.cell, verdicts)
    return command_to_add(choice) if choice.cell.python in published.pythons else None


def command_after_pick(
    answer: PickAnswer, request: Query, known: CompatKnowledge, commands: Sequence[NextCommand | None]
) -> NextCommand:
    """Return the command with which the whole answer of `pick` ends; `commands` are those for its choices."""
    if command := next(filter(None, commands), None):
        return command
    if answer.choices and known.published.pythons:
        python = {"python": known.published.pythons[0]}
        note = f"no base of matrix.yaml has Python {answer.choices[0].cell.python}"
        return NextCommand(command=request_command("pick", request, python), purpose="try", note=note)
    if harvest := _command_to_harvest(answer.findings, known):
        return harvest
    changes = [clash.relax["change"] for clash in answer.conflict if clash.relax]
    if changes:  # another release comes before leaving out what was asked for, and a user's card is given up last

        def loss(change: Mapping[str, str]) -> tuple[bool, bool, bool]:
            return bool({"gpu", MACHINE} & change.keys()), "none" in change.values(), "attn" in change

        least = min(changes, key=loss)
        return NextCommand(command=request_command("pick", request, least), purpose="try")
    return NextCommand(command=_LIST_CELLS, purpose="what there is")


def end_check_answer(
    answer: Answer, known: CompatKnowledge, request: Query, result: CheckAnswer, *, refreshed: bool = False
) -> Answer:
    """Return the answer of `check` with the command to type next, as its last line and as the key `next`.

    `refreshed` says that what is missing was asked for from the index already.
    """
    command = None if refreshed else _command_to_refresh(request, result)
    command = command or _command_after_check(known, request, result)
    return replace(
        answer, document={**answer.document, "next": command.document()}, text=f"{answer.text}\n  {command.text}"
    )


def _command_after_check(known: CompatKnowledge, request: Query, result: CheckAnswer) -> NextCommand:
    covered = [package for package in request.packages if package.name in {*known.packages, *result.covered}]
    request = replace(request, packages=tuple(covered))
    if result.cell:
        return command_to_run_cell(parse_cell(result.cell), open_verdicts())
    if result.verdict is CheckVerdict.BROKEN and result.changes:
        return NextCommand(command=request_command("check", request, result.changes), purpose="try")
    if result.verdict is CheckVerdict.UNKNOWN and (harvest := _command_to_harvest(result.findings, known)):
        return harvest
    pinned = {package.name for package in covered if package.version}
    if result.verdict is CheckVerdict.COMPATIBLE and request.gpu and {"torch", "transformers"} <= pinned:
        from knowngood_facts.compat.pick_answer import pick_cells

        answer = pick_cells(known.for_query(request, cells=True), request, known.published, count=1)
        verdicts = open_verdicts()
        commands = [command_for_choice(choice, known.published, verdicts) for choice in answer.choices]
        return command_after_pick(answer, request, known, commands)
    if result.verdict is not CheckVerdict.BROKEN and covered:
        return NextCommand(command=request_command("pick", request, {}), purpose="pick a cell")
    return NextCommand(command=_LIST_CELLS, purpose="what there is")


def _command_to_refresh(request: Query, result: CheckAnswer) -> NextCommand | None:
    """Return the same question with `--refresh`, where metadata was not read and the command line has all of it."""
    is_typed = all(package.explicit for package in request.packages) and not result.coverage.lines
    if result.verdict is not CheckVerdict.UNKNOWN or not is_typed:
        return None
    if not any(part.matters and part.kind == "metadata" for part in result.coverage.parts):
        return None
    command = request_command("check", request, {}) + " --refresh"
    return NextCommand(command=command, purpose="try", note="reads what is missing from the index")


def _command_to_harvest(findings: tuple[object, ...], known: CompatKnowledge) -> NextCommand | None:
    """Return the command that reads the facts of packages of which a release is not known."""
    ids = [str(getattr(finding, "id", "")).removeprefix("unknown:") for finding in findings]
    names = [name for name in dict.fromkeys(ids) if name in known.packages]
    note = "reads new releases from the index"
    return NextCommand(command=f"knowngood harvest {' '.join(names)}", purpose="try", note=note) if names else None


def request_command(command: str, request: Query, changes: Mapping[str, str]) -> str:
    """Return the command line that asks a request with some axes and packages changed."""
    options = {"gpu": request.gpu, **request.axes, "attn": request.attn or request.hub_kernel}
    options |= {name: value for name, value in changes.items() if name in ("gpu", "attn", *VERSION_AXES)}
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", value)]
    conditions = {key: changes.get(key, value) for key, value in request.conditions.items()}
    words += [word for key, value in conditions.items() for word in ("--with", f"{key}={value}")]
    packages = {package.name: _package_text(package, changes.get(package.name)) for package in request.packages}
    packages |= {
        name: f"{name}=={value}" for name, value in changes.items() if name not in {*options, *conditions, *packages}
    }
    return shlex.join(["knowngood", command, *words, *packages.values()])


def _package_text(package: PackageSpec, release: str | None) -> str:
    """Return a package as a requirement, with its extras, and with another release where one is given."""
    extras = f"[{','.join(package.extras)}]" if package.extras else ""
    if release is not None:
        return f"{package.name}{extras}=={release}"
    local = f"+{package.local}" if package.local and package.version else ""
    return f"{package.name}{extras}{package.text.removeprefix(package.name)}{local}"
