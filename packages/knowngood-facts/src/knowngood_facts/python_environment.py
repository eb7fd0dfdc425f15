"""Python environments: the interpreter, the folders of its distributions, and what is installed there. An edge.

The doctor runs the interpreter of the environment it examines without `site`, so that nothing of the environment runs;
the rest it reads from files. `read_installed_packages` is for `knowngood check --here`.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core.errors import MissingError, UsageError
from knowngood_facts.compat.query import UnreadLine, pinned_package
from knowngood_facts.compat.requirement_lines import RequirementList


@dataclass(frozen=True, kw_only=True)
class PythonInterpreter:
    """The interpreter of the environment."""

    path: str
    why: str
    """How it was chosen: `--python`, `VIRTUAL_ENV`, the first on PATH."""
    version: str = ""
    tag: str = ""
    """The tag in the names of its extension modules: `cpython-311-x86_64-linux-gnu`."""
    include: str = ""
    """The folder where Python.h belongs."""
    folders: tuple[str, ...] = ()
    """The folders with distributions, in the order in which Python searches them."""
    problem: str = ""
    """Why this Python does not run; empty when it does."""


@dataclass(frozen=True, kw_only=True)
class InstalledDistribution:
    """A distribution that is installed in the environment."""

    name: str
    """Canonical as PyPA has it: lower case, with single hyphens."""
    version: str
    info: str
    """The path of its `.dist-info` folder."""


@dataclass(frozen=True, kw_only=True)
class FileOverlap:
    """Two distributions that wrote the same files with different bytes."""

    first: str
    second: str
    paths: tuple[str, ...]


_DESCRIBE_INTERPRETER = """
import json, platform, site, sys, sysconfig
default = getattr(sysconfig, "get_default_scheme", None) or getattr(sysconfig, "_get_default_scheme")
scheme = default().replace("posix_local", "posix_prefix")
print(json.dumps({
    "version": platform.python_version(), "prefix": sys.base_prefix, "executable": sys.executable,
    "tag": sysconfig.get_config_var("SOABI") or "", "include": sysconfig.get_paths(scheme=scheme)["include"],
    "sites": site.getsitepackages(), "user": site.getusersitepackages(),
}))
"""

_LIST_PACKAGES = """
import json, platform
from importlib import metadata
print(json.dumps([platform.python_version(), {d.metadata["Name"]: d.version for d in metadata.distributions()}]))
"""
_SECONDS = 20


def find_interpreter(named: str | None, environ: Mapping[str, str]) -> PythonInterpreter:
    """Return the named interpreter, else that of the active environment, else the first on PATH.

    `named` is an interpreter or the folder of an environment. Raises `MissingError` when there is none.
    """
    if named is not None:
        return _describe_interpreter(_resolve_name(named), "--python", environ)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := environ.get(name):
            return _describe_interpreter(Path(folder) / "bin" / "python", name, environ)
    for name in ("python", "python3"):
        if path := shutil.which(name, path=environ.get("PATH")):
            return _describe_interpreter(Path(path), "the first on PATH", environ)
    raise MissingError("there is no python on PATH; name the environment's with --python")


def _resolve_name(named: str) -> Path:
    path = Path(named)
    if path.is_dir():  # the folder of an environment
        path = path / "bin" / "python"
    elif not path.exists() and (on_path := shutil.which(named)):
        path = Path(on_path)
    if not os.path.lexists(path):
        raise MissingError(f"there is no {path}; --python takes an interpreter, or the folder of an environment")
    return Path(os.path.abspath(path))  # noqa: PTH100 - without following links: a venv's python is one


def _describe_interpreter(path: Path, why: str, environ: Mapping[str, str]) -> PythonInterpreter:
    answer, problem = _ask_interpreter(path)
    if answer.get("executable") and _is_script(path):  # pyenv's shim starts the interpreter, and is none
        path = Path(answer["executable"])
    config = _read_pyvenv(path)
    uses_system_sites = config is None or config.get("include-system-site-packages", "").lower() == "true"
    prefix = path.parent.parent if config else Path(answer.get("prefix", path.parent.parent))
    sites = [Path(item) for item in answer.get("sites", [])]
    if config is not None or not answer:
        own = sorted(prefix.glob("lib/python3.*/site-packages"))
        if answer:
            own = [prefix / "lib" / f"python{'.'.join(answer['version'].split('.')[:2])}" / "site-packages"]
        sites = [*own, *(sites if config is not None and uses_system_sites else [])]
    if answer and uses_system_sites:
        sites = [Path(answer["user"]), *sites]
    python_path = [Path(item) for item in environ.get("PYTHONPATH", "").split(":") if item]
    return PythonInterpreter(
        path=str(path),
        why=why,
        version=answer.get("version", ""),
        tag=answer.get("tag", ""),
        include=answer.get("include", ""),
        folders=tuple(dict.fromkeys(str(item) for item in (*python_path, *sites) if item.is_dir())),
        problem=problem,
    )


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _read_pyvenv(path: Path) -> dict[str, str] | None:
    """Return the settings of a virtual environment; `None` for an interpreter outside of one."""
    try:
        text = (path.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _ask_interpreter(path: Path) -> tuple[dict[str, Any], str]:
    """Return what the interpreter says about itself, and why it does not; one of them is empty."""
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", _DESCRIBE_INTERPRETER],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, f"it does not run: {error}"
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last_line = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {}, f"it does not run: {last_line}"
    return (answer, "") if isinstance(answer, dict) else ({}, "it does not run: its answer is not understood")


@dataclass
class EnvironmentContents:
    """The distributions of an environment and their files."""

    distributions: list[InstalledDistribution] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    """Path of a `.dist-info` folder -> what is wrong with it."""
    owners: dict[str, str] = field(default_factory=dict)
    """Path of a file -> the first distribution, with its version, that lists it in its RECORD."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Path of a file -> its size in bytes by RECORD."""
    _digests: dict[str, str] = field(default_factory=dict)
    _shared: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def overlaps(self) -> tuple[FileOverlap, ...]:
        """The pairs of distributions that list the same files with different contents."""
        return tuple(
            FileOverlap(first=first, second=second, paths=tuple(paths))
            for (first, second), paths in self._shared.items()
        )

    def add(self, info: Path) -> None:
        """Read the metadata and the RECORD in a `.dist-info` or `.egg-info` folder."""
        if info.name.startswith("~"):
            self.broken[str(info)] = "an interrupted pip left it behind; remove it"
            return
        distribution = metadata.PathDistribution(info)
        try:
            name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        except (OSError, ValueError, KeyError) as error:
            name, version, self.broken[str(info)] = None, None, f"its metadata cannot be read: {error}"
        if not name or not version:
            self.broken.setdefault(str(info), "it has no METADATA with a name and a version")
            return
        try:
            Version(version)
        except InvalidVersion:
            self.broken[str(info)] = f"its version {version!r} is not valid (PEP 440)"
        installed = InstalledDistribution(name=canonicalize_name(name), version=version, info=str(info))
        self.distributions.append(installed)
        self._add_files(info, f"{installed.name} {installed.version}")

    def _add_files(self, info: Path, owner: str) -> None:
        for path, digest, size in _read_record(info):
            if path in self.owners and self.owners[path] != owner:
                if self._digests[path] != digest:
                    self._shared.setdefault((self.owners[path], owner), []).append(path)
                continue
            self.owners[path] = owner
            self._digests[path] = digest
            self.sizes[path] = size


