"""Commands that answers print, and following them as far as no network, no engine and no compiler are needed."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Sequence
from functools import cache

from packaging.requirements import Requirement

from knowngood.cli.main import all_commands, build_parser, main
from knowngood.core.attention import ATTENTION
from knowngood.core.cell import Cell
from knowngood.core.selection import select_cells
from knowngood.engine import container_engine, probe_gpus
from knowngood.engine.probe_gpus import NvidiaState
from knowngood.launch import added_packages
from knowngood.launch.added_packages import UnfitCellError
from knowngood.launch.cell_verdict import CellVerdicts
from knowngood.project import core_facts
from knowngood.project.cell_answers import CellAnswers
from knowngood.project.checkout import find_project
from knowngood.registry.image_reference import ImageReference
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.added_package_check import forecast_addition
from knowngood_facts.compat.query import parse_requirement

PURPOSES = "run it|add it|try|pick a cell|what there is|run"

KNOWN, FACTS = knowledge.load_knowledge(), core_facts.load_matrix_facts()


def stay_offline(patch) -> None:
    """Read what is known once; no engine, no GPU, and the metadata of this repository in place of the resolver."""
    patch.setattr(knowledge, "load_knowledge", lambda *_, **__: KNOWN)
    patch.setattr(core_facts, "load_matrix_facts", lambda: FACTS)
    patch.setattr(container_engine, "find_running_engine", lambda **_: None)
    patch.setattr(probe_gpus, "read_nvidia_state", lambda: NvidiaState(problem="no library"))
    patch.setattr(added_packages, "resolve_added_packages", _resolve_offline)


def _resolve_offline(matrix, lock, wanted):
    added_packages.added_packages_request(matrix, lock, wanted)  # what contradicts the lock directly
    locked = {item.name: item.version for item in lock.distributions}
    packages = [package for text in wanted if (package := parse_requirement(text)).name not in locked]
    forecast = forecast_addition(KNOWN.universe, lock.cell, locked, packages)
    if packages and forecast.reason:
        raise UnfitCellError(forecast.reason)
    return ()


def commands_in(output: str) -> list[str]:
    """Return the commands of an answer: on lines of their own, after their purpose, and in backticks."""
    purpose = rf"^(?: *|then )(?:{PURPOSES}): (.*)$"
    printed = [
        *re.findall(purpose, output, re.MULTILINE),
        *re.findall(r"^(?:knowngood|docker) .*$", output, re.MULTILINE),
    ]
    printed += re.findall(r"`((?:knowngood|docker) [^`]+)`", output)
    return list(dict.fromkeys(part for text in printed for part in text.split(" && ")))


@cache
def follow_command(text: str, new: tuple[Cell, ...] = ()) -> None:
    """Run a command, or check what it needs where running it takes an engine or the index; fails where it would.

    `new` are cells that the command before it adds to the matrix.
    """
    program, *words = shlex.split(text)
    if program == "docker":
        assert words[0] in ("pull", "system"), text
        if words[0] == "pull":
            ImageReference.parse(words[1])
    elif program in ("pip", "uv", "python"):
        _check_install(words, text)
    else:
        assert program == "knowngood", text
        _follow_own(words, text, new)


def _check_install(words: list[str], text: str) -> None:
    place = words.index("install") + 1
    for word in words[place:]:
        if not word.startswith("-"):
            assert Requirement(word), text


def _follow_own(words: list[str], text: str, new: Sequence[Cell]) -> None:
    assert words[0] in all_commands(), text
    arguments = build_parser(words[0]).parse_args(words)
    if words[0] == "add":
        assert main([*words, "--dry-run"]) == 0, text
    elif words[0] in ("pick", "check", "cells", "api"):
        assert main(words) in (0, 1, 3), text
    elif words[0] == "run":
        own = [word for word in words[1:] if word != "train.py"]  # which stands for the user's program
        assert words[1] in map(str, new) or main(["run", "--print", *own]) == 0, text
    elif words[0] in ("build", "build-matrix", "compile", "lock"):
        cells = select_cells([*KNOWN.published.cells, *new], KNOWN.published.aliases, arguments.select)
        assert cells, text
        if words[0] == "build-matrix" and not arguments.compile:
            assert not any(_needs_compile(cell) for cell in cells), text
    else:
        assert words[0] in ("harvest", "engine", "render"), text


def _needs_compile(cell: Cell) -> bool:
    verdicts = CellVerdicts(CellAnswers(find_project()), None, os.environ)
    return bool(verdicts.judge(cell).compiled)


def make_requests(number: int, seed: int) -> list[list[str]]:
    """Return the words of many commands, drawn from the matrix's cards and trainers and all packages that are known.

    Nothing is chosen by hand, so that they are what people may ask, sensible or not.
    """
    draw = random.Random(seed)  # noqa: S311 - the same requests every time
    matrix = find_project().matrix
    cards = [card for item in matrix.gpus.values() for card in item.cards]
    trainers = sorted({cell.framework_pin[0] for cell in matrix.cells if cell.framework_pin})
    packages = sorted(KNOWN.universe.metadata.names())
    requests = []
    for _ in range(number):
        names = draw.sample(trainers, draw.choice((0, 1, 1))) + draw.sample(packages, draw.choice((0, 0, 1, 2)))
        names += draw.sample(("torch", "transformers"), draw.choice((0, 0, 1, 2)))
        words = [_with_release(draw, name) for name in dict.fromkeys(names)]
        options = ["--gpu", draw.choice(cards)]
        options += ["--attn", draw.choice(sorted(ATTENTION))] if draw.random() < 0.4 else []
        command = draw.choice(("pick", "pick", "check", "run", "run", "add"))
        if command == "run":
            added = [word for text in words for word in ("--with", text)]
            requests.append(["run", "--print", *options, *added, "--", "python"])
        elif command == "add":
            requests.append(["add", "--dry-run", *options, *words])
        else:
            requests.append([command, *options, *(words or ["torch"])])
    return requests


def _with_release(draw: random.Random, name: str) -> str:
    package = KNOWN.universe.metadata.find_package(name)
    releases = package.domain.values if package else ()
    if not releases or draw.random() < 0.5:
        return name
    return f"{name}{draw.choice(('==', '>=', '<='))}{draw.choice(releases[-12:])}"
