"""`knowngood add [ID | NAME==VERSION ...]`: add a cell to matrix.yaml, lock it and render its files."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.cli import render, shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core import matrix as matrix_file
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.errors import InputError, KnowngoodError, UnknownError, UsageError
from knowngood.core.local_files import write_atomically
from knowngood.core.matrix_entries import MatrixAddition, insert_matrix_entry, render_matrix_entry
from knowngood.evidence.cell_answer import BrokenCellError
from knowngood.lock import cell_locking, wheelhouse
from knowngood.lock.cell_locking import NoWheelError
from knowngood.project import core_facts
from knowngood.project.checkout import MATRIX_FILE, Project, find_checkout, find_project, read_matrix_text
from knowngood_facts.cli import next_commands
from knowngood_facts.cli.request_arguments import add_request_arguments, request_from_arguments
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.cell_judgement import find_cell_errors
from knowngood_facts.compat.matrix_cells import packages_of_cell
from knowngood_facts.compat.pick_answer import pick_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood.core.matrix import Matrix
    from knowngood_facts.compat.knowledge import CompatKnowledge

_REQUEST_OPTIONS = ("gpu", "driver", "python", "attn", "used")


@dataclass(frozen=True, kw_only=True)
class _NewCell:
    """A cell that is to be added: where it stands in the new text of matrix.yaml, and that text as a matrix."""

    cell: Cell
    addition: MatrixAddition
    matrix: Matrix


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_request_arguments(parser)
    parser.add_argument("--base", metavar="NAME", help="the base of the cell (default: the first with its Python)")
    parser.add_argument("--dry-run", action="store_true", help="print the entry and do nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Add the cell with this id, or the best one for a request that is not in matrix.yaml."""
    project = find_project() if arguments.dry_run else find_checkout("matrix.yaml and the files of the cell")
    known = knowledge.load_knowledge()
    cell, extras = _choose_cell(arguments, project.matrix, known)
    text = _read_matrix_text(project)
    day = _find_later_day(known, project.matrix, cell, extras)
    new = _add_to_text(text, project.matrix, cell, extras, arguments.base, day)
    _refuse_broken_cell(known, new)
    command = next_commands.command_to_run_cell(cell, next_commands.open_verdicts())
    place = f"{MATRIX_FILE}:{new.addition.line}"
    document = {"id": str(cell), "entry": new.addition.entry, "line": new.addition.line, "next": command.document()}
    matrix_day = project.matrix.locked_at
    document["locked_at"] = day or matrix_day
    moved = [f"locked-at: {day}, since it has a release of that day; other cells stay at {matrix_day}"] if day else []
    if arguments.dry_run:
        document |= {"written": False, "locked": False}
        lines = [f"{place}: would get", new.addition.entry.rstrip("\n"), *moved, f"then {command.text}"]
        return Answer(0, document, "\n".join(lines))
    lock_note, locked = _lock_and_write(project, new, text)
    with report_progress("render") as notify:
        rendered = render.render_project(Project(project.root), notify, check=False)
    command = next_commands.command_to_run_cell(cell, next_commands.open_verdicts())
    document["next"] = command.document()
    document |= {"written": True, "locked": locked, "changed": rendered.document["changed"]}
    lines = [f"{place}: added", new.addition.entry.rstrip("\n"), *moved, lock_note]
    return Answer(0, document, "\n".join([*lines, f"rendered: {rendered.text.splitlines()[0]}", command.text]))


def _choose_cell(arguments: argparse.Namespace, matrix: Matrix, known: CompatKnowledge) -> tuple[Cell, tuple[str, ...]]:
    """Return the cell, and the requirements that its id cannot name."""
    if (cell := _cell_of_words(arguments.requirements)) is not None:
        shared_arguments.refuse_options(arguments, _REQUEST_OPTIONS, "does nothing with a cell id, which says it all")
        _refuse_duplicate(cell, matrix)
        return cell, ()
    request = request_from_arguments(arguments)
    if not request.packages and request.gpu is None:
        raise UsageError(
            "nothing to add; give a cell id, or what `knowngood pick` takes, as in --gpu H100 torch==2.11.0"
        )
    answer = pick_cells(known.for_query(request, cells=True), request, known.published)
    # Unread names do not hold a cell back: `pick` says them beside it.
    if unknown := [finding.because for finding in answer.findings if finding.id.startswith("unknown:")]:
        raise UnknownError("; ".join(unknown))
    if not answer.choices:
        command = next_commands.request_command("pick", request, {})
        raise KnowngoodError(f"no cell fits; `{command}` says why, and what is nearest")
    choice = answer.choices[0]
    _refuse_duplicate(choice.cell, matrix)
    cell, extras = next_commands.cell_with_extras(choice)
    _refuse_duplicate(cell, matrix)
    return cell, extras


