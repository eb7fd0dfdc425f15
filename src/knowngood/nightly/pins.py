"""What `knowngood bisect` is told to compare: a file, a cell's lock, or a cell's lock at a revision of git."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from knowngood import evidence
from knowngood.errors import UsageError
from knowngood.evidence import Evidence
from knowngood.locks import lock
from knowngood.solving import query

if TYPE_CHECKING:
    from knowngood.project import Project


@dataclass(frozen=True, kw_only=True)
class Pins:
    """One end of a bisection."""

    source: str
    """As it was named."""
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    """Name -> SHA-256 of the locked file, where the source has one."""
    python: str | None = None
    """The release that it was seen with."""

    def line(self, name: str) -> str:
        """The requirement of one package."""
        digest = self.hashes.get(name)
        return f"{name}=={self.versions[name]}" + (f" --hash=sha256:{digest}" if digest else "")


def read(named: str, here: Project) -> Pins:
    """Read an end; raises `UsageError` for what is none.

    `FILE`: requirements, a pylock, or evidence; `CELL` or an alias: its lock as it lies here; `REVISION:CELL`.
    """
    path = Path(named)
    if path.is_file():
        return _file(path)
    revision, colon, words = named.rpartition(":")
    return _revision(here, revision, words, named) if colon else _cell(here, named)


def of_evidence(run: Evidence, source: str) -> Pins:
    """What was installed in a run."""
    environment = run.report.get("environment", {})
    installed = environment.get("distributions") or {}
    if not isinstance(installed, dict) or not installed:
        raise UsageError(f"{source}: the run does not say what was installed")
    versions = {str(canonicalize_name(str(name))): str(version) for name, version in installed.items()}
    python = ".".join(str(environment.get("python", "")).split(".")[:2]) or None
    return Pins(source=source, versions=versions, hashes={}, python=python)


def of_distributions(items: Iterable[lock.Distribution], source: str, python: str | None) -> Pins:
    """What a lock pins."""
    found = {item.name: item for item in items}
    return Pins(
        source=source,
        versions={name: item.version for name, item in found.items()},
        hashes={name: item.sha256 for name, item in found.items()},
        python=python,
    )


def _file(path: Path) -> Pins:
    if path.suffix == ".json":
        run = evidence.load(path)
        if not isinstance(run, Evidence):
            raise UsageError(run)
        return of_evidence(run, str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    if path.suffix == ".toml":
        return _pylock(text, str(path))
    versions: dict[str, str] = {}
    for wanted in query.listing(text, str(path)):
        if not wanted.specifier.startswith("==") or "," in wanted.specifier:
            raise UsageError(f"{path}: {wanted.name} is not pinned; every line is NAME==VERSION")
        versions[canonicalize_name(wanted.name)] = wanted.specifier[2:] + (f"+{wanted.local}" if wanted.local else "")
    if not versions:
        raise UsageError(f"{path}: it pins nothing")
    return Pins(source=str(path), versions=versions, hashes={})


def _pylock(text: str, name: str) -> Pins:
    try:
        packages = tomllib.loads(text)["packages"]
        versions = {str(canonicalize_name(item["name"])): str(item["version"]) for item in packages}
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{name}: not a lock file (PEP 751): {error!r}") from None
    return Pins(source=name, versions=versions, hashes={})


def _cell(here: Project, words: str) -> Pins:
    from knowngood import select
    from knowngood.publishing import release

    cells = select.select(here.matrix.cells, here.matrix.aliases, [words])
    if len(cells) != 1:
        raise UsageError(f"{words!r} is {len(cells)} cells; name one, a file, or REVISION:CELL")
    locked = release.committed(here, cells[0])
    return of_distributions(locked.distributions, words, cells[0].python)


def _revision(here: Project, revision: str, words: str, named: str) -> Pins:
    """A cell's lock as a commit has it; an alias is that of the commit's own matrix.yaml."""
    from knowngood import cell as cells
    from knowngood import document

    def shown(path: str) -> str:
        return _show(here.root, revision, path, named)

    aliases = document.parse(shown("matrix.yaml"), f"{revision}:matrix.yaml").data.get("aliases") or {}
    identity = str(aliases.get(words, words))
    python = cells.parse(identity).python
    try:
        layers = json.loads(shown(f"docker/cells/{identity}/cell.json"))["layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{named}: its cell.json is damaged ({error!r})") from None
    return of_distributions(_layers(layers, shown), named, python)


def _layers(names: Iterable[str], shown: Callable[[str], str]) -> Iterable[lock.Distribution]:
    for name in names:
        path = f"docker/layers/{name}/requirements.txt"
        yield from lock.parse_requirements(shown(path), path)


def _show(root: Path, revision: str, path: str, named: str) -> str:
    argv = ["git", "-C", str(root), "show", "--end-of-options", f"{revision}:./{path}"]
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UsageError(f"{named}: git cannot be run ({error.strerror})") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["git says no more"])[-1]
        raise UsageError(f"{named}: neither a file nor a cell at a revision: {said}")
    return done.stdout
