"""`knowngood render`: write or check the Dockerfiles of locked cells, the tables from facts and the CI workflows."""

from __future__ import annotations

import argparse
from pathlib import Path

from knowngood.base import base_image
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core import extensions
from knowngood.core.cell import parse_cell
from knowngood.core.local_files import write_atomically
from knowngood.core.notify import Notify
from knowngood.evidence import sealed_files
from knowngood.images import build_inputs, dockerfile
from knowngood.lock import cell_locking
from knowngood.project.cell_answers import JUDGEMENTS_FILE, CellAnswers, judge_cells
from knowngood.project.checkout import Project, find_checkout
from knowngood.reports import ci_jobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail with a diff when a file is out of date"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Render every cell that has a lock, the tables and the workflows."""
    with report_progress("render") as notify:
        return render_project(find_checkout("Dockerfiles, pages and README.md"), notify, check=arguments.check)


def render_project(project: Project, notify: Notify, *, check: bool) -> Answer:
    """Write the files of a project that other files determine, or with `check` only say whether they are current."""
    cells = project.matrix.cells  # a mistake in matrix.yaml comes before the first step
    notify("Dockerfiles")
    files = {}
    unlocked = []
    for cell in cells:
        locked = project.tree.load(cell)
        if locked is None:
            unlocked += [] if str(cell) in project.matrix.retired else [str(cell)]
            continue
        path = project.tree.cell_folder(cell) / "Dockerfile"
        files[path] = dockerfile.render_dockerfile(locked, project.templates)
    # A run that was made here since is no stale file: the ledger of a commit has the runs of that commit.
    if not check and (ledger := sealed_files.render_ledger(project.evidence)):
        files[project.evidence / sealed_files.LEDGER] = ledger
    notify("judging cells")
    answers = CellAnswers(project)
    left_out = [note for item in answers.runs.values() for note in item.standing.left_out]
    # Speed was also measured in environments that are no cell of the matrix.
    measured = dict.fromkeys(parse_cell(point.run.cell) for point in answers.speed_points)
    if judgements := judge_cells(project, dict.fromkeys([*project.matrix.cells, *measured])):
        files[project.root / JUDGEMENTS_FILE] = judgements.render()
    if (project.root / ci_jobs.WORKFLOW_FOLDER).is_dir():
        files |= {
            project.root / ci_jobs.WORKFLOW_FOLDER / name: text
            for name, text in ci_jobs.render_workflows(project.templates).items()
        }
    obsolete: list[Path] = []
    for name, render in extensions.load_extensions(extensions.RENDERED_FILES):
        notify(name)
        obsolete += render(project, files)
    notes = [f"{name} is not locked; run `knowngood lock '{name}'`" for name in unlocked]
    notes += [f"evidence left out: {reason}" for reason in left_out]
    if check:
        older = _stale_records(project)
        diff = dockerfile.describe_stale_files(files, [*project.tree.orphans(project.matrix.cells), *obsolete])
        if diff or notes:
            text = "\n".join([*notes, diff + ("stale; run `knowngood render`" if diff else "")])
            document = {"current": False, "diff": diff, "unlocked": unlocked, "left_out": left_out, "records": older}
            return Answer(1, document, "\n".join([*_describe_records(older), text]))
        document = {"current": True, "files": len(files), "records": older}
        lines = [*_describe_records(older), f"{len(files)} files are current", *project.foreign_knowledge]
        return Answer(0, document, "\n".join(lines))
    changed = [str(path.relative_to(project.root)) for path, text in files.items() if write_atomically(path, text)]
    with cell_locking.hold_lock_folder(project.tree):
        for path in obsolete:
            path.unlink()
        obsolete_paths = [*project.tree.prune(project.matrix.cells), *obsolete]
        removed = [str(path.relative_to(project.root)) for path in obsolete_paths]
    text = "\n".join([*notes, f"{len(changed)} of {len(files)} files changed", *changed])
    return Answer(0, {"changed": changed, "removed": removed, "unlocked": unlocked, "left_out": left_out}, text)


def _stale_records(project: Project) -> dict[str, list[str]]:
    """Return the cells whose `image.json` is older than something that determines the image, with what changed.

    Rendered files are not the cause, and `knowngood build --record` makes the record current.
    """
    stale = {}
    recipe = build_inputs.read_recipe_digest(project)
    for cell in project.matrix.cells:
        recorded, locked = project.tree.load_record(cell), project.tree.load(cell)
        base = base_image.read_base_digest(project, locked.base) if locked else None
        if (
            recorded
            and locked
            and base
            and (
                changed := build_inputs.read_image_shape(project, locked, base, recipe).describe_changes(recorded.shape)
            )
        ):
            stale[str(cell)] = list(changed)
    return stale


def _describe_records(older: dict[str, list[str]]) -> list[str]:
    return [
        f"{cell}: changed since its image was recorded: {', '.join(changed)}; `knowngood build --record '{cell}'`"
        for cell, changed in older.items()
    ]
