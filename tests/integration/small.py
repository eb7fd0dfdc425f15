"""A project with cells that build in seconds: real recipes and layers, of a few small wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from knowngood.locks import locking
from knowngood.locks.lock import Distribution, split
from knowngood.locks.tree import CellLock
from knowngood.project import Project

TRANSFORMERS = ("4.55.4", "4.56.1")
"""Of cells that the real matrix does not have: their images are of these tests alone."""


def project(
    root: Path,
    *transformers: str,
    own: Sequence[str] = (),
    shared: Mapping[str, Sequence[str]] | None = None,
    wheels: Iterable[Distribution] = (),
) -> Project:
    """The project under `root`, a copy of this one, with a cell for each release of transformers and no other.

    `shared` are their layers, by name; `own` gives each of them, in their order, a wheel that no other has. They are
    those of the default cell's lock, unless `wheels` are given.
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
                inputs=locking.inputs(here.matrix.entry(cell), here.matrix),
                layers=split([known[name] for names in layers.values() for name in names], layers),
            )
        )
    return here


def command(here: Project, *words: str) -> subprocess.Popen[str]:
    """The program in a process of its own, in that project."""
    return subprocess.Popen(
        [sys.executable, "-m", "knowngood", *words],
        cwd=here.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
