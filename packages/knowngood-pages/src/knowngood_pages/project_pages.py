"""The files of a project that facts and evidence determine: pages in `docs/`, parts of README.md, the picture."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from knowngood.core.local_files import FACTS_FOLDER
from knowngood.evidence import cell_runs, model_runs, run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.project.cell_answers import CellAnswers, judge_cells
from knowngood.project.checkout import Project
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.knowledge import CompatKnowledge
from knowngood_facts.compat.rule_files import load_run_incidents
from knowngood_facts.facts.broken_use_table import read_broken_use_tables
from knowngood_facts.reports import compatibility_tables
from knowngood_facts.reports.broken_pair_page import render_broken_pairs
from knowngood_pages import attention_page, catalog_collection, readme_parts, speed_page
from knowngood_pages.fault_totals import renew_fault_totals
from knowngood_pages.model_page import render_model_page
from knowngood_pages.readme_parts import ReadmeRow
from knowngood_pages.trainer_page_files import render_project_trainers


def render_pages(project: Project, files: dict[Path, str]) -> list[Path]:
    """Add the pages that facts, incidents, evidence and templates determine; return the files of obsolete pages.

    The extension `knowngood.rendered_files`.
    """
    runs = _load_runs(project)
    obsolete: list[Path] = []
    known = knowledge.load_knowledge()
    if (project.root / FACTS_FOLDER).is_dir():
        files[project.root / "docs/compatibility.md"] = compatibility_tables.render_compatibility_page()
        rows = _rows(project)
        files[project.root / "docs/cells.md"] = readme_parts.render_cell_page(rows)
        for name, part, text in (
            ("README.md", "cards", readme_parts.render_card_table(rows)),
            ("docs/commands.md", "commands", readme_parts.render_command_tables()),
        ):
            page = (project.root / name).read_text(encoding="utf-8")
            files[project.root / name] = readme_parts.replace_marked_part(page, part, text)
    if tables := read_broken_use_tables(project.root / FACTS_FOLDER / "atlas"):
        files[project.root / "docs/broken-pairs.md"] = render_broken_pairs(tables)
    if project.evidence.is_dir() and project.trainer_suite.is_dir():
        folder = project.root / "docs/trainers"
        pages = render_project_trainers(project, known.published)
        files |= {folder / name: text for name, text in pages.items()}
        obsolete += [path for path in sorted(folder.glob("*.md")) if path not in files]
    if project.evidence.is_dir():
        files |= {
            project.root / "docs" / name: text for name, text in attention_page.render_attention_files(runs).items()
        }
        answers = CellAnswers(project)
        speed = speed_page.render_speed_files(answers.speed_points, answers.answer)
        files |= {project.root / "docs" / name: text for name, text in speed.items()}
        if tried := model_runs.load_model_runs(project.evidence, project.seal)[0]:
            files[project.root / "docs/models.md"] = render_model_page(tried, load_run_incidents())
        if (project.root / FACTS_FOLDER).is_dir() and (project.templates / "site").is_dir():
            best = {str(row.cell) for row in readme_parts.find_best_rows(rows)}
            files |= {project.root / "docs" / name: text for name, text in _pictures(project, known, best)}
    faults = project.root / "docs/faults.md"
    if faults.exists():
        files[faults] = renew_fault_totals(faults.read_text(encoding="utf-8"))
    return obsolete


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
                cell=answer.cell,
                aliases=aliases,
                machine=project.matrix.machine_of(answer.cell),
                answer=answer,
                size=record.size if record else None,
            )
        )
    return rows


def _pictures(project: Project, known: CompatKnowledge, best: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the picture of all cells, and of that of the best for each kind of machine."""
    cells, _ = catalog_collection.collect_catalog_cells(project, project.evidence, known)
    labels = {(item.sm, str(item.host)): item.label for item in known.universe.gpus.machines}
    for name, shown in (("matrix.svg", cells), ("cards.svg", [cell for cell in cells if cell.id in best])):
        yield name, readme_parts.render_matrix_picture(shown, project.templates / "site", labels)


def _load_runs(project: Project) -> list[Evidence]:
    """Return all runs that can be used, the oldest of each cell first."""
    cells = dict.fromkeys(path.parent.name for path in cell_runs.list_run_files(project.evidence))
    return [run for cell in cells for run in run_evidence.load_cell_evidence(project.evidence, cell, project.seal)[0]]