def _cell_of_words(words: Sequence[str]) -> Cell | None:
    """Return the cell when the only word is its id."""
    with contextlib.suppress(UsageError):
        return parse_cell(words[0]) if len(words) == 1 else None
    return None


def _refuse_duplicate(cell: Cell, matrix: Matrix) -> None:
    if str(cell) in matrix.entries:
        command = next_commands.command_to_run_cell(cell, next_commands.open_verdicts())
        raise KnowngoodError(f"matrix.yaml has {cell} already; {command.purpose}: `{command.command}`")


def _read_matrix_text(project: Project) -> str:
    """Return the text of matrix.yaml with its line ends as they are."""
    return read_matrix_text(project.root)


def _find_later_day(known: CompatKnowledge, matrix: Matrix, cell: Cell, extras: tuple[str, ...]) -> str:
    """Return the day of the newest release that a cell names, where matrix.yaml's `locked-at` is before it; else ''."""
    pins = packages_of_cell(cell) | dict(text.split("==", 1) for text in extras if "==" in text)
    days = []
    for name, version in pins.items():
        package = known.universe.metadata.find_package(name)
        place = package.domain.index.get(version) if package else None
        days += [package.releases[place].uploaded] if package and place is not None else []
    return max((day for day in days if day > matrix.locked_at), default="")


def _add_to_text(  # noqa: PLR0913, PLR0917
    text: str, matrix: Matrix, cell: Cell, extras: tuple[str, ...], base: str | None, locked_at: str
) -> _NewCell:
    """Return the new text, after checking that the whole file is valid and has the cell.

    Raises:
        UsageError: matrix.yaml cannot have this cell.
    """
    if base is None:
        bases = [name for name, item in matrix.bases.items() if item.python == cell.python]
        if not bases:
            have = ", ".join(f"{item.python} ({name})" for name, item in matrix.bases.items())
            raise UsageError(f"{cell}: no base of matrix.yaml has Python {cell.python}; they have {have}")
        base = bases[0]
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    addition = insert_matrix_entry(
        text.removeprefix(mark), MATRIX_FILE, render_matrix_entry(cell, base, extras, locked_at)
    )
    addition = replace(addition, text=mark + addition.text)
    try:
        new = matrix_file.parse_matrix(addition.text.removeprefix(mark), MATRIX_FILE, core_facts.load_matrix_facts())
    except InputError as error:
        reasons = "; ".join(problem.text for problem in error.problems)
        raise UsageError(f"{cell} cannot be added: {reasons}") from None
    if str(cell) not in new.entries:
        other = next(name for name in new.entries if name not in matrix.entries)
        raise UsageError(f"there is no {cell}: with these releases the cell is {other}; `knowngood add {other}`")
    return _NewCell(cell=cell, addition=addition, matrix=new)


def _refuse_broken_cell(known: CompatKnowledge, new: _NewCell) -> None:
    """Raise `BrokenCellError` when rules forbid the cell and no amendment of matrix.yaml waives that."""
    waived = {finding for item in new.matrix.amendments if item.when.matches(new.cell) for finding in item.waive}
    glibc = new.matrix.bases[new.matrix.entry(new.cell).base].glibc
    errors = [item for item in find_cell_errors(known.universe, new.cell, glibc) if item.id not in waived]
    if errors:
        raise BrokenCellError(new.cell, tuple(errors))


def _lock_and_write(project: Project, new: _NewCell, text: str) -> tuple[str, bool]:
    """Lock the cell, then write matrix.yaml, and return a sentence about the lock and whether there is one.

    When locking fails, nothing was written. A wheel that is compiled from the cell cannot be there yet: the cell is
    then added without a lock, and building it compiles the wheel and locks it.
    """
    old = project.matrix
    try:
        with report_progress(str(new.cell)) as notify:
            result = cell_locking.lock_cell(
                new.matrix.entry(new.cell),
                cell_locking.LockingPlace(
                    matrix=new.matrix,
                    tree=project.tree,
                    wheel_folder=wheelhouse.wheelhouse_folder(),
                    cxx11abi=core_facts.load_torch_cxx11abi,
                    notify=notify,
                ),
            )
    except NoWheelError as error:
        note, locked = f"not locked yet: {error}", False
    else:
        size = sum(item.size for item in result.lock.distributions)
        note = f"locked: {len(result.lock.distributions)} distributions, {size / 1e9:.2f} GB of wheels"
        locked = True
    try:
        _replace_matrix_text(project, text, new.addition.text)
    except BaseException:
        if locked:
            with cell_locking.hold_lock_folder(project.tree):
                project.tree.prune(old.cells)
        raise
    return note, locked


def _replace_matrix_text(project: Project, before: str, after: str) -> None:
    """Write matrix.yaml. Raises `KnowngoodError` when its text is no longer `before`."""
    if _read_matrix_text(project) != before:
        raise KnowngoodError(f"{MATRIX_FILE} was changed meanwhile, so nothing was added; run it again")
    write_atomically(project.root / MATRIX_FILE, after)
