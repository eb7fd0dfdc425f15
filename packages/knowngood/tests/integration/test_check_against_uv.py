"""What `check` says of torch, triton and transformers, against uv's own resolution of the same pins.

Sampled with a fixed seed. `uv pip compile` reads metadata only; nothing is installed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import uv

from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.query import query_from_document

pytestmark = pytest.mark.integration

KNOWN = knowledge.load_knowledge()
BOOK = KNOWN.universe.space.book
SAMPLES = 12
AXES = ("torch", "triton", "transformers")

Cell = tuple[str, dict[str, str]]


def ask(python: str, pins: dict[str, str]) -> CheckAnswer:
    return check_query(
        KNOWN.universe, query_from_document({"python": python, "packages": pins}), KNOWN.published, suggest=False
    )


def resolves(cell: Cell) -> tuple[bool, str]:
    python, pins = cell
    done = subprocess.run(
        [
            *(uv.find_uv_bin(), "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"),
            *("--python", sys.executable, "--no-python-downloads"),  # it would fetch the Python it resolves for
            *("--python-version", python, "--python-platform", "x86_64-manylinux_2_36", "--only-binary", ":all:"),
        ],
        input="\n".join(f"{name}=={version}" for name, version in pins.items()),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "UV_NO_PROGRESS": "1"},
    )
    return done.returncode == 0, done.stderr


def cells(seed: int) -> Iterator[Cell]:
    """Random pins; half of them with the triton that torch pins, as else nearly all are broken."""
    choose = random.Random(seed)  # noqa: S311 - a sample
    while True:
        python = choose.choice(["3.9", "3.10", "3.11", "3.12", "3.13"])
        pins = {name: choose.choice(BOOK.versions(name)) for name in AXES}
        if choose.random() < 0.5:
            pins["triton"] = str(BOOK.fact("torch", pins["torch"], "triton"))
        if not any(BOOK.yanked(name, version) for name, version in pins.items()):
            yield python, pins


def sample(*, compatible: bool) -> list[Cell]:
    found = []
    for cell in cells(20261121):
        result = ask(*cell)
        errors = {finding.id for finding in result.findings if finding.severity == "error"}
        if compatible and result.verdict in ("compatible", "verified"):
            found.append(cell)
        # Only what a declared pin, a bound or a wheel's Python breaks: an installer knows nothing of the others.
        if not compatible and errors and all(name.startswith(("requires:", "wheel:")) for name in errors):
            found.append(cell)
        if len(found) == SAMPLES:
            break
    return found


def test_what_is_called_compatible_resolves():
    chosen = sample(compatible=True)
    with ThreadPoolExecutor(4) as pool:
        for cell, (resolved, said) in zip(chosen, pool.map(resolves, chosen), strict=True):
            assert resolved, (cell, said)


def test_what_a_pin_breaks_does_not_resolve():
    chosen = sample(compatible=False)
    with ThreadPoolExecutor(4) as pool:
        for cell, (resolved, said) in zip(chosen, pool.map(resolves, chosen), strict=True):
            assert not resolved, cell
            assert "No solution found" in said, (cell, said)
