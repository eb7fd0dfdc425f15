"""Environments of mixed locks: a virtual environment each, made by uv, in which the command runs."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from knowngood import paths
from knowngood.errors import KnowngoodError, MissingError
from knowngood.locks import resolve
from knowngood.nightly.bisect import Outcome
from knowngood.nightly.moves import Versions
from knowngood.nightly.pins import Pins

CANNOT_TELL = 125
"""The exit code of a command that cannot tell, as `git bisect run` has it."""

_NOT_FOUND = (126, 127)


@dataclass(frozen=True, kw_only=True)
class Venvs:
    """Makes environments out of two locks, and runs a command in them."""

    good: Pins
    bad: Pins
    command: Sequence[str]
    python: Path
    wheelhouse: Path | None
    seconds: float
    say: Callable[[str], None]
    show: bool = False
    """Let the command's output through."""
    said: list[str] = field(default_factory=list)
    """The last line of each bad run."""
    number: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def outcome(self, versions: Versions) -> Outcome:
        """An exit code of 0 is good, 125 is "cannot tell", anything else is bad, and so is no end within the time."""
        with paths.scratch() as folder:
            venv = folder / "venv"
            if refused := self._make(venv, folder, versions):
                self.say(f"cannot be made: {refused}")
                return Outcome.UNRESOLVED
            return self._run(venv)

    def requirements(self, versions: Versions) -> str:
        """The text of a mixed lock; a file that a lock knows by hash is held to it."""
        lines = []
        for name, version in sorted(versions.items()):
            of = next((pins for pins in (self.bad, self.good) if pins.versions.get(name) == version), None)
            lines.append(of.line(name) if of else f"{name}=={version}")
        return "\n".join(lines) + "\n"

    def _make(self, venv: Path, folder: Path, versions: Versions) -> str:
        """Why the environment cannot be made; empty when it was. `MissingError` when the index does not answer."""
        from uv import find_uv_bin

        lock = folder / "requirements.txt"
        lock.write_text(self.requirements(versions))
        uv, options = find_uv_bin(), ["--quiet", *resolve.config(), "--python"]
        self._uv([uv, "venv", "--no-python-downloads", *options, str(self.python), str(venv)])
        argv = [uv, "pip", "install", "--no-deps", *options, str(venv / "bin/python")]
        argv += ["--find-links", str(self.wheelhouse)] if self.wheelhouse and self.wheelhouse.is_dir() else []
        self.say(f"environment {next(self.number)}: {len(versions)} packages")
        try:
            self._uv([*argv, "--requirements", str(lock)])
        except MissingError:
            raise
        except KnowngoodError as error:
            return str(error)
        return ""

    @staticmethod
    def _uv(argv: Sequence[str]) -> None:
        done = subprocess.run(
            argv, env=resolve.environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise resolve.failure(done.stderr, ["the mixed lock"])

    def _run(self, venv: Path) -> Outcome:
        try:
            done = subprocess.run(
                self.command,
                check=False,
                env=_environment(venv),
                stdin=subprocess.DEVNULL,
                stdout=None if self.show else subprocess.PIPE,
                stderr=None if self.show else subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.seconds,
            )
        except subprocess.TimeoutExpired:
            self.said.append(f"it did not end within {self.seconds:g} s")
            return Outcome.BAD
        except OSError as error:
            raise KnowngoodError(f"{self.command[0]!r} cannot be run: {error.strerror}") from None
        if done.returncode == 0:
            return Outcome.GOOD
        if done.returncode == CANNOT_TELL or done.returncode in _NOT_FOUND:
            return Outcome.UNRESOLVED
        lines = [line for line in (done.stdout or "").splitlines() if line.strip()]
        self.said.append(lines[-1].strip() if lines else f"exit {done.returncode}")
        return Outcome.BAD


def _environment(venv: Path) -> Mapping[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}:{env.get('PATH', '')}"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1"}
