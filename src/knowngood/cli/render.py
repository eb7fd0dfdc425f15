"""`knowngood render`: write or check the Dockerfiles of locked cells, the tables from facts and the CI workflows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from knowngood.base import base_image
from knowngood.cli.main import Answer
from knowngood.compat import knowledge
from knowngood.compat.knowledge import CompatKnowledge
from knowngood.compat.rule_files import load_incidents, load_run_incidents
from knowngood.core.local_files import write_atomically
from knowngood.evidence import cell_runs, model_runs, run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.facts.broken_use_table import read_broken_use_tables
from knowngood.facts.core_facts_file import compute_core_facts
from knowngood.images import build_inputs, dockerfile
from knowngood.lock import cell_locking
from knowngood.project.cell_answers import JUDGEMENTS_FILE, CellAnswers, judge_cells
from knowngood.project.checkout import Project, find_checkout
from knowngood.project.core_facts import CORE_FACTS_FILE
from knowngood.reports import attention_page, catalog_collection, ci_workflows, compatibility_tables, readme_parts
from knowngood.reports import incident_pages as diagnose_pages
from knowngood.reports.broken_pair_page import render_broken_pairs
from knowngood.reports.fault_totals import renew_fault_totals
from knowngood.reports.model_page import render_model_page
from knowngood.reports.readme_parts import ReadmeRow
from knowngood.reports.trainer_page_files import render_project_trainers


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail with a diff when a file is out of date"
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Render every cell that has a lock, the tables and the workflows."""
    return render_project(find_checkout("Dockerfiles, pages and README.md"), check=arguments.check)


def render_project(project: Project, *, check: bool) -> Answer:
    """Write the files of a project that other files determine, or with `check` only say whether they are current."""
    files = {}
    unlocked = []
    for cell in project.matrix.cells:
        locked = project.tree.load(cell)
        if locked is None:
            if str(cell) not in project.matrix.retired:
                unlocked.append(str(cell))
            continue
        path = project.tree.cell_folder(cell) / "Dockerfile"
        files[path] = dockerfile.render_dockerfile(locked, project.templates)
    runs, left_out = _load_evidence(project)
    files[project.root / CORE_FACTS_FILE] = compute_core_facts().render()
    if judgements := judge_cells(project, project.matrix.cells):
        files[project.root / JUDGEMENTS_FILE] = judgements.render()
    pages, obsolete = _render_pages(project, runs)
    files |= pages
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
        return Answer(0, document, "\n".join([*_describe_records(older), f"{len(files)} files are current"]))
    changed = [str(path.relative_to(project.root)) for path, text in files.items() if write_atomically(path, text)]
    with cell_locking.hold_lock_folder(project.tree):
        for path in obsolete:
            path.unlink()
        obsolete_paths = [*project.tree.prune(project.matrix.cells), *obsolete]
        removed = [str(path.relative_to(project.root)) for path in obsolete_paths]
    text = "\n".join([*notes, f"{len(changed)} of {len(files)} files changed", *changed])
    return Answer(0, {"changed": changed, "removed": removed, "unlocked": unlocked, "left_out": left_out}, text)


def _render_pages(project: Project, runs: Sequence[Evidence]) -> tuple[dict[Path, str], list[Path]]:
    """Return the pages that facts, incidents, evidence and templates determine, and the files of obsolete pages."""
    files: dict[Path, str] = {}
    obsolete: list[Path] = []
    known = knowledge.load_knowledge()
    if (project.root / "facts").is_dir():
        files[project.root / "docs/compatibility.md"] = compatibility_tables.render_compatibility_page()
        front = (project.root / "README.md").read_text(encoding="utf-8")
        front = readme_parts.replace_marked_part(
            front, "compatibility", compatibility_tables.render_readme_compatibility()
        )
        files[project.root / "README.md"] = readme_parts.replace_marked_part(
            front, "cells", readme_parts.render_cell_table(_rows(project))
        )
    if tables := read_broken_use_tables(project.root / "facts" / "atlas"):
        files[project.root / "docs/broken-pairs.md"] = render_broken_pairs(tables)
    if (project.root / "incidents").is_dir():
        folder = project.root / "docs/incidents"
        files |= {
            folder / name: text
            for name, text in diagnose_pages.render_incident_pages(
                load_incidents(check_references=True), diagnose_pages.load_incident_context()
            ).items()
        }
        obsolete = [path for path in sorted(folder.glob("*.md")) if path not in files]
    if project.evidence.is_dir() and project.trainer_suite.is_dir():
        folder = project.root / "docs/trainers"
        pages = render_project_trainers(project, known.published)
        files |= {folder / name: text for name, text in pages.items()}
        obsolete += [path for path in sorted(folder.glob("*.md")) if path not in files]
    if project.evidence.is_dir():
        files |= {
            project.root / "docs" / name: text for name, text in attention_page.render_attention_files(runs).items()
        }
        if tried := model_runs.load_model_runs(project.evidence)[0]:
            files[project.root / "docs/models.md"] = render_model_page(tried, load_run_incidents())
        if (project.root / "facts").is_dir() and (project.templates / "site").is_dir():
            files[project.root / "docs/matrix.svg"] = _picture(project, known)
    faults = project.root / "docs/faults.md"
    if faults.exists():
        files[faults] = renew_fault_totals(faults.read_text(encoding="utf-8"))
    if (project.root / ci_workflows.WORKFLOW_FOLDER).is_dir():
        files |= {
            project.root / ci_workflows.WORKFLOW_FOLDER / name: text
            for name, text in ci_workflows.render_workflows(project.templates).items()
        }
    return files, obsolete


def _rows(project: Project) -> list[ReadmeRow]:
    """Return the rows of the README's table of maintained cells, from what is committed."""
    known = CellAnswers(project, judge_cells(project, project.matrix.cells))
    answers = {str(cell): known.answer(cell) for cell in project.matrix.select_cells([])}
    rows = []
    for name, answer in answers.items():
        record = project.tree.load_record(answer.cell)
        aliases = [alias for alias, target in project.matrix.aliases.items() if target == name]
        rows.append(
            readme_parts.ReadmeRow(
                cell=answer.cell, aliases=aliases, answer=answer, size=record.size if record else None
            )
        )
    return rows


def _picture(project: Project, known: CompatKnowledge) -> str:
    cells, _ = catalog_collection.collect_catalog_cells(project, project.evidence, known)
    return readme_parts.render_matrix_picture(cells, project.templates / "site")


def _load_evidence(project: Project) -> tuple[list[Evidence], list[str]]:
    """Return all runs, the oldest of each cell first, and the reasons why others are left out."""
    runs, left_out = [], []
    for path in cell_runs.list_run_files(project.evidence):
        run = run_evidence.load_evidence(path)
        if isinstance(run, run_evidence.Evidence):
            runs.append(run)
        else:
            left_out.append(run)
    return runs, left_out


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
