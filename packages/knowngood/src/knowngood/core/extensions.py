"""What other distributions add to this one: objects under entry points, by group.

An extension is a distribution whose name begins with `knowngood`. Their metadata is looked for directly:
`importlib.metadata.entry_points` reads that of everything that is installed, which takes as long as a whole answer.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

COMMANDS = "knowngood.commands"
"""Commands of the command line: a mapping of word to `cli.main.Command`."""
EXPLAIN_LOG = "knowngood.explain_log"
"""`(log: Path) -> str`: a line for each known failure in a log; empty for none."""
JUDGE_CELLS = "knowngood.judge_cells"
"""`(project, cells) -> CellJudgements`: what rules and facts say of cells."""
CHECK_PACKAGES = "knowngood.check_packages"
"""`(lock, added) -> (findings, unread)`: what is known of packages that are added to a cell."""
EXAMINE_RUN = "knowngood.examine_run"
"""`(nvidia, cell) -> lines`: what a person should know of this machine and a cell before a program runs."""
EXPLAIN_RUNS = "knowngood.explain_runs"
"""`() -> tuple[RunIncident, ...]`: the known failures that explain what runs of the model suite observed."""
RENDERED_FILES = "knowngood.rendered_files"
"""`(project, files) -> obsolete`: adds the texts of files that facts and evidence determine."""
UPSTREAM_CHECK = "knowngood.upstream_check"
"""`(here, cells) -> check`: the nightly check of new releases, which takes a `Notify` and returns its result."""


class ExaminedLine(Protocol):
    """A line of `EXAMINE_RUN`, as `run` prints it."""

    @property
    def verdict(self) -> str:
        """Return `ok`, or what is wrong in a word."""

    @property
    def subject(self) -> str:
        """Return what the line is about."""

    @property
    def observation(self) -> str:
        """Return what was seen at this machine."""

    @property
    def because(self) -> str:
        """Return why that is not fine; empty where it is."""

    @property
    def fix(self) -> Sequence[str]:
        """Return what to do, the best first."""

    def document(self) -> dict[str, Any]:
        """Return the line as `--json` prints it."""


def load_extensions(group: str) -> list[tuple[str, Any]]:
    """Return the name and the object of each entry point of a group, sorted by name."""
    loaded = []
    for name, reference in sorted(_entry_points().get(group, {}).items()):
        module, _, attribute = reference.partition(":")
        loaded.append((name, getattr(importlib.import_module(module), attribute)))
    return loaded


def load_extension(group: str) -> Any | None:
    """Return the object of a group's first entry point by name, or `None` where no distribution has one."""
    return next((item for _, item in load_extensions(group)), None)


@cache
def _entry_points() -> dict[str, dict[str, str]]:
    """Return group -> name -> reference, of the distributions on the path; the first of one name counts."""
    groups: dict[str, dict[str, str]] = {}
    for folder in sys.path:
        for path in sorted(Path(folder or ".").glob("knowngood*-info/entry_points.txt")):
            group = ""
            # The lines are as our own builds write them; `configparser` takes longer than the rest of `--help`.
            for line in path.read_text(encoding="utf-8").splitlines():
                name, equals, reference = (part.strip() for part in line.partition("="))
                if name.startswith("["):
                    group = name.strip("[]")
                elif equals:
                    groups.setdefault(group, {}).setdefault(name, reference)
    return groups
