"""Reads the package versions that `knowngood bisect` compares.

They come from a file, from a cell's lock, or from a cell's lock at a revision of git.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from knowngood.core import data_files, yaml_document
from knowngood.core.cell import parse_cell
from knowngood.core.errors import UsageError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence
from knowngood.lock import cell_lock
from knowngood.lock.lock_tree import parse_cell_document
from knowngood.registry import image_release
from knowngood.reports.git_history import read_file_at

if TYPE_CHECKING:
    from knowngood.project.checkout import Project


_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(\[[^]]*\])?\s*==\s*(?P<version>[^\s;,*]+)\s*(;.*)?")


@dataclass(frozen=True, kw_only=True)
class PinnedPackages:
    """One side of a bisection: a version for each package."""

    source: str
    """The name that the user typed for it, or the path of a file."""
    versions: Mapping[str, str]
    """By canonical package name."""
    hashes: Mapping[str, str]
    """Package name to the SHA-256 of the locked file, where the source has one."""
    python: str | None = None
    """The Python release that the packages were locked for or ran on, `3.11`."""

    def line(self, name: str) -> str:
        """Return the line of a requirements file for one package."""
        digest = self.hashes.get(name)
        return f"{name}=={self.versions[name]}" + (f" --hash=sha256:{digest}" if digest else "")


def read_pins(named: str, here: Project) -> PinnedPackages:
    """Read the pinned packages that a user names.

    `FILE` is a requirements file, a pylock or a file of evidence; `CELL` is an id or alias, for its lock in this
    checkout; `REVISION:CELL` is its lock at a revision of git.

    Raises:
        UsageError: the name is none of these, or the file pins nothing.
    """
    path = Path(named)
    if path.is_file():
        return _read_file(path)
    revision, colon, cell = named.rpartition(":")
    return _read_revision(here, revision, cell, named) if colon else _read_cell(here, named)


def pins_from_evidence(run: Evidence, source: str) -> PinnedPackages:
    """Return the packages that were installed in a run; `UsageError` when its evidence does not list them."""
    environment = run.report.get("environment", {})
    installed = environment.get("distributions") or {}
    if not isinstance(installed, dict) or not installed:
        raise UsageError(f"{source}: this evidence does not list the installed packages")
    versions = {str(canonicalize_name(str(name))): str(version) for name, version in installed.items()}
    python = ".".join(str(environment.get("python", "")).split(".")[:2]) or None
    return PinnedPackages(source=source, versions=versions, hashes={}, python=python)


def pins_from_distributions(
    distributions: Iterable[cell_lock.Distribution], source: str, python: str | None
) -> PinnedPackages:
    """Return the packages that a cell's lock pins, with the hashes of their files."""
    by_name = {item.name: item for item in distributions}
    return PinnedPackages(
        source=source,
        versions={name: item.version for name, item in by_name.items()},
        hashes={name: item.sha256 for name, item in by_name.items()},
        python=python,
    )


def _read_file(path: Path) -> PinnedPackages:
    if path.suffix == ".json":
        run = run_evidence.load_evidence(path)
        if not isinstance(run, Evidence):
            raise UsageError(run)
        return pins_from_evidence(run, str(path))
    text = data_files.read_data_text(path)
    if path.suffix == ".toml":
        return _parse_pylock(text, str(path))
    versions: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        pin = re.sub(r"(^|\s)#.*|\s--hash=\S+", "", line).strip()
        if not pin or pin.startswith("-"):  # an option, such as --index-url
            continue
        match = _PIN.fullmatch(pin)
        if match is None:
            raise UsageError(f"{path}: {pin} is not pinned; every line has to be NAME==VERSION")
        versions[canonicalize_name(match["name"])] = match["version"]
    if not versions:
        raise UsageError(f"{path}: it pins no package")
    return PinnedPackages(source=str(path), versions=versions, hashes={})


def _parse_pylock(text: str, name: str) -> PinnedPackages:
    try:
        packages = [(item["name"], item["version"]) for item in tomllib.loads(text)["packages"]]
        versions = {str(canonicalize_name(name)): version.strip() for name, version in packages}
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{name}: not a lock file (PEP 751): {error}; write it again with its tool") from None
    return PinnedPackages(source=name, versions=versions, hashes={})


def _read_cell(here: Project, named: str) -> PinnedPackages:
    cells = here.matrix.select_cells([named])
    if len(cells) != 1:
        raise UsageError(f"{named!r} selects {len(cells)} cells; name one cell, a file, or REVISION:CELL")
    locked = image_release.require_lock(here, cells[0])
    return pins_from_distributions(locked.distributions, named, cells[0].python)


def _read_revision(here: Project, revision: str, cell: str, named: str) -> PinnedPackages:
    """Read a cell's lock as a commit has it; an alias is looked up in that commit's matrix.yaml."""

    def read(path: str) -> str:
        return read_file_at(here.root, revision, path, named)

    aliases = yaml_document.parse_yaml(read("matrix.yaml"), f"{revision}:matrix.yaml").data.get("aliases") or {}
    identity = str(aliases.get(cell, cell))
    python = parse_cell(identity).python
    file = f"docker/cells/{identity}/cell.json"
    layers = parse_cell_document(read(file).encode(), f"{revision}:{file}")["layers"]
    distributions = (
        item
        for path in (f"docker/layers/{name}/requirements.txt" for name in layers)
        for item in cell_lock.parse_requirements(read(path), path)
    )
    return pins_from_distributions(distributions, named, python)
