"""The environment to look at: its interpreter, where it keeps distributions, what those are. An edge.

The interpreter itself is asked (without `site`, so that nothing of the environment runs); the rest is files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.doctor.seen import Distribution, Overlap, Python
from knowngood.errors import MissingError

_ASK = """
import json, platform, site, sys, sysconfig
default = getattr(sysconfig, "get_default_scheme", None) or getattr(sysconfig, "_get_default_scheme")
scheme = default().replace("posix_local", "posix_prefix")
print(json.dumps({
    "version": platform.python_version(), "prefix": sys.base_prefix, "real": sys.executable,
    "tag": sysconfig.get_config_var("SOABI") or "", "include": sysconfig.get_paths(scheme=scheme)["include"],
    "sites": site.getsitepackages(), "user": site.getusersitepackages(),
}))
"""
_SECONDS = 20


def find(named: str | None, environ: Mapping[str, str]) -> Python:
    """The interpreter: the one that is named, the active environment's, the first on PATH; `MissingError` without."""
    if named is not None:
        return _described(_executable(named), "--python", environ)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if folder := environ.get(name):
            return _described(Path(folder) / "bin" / "python", name, environ)
    for name in ("python", "python3"):
        if found := shutil.which(name, path=environ.get("PATH")):
            return _described(Path(found), "the first on PATH", environ)
    raise MissingError("there is no python on PATH; name the environment's with --python")


def _executable(named: str) -> Path:
    path = Path(named)
    if path.is_dir():  # an environment's folder
        path = path / "bin" / "python"
    elif not path.exists() and (found := shutil.which(named)):
        path = Path(found)
    if not os.path.lexists(path):
        raise MissingError(f"there is no {path}; --python takes an interpreter, or the folder of an environment")
    return Path(os.path.abspath(path))  # noqa: PTH100 - without following links: a venv's python is one


def _described(path: Path, why: str, environ: Mapping[str, str]) -> Python:
    config = _pyvenv(path)
    told, problem = _ask(path)
    prefix = path.parent.parent if config else Path(told.get("prefix", path.parent.parent))
    sites = [Path(item) for item in told.get("sites", [])]
    if config is not None or not told:
        own = sorted(prefix.glob("lib/python3.*/site-packages"))
        if told:
            own = [prefix / "lib" / f"python{'.'.join(told['version'].split('.')[:2])}" / "site-packages"]
        shared = config is not None and config.get("include-system-site-packages", "").lower() == "true"
        sites = [*own, *(sites if shared else [])]
    if told and (config is None or config.get("include-system-site-packages", "").lower() == "true"):
        sites = [Path(told["user"]), *sites]
    named = [Path(item) for item in environ.get("PYTHONPATH", "").split(":") if item]
    return Python(
        path=str(path),
        why=why,
        version=told.get("version", ""),
        prefix=str(prefix),
        tag=told.get("tag", ""),
        include=told.get("include", ""),
        folders=tuple(dict.fromkeys(str(item) for item in (*named, *sites) if item.is_dir())),
        problem=problem,
    )


def _pyvenv(path: Path) -> dict[str, str] | None:
    """The settings of a virtual environment; `None` for a python that is none."""
    try:
        text = (path.parent.parent / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _ask(path: Path) -> tuple[dict[str, Any], str]:
    """What the interpreter tells of itself, or why it does not."""
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, f"it does not run: {error}"
    try:
        told = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {}, f"it does not run: {said}"
    return (told, "") if isinstance(told, dict) else ({}, "it does not run: it answers nonsense")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The distributions of an environment."""

    distributions: tuple[Distribution, ...]
    broken: Mapping[str, str]
    owners: Mapping[str, str]
    """Path of a file -> the distribution that has it in its RECORD."""
    sizes: Mapping[str, int]
    """Path of a file -> its size by RECORD."""
    overlaps: tuple[Overlap, ...] = ()


@dataclass
class _Reading:
    distributions: list[Distribution] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    shared: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def installed(folders: tuple[str, ...]) -> Installed:
    """Read the metadata and RECORDs of all distributions."""
    reading = _Reading()
    for folder in folders:
        for info in sorted([*Path(folder).glob("*.dist-info"), *Path(folder).glob("*.egg-info")]):
            _read(info, reading)
    return Installed(
        distributions=tuple(reading.distributions),
        broken=reading.broken,
        owners=reading.owners,
        sizes=reading.sizes,
        overlaps=tuple(
            Overlap(first=first, second=second, paths=tuple(paths)) for (first, second), paths in reading.shared.items()
        ),
    )


def _read(info: Path, reading: _Reading) -> None:
    if info.name.startswith("~"):
        reading.broken[str(info)] = "it is what an interrupted pip left of a distribution; remove it"
        return
    found = metadata.PathDistribution(info)
    try:
        name, version = found.metadata["Name"], found.metadata["Version"]
    except (OSError, ValueError, KeyError) as error:
        name, version, reading.broken[str(info)] = None, None, f"its metadata cannot be read: {error}"
    if not name or not version:
        reading.broken.setdefault(str(info), "it has no METADATA with a name and a version")
        return
    try:
        Version(version)
    except InvalidVersion:
        reading.broken[str(info)] = f"its version is {version!r}, which is none (PEP 440)"
    item = Distribution(name=canonicalize_name(name), version=version, info=str(info))
    reading.distributions.append(item)
    who = f"{item.name} {item.version}"
    for path, digest, size in _record(info):
        if path in reading.owners and reading.owners[path] != who:
            if reading.digests[path] != digest:
                reading.shared.setdefault((reading.owners[path], who), []).append(path)
            continue
        reading.owners[path] = who
        reading.digests[path] = digest
        reading.sizes[path] = size


def _record(info: Path) -> Iterator[tuple[str, str, int]]:
    """Path, hash and size of every file that a distribution installed below its folder, but for its own metadata."""
    import csv

    try:
        text = (info / "RECORD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    folder = str(info.parent)
    for row in csv.reader(text.replace("\0", "").splitlines()):
        if len(row) >= 3 and row[2].isdigit() and not row[0].startswith("..") and f"{info.name}/" not in row[0]:
            yield f"{folder}/{row[0]}", row[1], int(row[2])
