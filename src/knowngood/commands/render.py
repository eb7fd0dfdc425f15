"""`knowngood render`: writes Dockerfiles of locked cells, tables from facts and CI workflows, or checks them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from knowngood.evidence import Evidence
    from knowngood.readme import Row


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail with a diff when a file is stale")


def run(arguments: argparse.Namespace) -> Answer:
    """Render every cell that has a lock, the tables and the workflows."""
    from knowngood import render
    from knowngood.atomic import write_text
    from knowngood.locks import locking

    here = project.find()
    wanted = {}
    unlocked = []
    for cell in here.matrix.cells:
        locked = here.tree.load(cell)
        if locked is None:
            unlocked.append(str(cell))
            continue
        path = here.tree.cell_folder(cell) / "Dockerfile"
        wanted[path] = render.dockerfile(locked, here.templates)
    runs, left_out = _evidence(here)
    pages, strays = _pages(here, runs)
    wanted |= pages
    notes = [f"{name} is not locked; run `knowngood lock '{name}'`" for name in unlocked]
    notes += [f"evidence left out: {said}" for said in left_out]
    if arguments.check:
        older = stale_records(here)
        diff = render.stale(wanted, [*here.tree.orphans(here.matrix.cells), *strays])
        if diff or notes:
            text = "\n".join([*notes, diff + ("stale; run `knowngood render`" if diff else "")])
            document = {"current": False, "diff": diff, "unlocked": unlocked, "left_out": left_out, "records": older}
            return Answer(1, document, "\n".join([*_told(older), text]))
        document = {"current": True, "files": len(wanted), "records": older}
        return Answer(0, document, "\n".join([*_told(older), f"{len(wanted)} files are current"]))
    changed = [str(path.relative_to(here.root)) for path, text in wanted.items() if write_text(path, text)]
    with locking.writing(here.tree):
        for path in strays:
            path.unlink()
        gone = [*here.tree.prune(here.matrix.cells), *strays]
        removed = [str(path.relative_to(here.root)) for path in gone]
    text = "\n".join([*notes, f"{len(changed)} of {len(wanted)} files changed", *changed])
    return Answer(0, {"changed": changed, "removed": removed, "unlocked": unlocked, "left_out": left_out}, text)


def _pages(here: project.Project, runs: Sequence[Evidence]) -> tuple[dict[Path, str], list[Path]]:
    """What follows from facts, incidents, evidence and templates, and the pages that nothing is behind any more."""
    from knowngood import attention_pages, compatibility, readme
    from knowngood.ci import workflows
    from knowngood.diagnosing import pages as diagnose_pages
    from knowngood.incidents.files import read

    wanted: dict[Path, str] = {}
    strays: list[Path] = []
    if (here.root / "facts").is_dir():
        wanted[here.root / "docs/compatibility.md"] = compatibility.page()
        front = (here.root / "README.md").read_text(encoding="utf-8")
        front = readme.replaced(front, "compatibility", compatibility.readme())
        wanted[here.root / "README.md"] = readme.replaced(front, "cells", readme.cells(_rows(here, runs)))
    if (here.root / "facts" / "contracts").is_dir():
        from knowngood.contracts.files import rendered

        wanted[here.root / "docs/contract-tables.md"] = rendered(here.root)
    if (here.root / "incidents").is_dir():
        folder = here.root / "docs/incidents"
        wanted |= {
            folder / name: text
            for name, text in diagnose_pages.pages(read(names=True), diagnose_pages.around_here()).items()
        }
        strays = [path for path in sorted(folder.glob("*.md")) if path not in wanted]
    if here.evidence.is_dir():
        wanted |= {here.root / "docs" / name: text for name, text in attention_pages.files(runs).items()}
        if (here.root / "facts").is_dir() and (here.templates / "site").is_dir():
            wanted[here.root / "docs/matrix.svg"] = _picture(here)
    if (here.root / workflows.FOLDER).is_dir():
        wanted |= {here.root / workflows.FOLDER / name: text for name, text in workflows.files(here.templates).items()}
    return wanted, strays


def _rows(here: project.Project, every: Sequence[Evidence]) -> list[Row]:
    """The cells as the README shows them, from what is committed beside them."""
    from knowngood import evidence, readme

    rows = []
    for cell in here.matrix.cells:
        runs = [run for run in every if run.cell == str(cell)]
        record = here.tree.load_record(cell)
        rows.append(
            readme.Row(
                cell=cell,
                aliases=[alias for alias, target in here.matrix.aliases.items() if target == str(cell)],
                tier=str(evidence.tier(runs, locked=here.tree.load(cell) is not None)),
                trains=[setting for setting, outcome in evidence.attention(runs).items() if outcome == "pass"],
                size=record.size if record else None,
            )
        )
    return rows


def _picture(here: project.Project) -> str:
    from knowngood.site import collect, picture
    from knowngood.solving import factbook

    book = factbook.read(here.root / "facts")
    return picture.svg(collect.seen(here, here.evidence, book)[0], here.templates / "site")


def _evidence(here: project.Project) -> tuple[list[Evidence], list[str]]:
    """Every run, a cell's oldest first, and why others are left out."""
    from knowngood import evidence

    runs, left_out = [], []
    for path in sorted(here.evidence.glob("*/*.json")):
        found = evidence.load(path)
        if isinstance(found, evidence.Evidence):
            runs.append(found)
        else:
            left_out.append(found)
    return runs, left_out


def stale_records(here: project.Project) -> dict[str, list[str]]:
    """The cells whose `image.json` is older than something that shapes the image, and what that is.

    That is no fault of a rendered file: the next `knowngood build --record` makes it current.
    """
    from knowngood.building import survey

    found = {}
    folders = survey.digests(here)
    for cell in here.matrix.cells:
        recorded, locked = here.tree.load_record(cell), here.tree.load(cell)
        base = survey.base_digest(here, locked.base) if locked else None
        if (
            recorded
            and locked
            and base
            and (changed := survey.shape(here, locked, base, folders).changes(recorded.shape))
        ):
            found[str(cell)] = list(changed)
    return found


def _told(older: dict[str, list[str]]) -> list[str]:
    return [
        f"{cell}: changed since its image was recorded: {', '.join(changed)}; `knowngood build --record '{cell}'`"
        for cell, changed in older.items()
    ]
