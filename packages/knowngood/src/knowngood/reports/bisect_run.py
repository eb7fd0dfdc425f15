"""Runs a bisection between two locks: reads what releases require, makes environments with uv and runs the command.

The search itself, which decides what environment to try next, is in `knowngood.reports.lock_bisect`.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.notify import Notify
from knowngood.index.artefact import PackageIndex, UnreadableError
from knowngood.index.local_pythons import find_python
from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import IndexedRelease, choose_wheel_by, group_by_release, open_artefact
from knowngood.index.wheel_metadata import parse_metadata
from knowngood.lock import resolver
from knowngood.reports.lock_bisect import BisectResult, EndProblem, EnvironmentOutcome, bisect_locks
from knowngood.reports.lock_pins import PinnedPackages
from knowngood.reports.package_changes import LockVersions, PackageChange, list_package_changes

_CANNOT_TELL = (125, 126, 127)
"""The exit codes that give no answer: 125 as in `git bisect run`, the others for a command that cannot be started."""

_PARALLEL_READS = 4

ReleaseRequirements = dict[tuple[str, str], dict[str, SpecifierSet]]
"""(package, version) to the versions that it requires of other packages."""


@dataclass(frozen=True, kw_only=True)
class LockBisection:
    """Two locks to bisect between, the command that tells good from bad, and how to run it."""

    good: PinnedPackages
    bad: PinnedPackages
    command: Sequence[str]
    python: str | None = None
    wheelhouse: Path | None = None
    seconds: float = 1200
    """The time limit of each run of the command."""

    @property
    def interpreter(self) -> Path:
        """The Python of the environments: the requested release, else that of the locks, else the running one."""
        release = self.python or self.bad.python or self.good.python or ".".join(map(str, sys.version_info[:2]))
        return find_python([release])

    def run(self, notify: Notify) -> tuple[BisectResult, list[str]]:
        """Search for the changes that turn good into bad; also return the last output line of each bad run."""
        interpreter = self.interpreter
        environments = self.environments(interpreter, notify)
        changes = list_package_changes(self.good.versions, self.bad.versions)
        release = interpreter.name.removeprefix("python")
        requirements = read_requirements(changes, release, notify) if changes else {}
        result = bisect_locks(self.good.versions, self.bad.versions, requirements, environments)
        releases = [(move.name, version) for move in result.culprits for version in (move.old, move.new) if version]
        unread = [f"{name} {version}" for name, version in releases if (name, version) not in requirements]
        return replace(result, unread=tuple(unread), untried=tuple(environments.untried)), environments.last_lines

    def environments(self, interpreter: Path, notify: Notify, *, show: bool = False) -> MixedEnvironments:
        """Return the maker of the environments; `show` lets the command's output through."""
        return MixedEnvironments(
            good=self.good,
            bad=self.bad,
            command=self.command,
            python=interpreter,
            wheelhouse=self.wheelhouse,
            seconds=self.seconds,
            notify=notify,
            show=show,
        )

    def repeat_command(self, result: BisectResult) -> str:
        """Return the shell command that shows the result once more, in a single environment."""
        only = [word for change in (*result.culprits, *result.along) for word in ("--only", change.name)]
        return self._command(self.good, self.bad, *only)

    def swapped_command(self) -> str:
        """Return the shell command of the same search with the two ends the other way round."""
        return self._command(self.bad, self.good)

    def _command(self, good: PinnedPackages, bad: PinnedPackages, *options: str) -> str:
        words = ["knowngood", "bisect", good.source, bad.source, *options]
        words += ["--python", self.python] if self.python else []
        return shlex.join([*words, "--", *self.command])


def describe_bisection(result: BisectResult, bisection: LockBisection, last_lines: Sequence[str]) -> str:
    """Return one sentence: the package, both versions, how certain the result is, and how to see it again.

    When an end is not as claimed, the sentence names it, and its source.
    """
    output = f"; last output: {last_lines[-1]}" if last_lines else ""
    untried = f"; not tried: {result.untried[-1]}" if result.untried else ""
    if not result.culprits:
        if result.good_end is None:
            return f"none of {result.changed} changed packages: {result.note} ({result.environments} environments)"
        ends = f"GOOD is {bisection.good.source}, BAD is {bisection.bad.source}"
        again = f"; run it the other way round: {bisection.swapped_command()}"
        more = again if result.problem is EndProblem.SWAPPED else ""
        return f"{result.note} ({ends}; {result.environments} environments){output}{untried}{more}"
    names = ", ".join(map(str, result.culprits))
    along = f" (together with {', '.join(map(str, result.along))}, which it requires)" if result.along else ""
    certainty = result.note or "this change alone makes it fail"
    if result.unread:
        certainty += f"; what {', '.join(result.unread)} require could not be read, so the cause may be a requirement"
    untried = "" if result.proven else untried
    cost = f"{result.environments} environments for {result.changed} changed packages"
    return f"{names}{along}: {certainty} ({cost}){output}{untried}; to repeat: {bisection.repeat_command(result)}"