def read_distributions(folders: tuple[str, ...]) -> EnvironmentContents:
    """Read the metadata and RECORDs of all distributions in these folders."""
    contents = EnvironmentContents()
    for folder in folders:
        for info in sorted([*Path(folder).glob("*.dist-info"), *Path(folder).glob("*.egg-info")]):
            contents.add(info)
    return contents


def _read_record(info: Path) -> Iterator[tuple[str, str, int]]:
    """Yield path, hash and size of every file of a distribution below its folder, without its own metadata."""
    try:
        text = (info / "RECORD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    folder = str(info.parent)
    for row in csv.reader(text.replace("\0", "").splitlines()):
        if len(row) >= 3 and row[2].isdigit() and not row[0].startswith("..") and f"{info.name}/" not in row[0]:
            yield f"{folder}/{row[0]}", row[1], int(row[2])


def read_installed_packages() -> tuple[str, dict[str, str]]:
    """Return the release of the active environment's Python, and distribution -> version.

    Without an active environment it is the Python that runs knowngood. Raises `MissingError` when the environment's
    Python does not run.
    """
    python = _active_interpreter()
    if python is None:
        distributions = {str(item.metadata["Name"]): item.version for item in metadata.distributions()}
        return platform.python_version(), distributions
    try:
        done = subprocess.run([python, "-c", _LIST_PACKAGES], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{python} does not list what is installed: {error}") from None
    version, distributions = json.loads(done.stdout)
    return version, distributions


def _active_interpreter() -> Path | None:
    """Return the python of the active environment (`VIRTUAL_ENV`, `CONDA_PREFIX`), unless it is the one that runs."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = os.environ.get(name)
        if folder:
            python = Path(folder) / "bin" / "python"
            if python.exists() and Path(folder).resolve() != Path(sys.prefix).resolve():
                return python
    return None


def list_installed_packages(distributions: Mapping[str, str]) -> RequirementList:
    """Return distribution -> version as a list of pins; one whose version is not valid (PEP 440) is unread."""
    result = RequirementList()
    for number, (name, version) in enumerate(sorted(distributions.items()), start=1):
        public, _, local = version.partition("+")
        try:
            result.packages.append(pinned_package(name, public, local or None, explicit=False))
        except UsageError:
            because = f"its version {version!r} is not valid (PEP 440)"
            result.unread.append(
                UnreadLine(
                    file="the environment", line=number, text=name, because=because, package=canonicalize_name(name)
                )
            )
    return result


def glibc_release() -> str | None:
    """Return the release of glibc; `None` on another C library."""
    name, version = platform.libc_ver()
    return version if name == "glibc" and version else None
