"""A project whose cells build in seconds: real recipes and layers with a few small wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from knowngood.lock import cell_locking
from knowngood.lock.cell_lock import Distribution, split_into_layers
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project

TRANSFORMERS = ("4.53.2", "4.54.1") if os.environ.get("PYTEST_XDIST_WORKER") == "gw1" else ("4.55.4", "4.56.1")
"""Releases that no cell of the real matrix has, so that only these tests have their images; each worker has its own."""


def project(
    root: Path,
    *transformers: str,
    own: Sequence[str] = (),
    shared: Mapping[str, Sequence[str]] | None = None,
    wheels: Iterable[Distribution] = (),
) -> Project:
    """Change the project under `root`, a copy of this one, to have one cell per release of transformers.

    `shared` maps the names of their common layers to packages. `own` gives each cell, in their order, a package that no
    other has. The wheels are those of the default cell's lock, unless `wheels` are given.
    """
    matrix = root / "matrix.yaml"
    real = Project(root)
    locked = real.tree.load(next(cell for cell in real.matrix.cells if str(cell) == real.matrix.aliases["default"]))
    known = {item.name: item for item in wheels or locked.distributions}
    shutil.rmtree(real.tree.folder / "cells")
    head = matrix.read_text().partition("\ncells:\n")[0]
    item = "gpu: sm_90, torch: 2.11.0, flash-attn: none, base: debian12"
    matrix.write_text(f"{head}\ncells:\n  - {{{item}, transformers: [{', '.join(transformers)}]}}\n")
    here = Project(root)
    common = shared or {"tools": ["iniconfig", "pluggy"], "python": ["packaging"]}
    for cell in here.matrix.cells:
        mine = {"own": [own[transformers.index(cell.transformers)]]} if own else {}
        layers = {**mine, **common}
        here.tree.save(
            CellLock(
                cell=cell,
                base="debian12",
                inputs=cell_locking.lock_inputs_digest(here.matrix.entry(cell), here.matrix),
                layers=split_into_layers([known[name] for names in layers.values() for name in names], layers),
            )
        )
    return here


def command(here: Project, *words: str) -> subprocess.Popen[str]:
    """Start the program as a separate process in that project."""
    return subprocess.Popen(
        [sys.executable, "-m", "knowngood", *words],
        cwd=here.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