@dataclass(frozen=True, kw_only=True)
class MixedEnvironments:
    """Makes virtual environments out of two locks, and runs a command in each."""

    good: PinnedPackages
    bad: PinnedPackages
    command: Sequence[str]
    python: Path
    wheelhouse: Path | None
    seconds: float
    notify: Notify
    show: bool = False
    """Let the command's output through."""
    last_lines: list[str] = field(default_factory=list)
    """The last output line of each bad run, in order."""
    untried: list[str] = field(default_factory=list)
    """Why each environment that gave no answer gave none, in order."""
    _number: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def outcome(self, versions: LockVersions) -> EnvironmentOutcome:
        """Make an environment with these versions and run the command in it.

        Exit code 0 is good, 125 to 127 give no answer, anything else is bad, and so is a run that exceeds its time.

        Raises:
            MissingError: the package index does not answer.
            KnowngoodError: the command cannot be started.
        """
        with local_files.scratch_folder() as folder:
            venv = folder / "venv"
            if reason := self._install(venv, folder, versions):
                self.untried.append(f"the environment cannot be made: {reason}")
                self.notify(self.untried[-1])
                return EnvironmentOutcome.UNRESOLVED
            return self._run(venv)

    def requirements(self, versions: LockVersions) -> str:
        """Return the text of the mixed lock, with the hash of each file for which a lock has one."""
        lines = []
        for name, version in sorted(versions.items()):
            lock = next((pins for pins in (self.bad, self.good) if pins.versions.get(name) == version), None)
            lines.append(lock.line(name) if lock else f"{name}=={version}")
        return "\n".join(lines) + "\n"

    def _install(self, venv: Path, folder: Path, versions: LockVersions) -> str:
        """Make the environment; return why that is impossible, or an empty text when it was made."""
        from uv import find_uv_bin

        lock = folder / "requirements.txt"
        lock.write_text(self.requirements(versions))
        uv, options = find_uv_bin(), ["--quiet", *resolver.uv_config_options(), "--python"]
        _run_uv([uv, "venv", "--no-python-downloads", *options, str(self.python), str(venv)])
        argv = [uv, "pip", "install", "--no-deps", *options, str(venv / "bin/python")]
        argv += ["--find-links", str(self.wheelhouse)] if self.wheelhouse and self.wheelhouse.is_dir() else []
        self.notify(f"environment {next(self._number)}: {len(versions)} packages")
        try:
            _run_uv([*argv, "--requirements", str(lock)])
        except MissingError:
            raise
        except KnowngoodError as error:
            return str(error)
        return ""

    def _run(self, venv: Path) -> EnvironmentOutcome:
        try:
            process = subprocess.run(
                self.command,
                check=False,
                env=_process_environment(venv),
                stdin=subprocess.DEVNULL,
                stdout=None if self.show else subprocess.PIPE,
                stderr=None if self.show else subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.seconds,
                preexec_fn=end_with_parent(),
            )
        except subprocess.TimeoutExpired:
            self.last_lines.append(f"the command did not end within {self.seconds:g} s")
            return EnvironmentOutcome.BAD
        except OSError as error:
            raise KnowngoodError(f"{self.command[0]!r} cannot be run: {error.strerror}") from None
        if process.returncode == 0:
            return EnvironmentOutcome.GOOD
        if process.returncode in _CANNOT_TELL:
            self.untried.append(f"the command gave no answer (exit {process.returncode})")
            return EnvironmentOutcome.UNRESOLVED
        lines = [line for line in (process.stdout or "").splitlines() if line.strip()]
        self.last_lines.append(lines[-1].strip() if lines else f"exit {process.returncode}")
        return EnvironmentOutcome.BAD


def _run_uv(argv: Sequence[str]) -> None:
    process = subprocess.run(
        argv,
        env=resolver.uv_environment(),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent(),
    )
    if process.returncode:
        raise resolver.resolver_error(process.stderr, ["the mixed lock"])


def _process_environment(venv: Path) -> Mapping[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}:{env.get('PATH', '')}"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1"}


def read_requirements(
    changes: Iterable[PackageChange], python: str, notify: Notify, index: PackageIndex | None = None
) -> ReleaseRequirements:
    """Read from the index what both releases of each changed package require on a Python release (`3.11`).

    A release that cannot be read is left out; the search then treats its requirements as unknown.
    """
    source = index or SimpleIndex()
    changes = list(changes)
    notify(f"reading what {len(changes)} packages require")

    def read_both(change: PackageChange) -> ReleaseRequirements:
        try:
            releases = {str(one.version): one for one in group_by_release(change.name, source.files(change.name))}
        except UnreadableError:
            return {}
        return {
            (change.name, version): requirements
            for version in (change.old, change.new)
            if version
            and (release := releases.get(_public_version(version)))
            and (requirements := _read_release(release, python, source)) is not None
        }

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return {key: value for both in pool.map(read_both, changes) for key, value in both.items()}


def _read_release(release: IndexedRelease, python: str, index: PackageIndex) -> dict[str, SpecifierSet] | None:
    """Return what a release requires; `None` when no file of it can be read."""
    file = choose_wheel_by("-none-any", f"-cp{python.replace('.', '')}-")(release)
    if file is None:
        return None
    try:
        artefact = open_artefact(file, index)
    except UnreadableError:
        return None
    try:
        member = next(name for name in artefact.members if name.endswith(".dist-info/METADATA"))
        requirements = parse_metadata(artefact.read(member)).requirements_on(python)
    except (UnreadableError, StopIteration, OSError):
        return None
    finally:
        artefact.close()
    return {name: requirement.specifier for name, requirement in requirements.items()}


def _public_version(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version
