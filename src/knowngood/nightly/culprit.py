"""Why a cell that was green is red: what changed since, and if that is the lock, which package did it. Edge."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import cell as cells
from knowngood import evidence
from knowngood.evidence import Evidence
from knowngood.nightly import blame, moves, pins, requires
from knowngood.nightly.bisect import Found, bisect
from knowngood.nightly.blame import Attempt
from knowngood.nightly.model import Check, Finding, Severity
from knowngood.nightly.venvs import Venvs
from knowngood.publishing import release
from knowngood.reproducing.venv import find_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood.cell import Cell
    from knowngood.nightly.pins import Pins
    from knowngood.project import Project

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a bisection is made."""

    good: Pins
    bad: Pins
    command: Sequence[str]
    python: str | None = None
    wheelhouse: Path | None = None
    seconds: float = 1200
    most: int = 30

    @property
    def interpreter(self) -> Path:
        """The Python of the environments: the one asked for, else that of the locks, else this one's."""
        wanted = self.python or self.bad.python or self.good.python or ".".join(map(str, sys.version_info[:2]))
        return find_python([wanted])

    def run(self, say: Say) -> tuple[Found, list[str]]:
        """What did it, and the last words of the bad runs."""
        interpreter = self.interpreter
        made = self.environment(interpreter, say)
        changed = moves.moves(self.good.versions, self.bad.versions)
        wanted = requires.read(changed, interpreter.name.removeprefix("python"), say) if changed else {}
        return bisect(self.good.versions, self.bad.versions, wanted, made, most=self.most), made.said

    def environment(self, interpreter: Path, say: Say, *, show: bool = False) -> Venvs:
        """The maker of its environments."""
        return Venvs(
            good=self.good,
            bad=self.bad,
            command=self.command,
            python=interpreter,
            wheelhouse=self.wheelhouse,
            seconds=self.seconds,
            say=say,
            show=show,
        )

    def again(self, found: Found) -> str:
        """The command that shows it once more, in one environment."""
        only = [word for move in (*found.culprits, *found.along) for word in ("--only", move.name)]
        words = ["knowngood", "bisect", self.good.source, self.bad.source, *only]
        words += ["--python", self.python] if self.python else []
        return shlex.join([*words, "--", *self.command])


def told(found: Found, search: Search, said: Sequence[str]) -> str:
    """The sentence: the package, both versions, how sure it is, how to see it again."""
    if not found.culprits:
        return f"none of {found.changed} changed packages: {found.note} ({found.environments} environments)"
    names = ", ".join(map(str, found.culprits))
    along = f" (with {', '.join(map(str, found.along))}, which it cannot do without)" if found.along else ""
    sure = "it alone does it" if len(found.culprits) == 1 else "only together"
    sure = sure if found.proven else found.note
    words = f"; it says: {said[-1]}" if said else ""
    counted = f"{found.environments} environments for {found.changed} changed packages"
    return f"{names}{along}: {sure} ({counted}){words}; again: {search.again(found)}"


@dataclass(frozen=True, kw_only=True)
class Culprits:
    """Explains red cells of a project."""

    here: Project
    gpus: bool
    house: Path
    bisect: bool = True

    def __call__(self, cell: str, red: Attempt, say: Say) -> list[Finding]:
        """What changed since the last good run in an image on this kind of machine, and which package did it."""
        loaded = {path: evidence.load(path) for path in sorted((self.here.evidence / cell).glob("*.json"))}
        runs = {path: run for path, run in loaded.items() if isinstance(run, Evidence)}
        green = blame.last_green(list(runs.values()), gpus=self.gpus)
        newest = max((run for run in runs.values() if not run.ok), key=lambda run: run.when, default=None)
        if green is None:
            return [_finding(cell, "never-green", Severity.INFO, "no good run of it is known: nothing to compare with")]
        if newest is not None and green.image is not None and green.image == newest.image:
            what = ", ".join(blame.changed(green, newest)) or "nothing that is recorded"
            said = f"this very image was green on {green.when[:10]}: changed since is {what}; suspect the host"
            return [_finding(cell, "same-image", Severity.WARNING, said)]
        source = next(path for path, run in runs.items() if run is green)
        search = self._search(cells.parse(cell), green, source, red)
        changed = moves.moves(search.good.versions, search.bad.versions)
        if not changed:
            said = f"its packages are those of the good run of {green.when[:10]}"
            return [_finding(cell, "same-lock", Severity.INFO, said)]
        if not self.bisect:
            said = f"{len(changed)} packages changed since {green.when[:10]}: {', '.join(map(str, changed[:5]))}"
            return [_finding(cell, "changed", Severity.INFO, said)]
        found, last_words = search.run(say)
        severity = Severity.ERROR if found.culprits else Severity.WARNING
        said = f"since {green.when[:10]}: {told(found, search, last_words)}"
        return [_finding(cell, "culprit", severity, said)]

    def _search(self, cell: Cell, green: Evidence, source: Path, red: Attempt) -> Search:
        locked = release.committed(self.here, cell)
        bad = pins.of_distributions(locked.distributions, str(cell), cell.python)
        good = pins.of_evidence(green, str(source.relative_to(self.here.root)))
        failing = str((red.data or {}).get("failing") or "")
        command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *(["-k", failing] if failing else [])]
        return Search(
            good=_as_locked(good, bad), bad=bad, command=[*command, str(self.here.suite)], wheelhouse=self.house
        )


def _as_locked(good: Pins, bad: Pins) -> Pins:
    """Installed versions as the lock writes them: what it pins with another local part only is the same release."""
    public = {name: version.partition("+")[0] for name, version in bad.versions.items()}
    versions = {
        name: bad.versions[name] if public.get(name) == version.partition("+")[0] else version
        for name, version in good.versions.items()
    }
    return pins.Pins(source=good.source, versions=versions, hashes={}, python=good.python)


def _finding(cell: str, kind: str, severity: Severity, text: str) -> Finding:
    return Finding(check=Check.SUITE, kind=kind, severity=severity, subject=cell, text=f"{cell}: {text}", cells=(cell,))
