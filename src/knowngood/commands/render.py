"""`knowngood render`: writes the Dockerfiles of all locked cells and the tables from facts, or checks them."""

from __future__ import annotations

import argparse

from knowngood import project
from knowngood.cli import Answer


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail with a diff when a file is stale")


def run(arguments: argparse.Namespace) -> Answer:
    """Render every cell that has a lock, and the tables."""
    from knowngood import compatibility, locking, render
    from knowngood.atomic import write_text
    from knowngood.commands.diagnose import read
    from knowngood.diagnose_pages import known_releases, pages

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
    if (here.root / "facts").is_dir():
        readme = here.root / "README.md"
        wanted[here.root / "docs/compatibility.md"] = compatibility.page()
        wanted[readme] = compatibility.in_readme(readme.read_text(encoding="utf-8"))
    if (here.root / "incidents").is_dir():
        folder = here.root / "docs/incidents"
        wanted |= {folder / name: text for name, text in pages(read(), known_releases).items()}
    notes = [f"{name} is not locked; run `knowngood lock '{name}'`" for name in unlocked]
    if arguments.check:
        diff = render.stale(wanted, here.tree.orphans(here.matrix.cells))
        if diff or notes:
            text = "\n".join([*notes, diff + ("stale; run `knowngood render`" if diff else "")])
            return Answer(1, {"current": False, "diff": diff, "unlocked": unlocked}, text)
        return Answer(0, {"current": True, "files": len(wanted)}, f"{len(wanted)} files are current")
    changed = [str(path.relative_to(here.root)) for path, text in wanted.items() if write_text(path, text)]
    with locking.writing(here.tree):
        removed = [str(path.relative_to(here.root)) for path in here.tree.prune(here.matrix.cells)]
    text = "\n".join([*notes, f"{len(changed)} of {len(wanted)} files changed", *changed])
    return Answer(0, {"changed": changed, "removed": removed, "unlocked": unlocked}, text)
