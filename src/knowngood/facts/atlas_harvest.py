"""The harvest of the atlas: reads the sources of every release that is new, and writes each package's file.

A source that did not change since the release read before is not read again. A package's file is written after every
few releases, so that a harvest that was stopped goes on where it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.facts.atlas_file import AtlasFile, AtlasTables, ModuleRows
from knowngood.facts.harvest_run import group_by_release
from knowngood.facts.module_rows import extract_module
from knowngood.index.artefact import PackageIndex, PublishedFile, UnreadableError
from knowngood.index.bulk_members import open_bulk_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from knowngood.core.notify import Notify
    from knowngood.facts.atlas_packages import AtlasPackage
    from knowngood.facts.fact_reader import IndexedRelease

READER_REVISION = 3
"""Raised when the rows of the same source change; then every release is read again."""

_SAVE_EVERY = 8  # releases
_CHUNK = 24  # modules that one worker reads at a time
_SKIPPED = re.compile(
    r"(?:^|/)(?:tests?|testing_utils_data|examples?|benchmarks?|docs?|scripts|third_party|_vendor|\.?venv)/"
    r"|(?:^|/)(?:setup|conftest|noxfile)\.py$"
    r"|(?:^|/)(?:modular_|convert_)\w+\.py$"
)
_DATA = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/|^src/|^python/")


@dataclass(frozen=True, kw_only=True)
class AtlasReport:
    """What a harvest did to one package."""

    package: str
    new: tuple[str, ...]
    known: int
    """How many releases were read before."""
    failed: Mapping[str, str]
    size: int
    """How large its file is now, in bytes."""


def harvest_atlas(  # noqa: PLR0913 - the edges are given from outside
    package: AtlasPackage,
    *,
    folder: Path,
    index: PackageIndex,
    workers: Executor,
    callees: frozenset[str],
    notify: Notify,
) -> AtlasReport:
    """Read the releases of a package that its file does not have, oldest first.

    Raises:
        UnreadableError: the index has no proper page of the package.
        InputError: the package's file is damaged.
    """
    path = folder / f"{package.name}.atlas"
    fresh = AtlasTables(package=package.name, root=package.module, reader=READER_REVISION)
    tables = AtlasFile(path).tables() if path.exists() else fresh
    if (tables.reader, tables.root) != (fresh.reader, fresh.root):
        tables = fresh
    before = dict(tables.sourceless)
    known: dict[str, tuple[str, ModuleRows]] = {}
    new: list[str] = []
    for release in list_wanted_releases(package, index):
        version = str(release.version)
        if version in tables.artefacts:
            continue
        file = choose_source(release.files)
        if file is None:
            tables.failed[version] = "the release has no wheel and no sdist"
            continue
        if tables.sourceless.get(version) == file.name:
            continue
        try:
            known = _read_release(file, package.module, index, workers, callees, known)
        except UnreadableError as error:
            tables.failed[version] = str(error)
            notify(f"{package.name} {version}: {error}")
            continue
        if not known:
            tables.sourceless[version] = file.name  # as transformer-engine 1.9.0, whose modules another package has
            tables.failed.pop(version, None)
            notify(f"{package.name} {version}: {file.name} has no Python sources of {package.module}")
            continue
        place = sum(Version(other) < release.version for other in tables.releases)
        tables.add_release(version, place, file.name, _render_rows(known))
        new.append(version)
        notify(f"{package.name} {version}: {len(known)} modules")
        if len(new) % _SAVE_EVERY == 0:
            tables.write(folder, level=3)
    if new or tables.sourceless != before or not path.exists():
        tables.write(folder)
    return AtlasReport(
        package=package.name,
        new=tuple(new),
        known=len(tables.releases) - len(new),
        failed=dict(tables.failed),
        size=path.stat().st_size,
    )


def list_wanted_releases(package: AtlasPackage, index: PackageIndex) -> Iterator[IndexedRelease]:
    """Yield the final releases that are not withdrawn, oldest first; pre-releases when there is no final one."""
    releases = [
        release
        for release in group_by_release(package.name, index.files(package.name))
        if not release.yanked and _is_wanted(package, release)
    ]
    final = [release for release in releases if not release.version.is_prerelease]
    yield from last_of_series(final) if package.series else final or releases


def last_of_series(releases: Iterable[IndexedRelease]) -> Iterator[IndexedRelease]:
    """Yield of each series the last release: 4.45.2 of all 4.45, 0.0.28.post3 of all 0.0.28."""
    last: dict[tuple[int, ...], IndexedRelease] = {}
    for release in releases:
        numbers = release.version.release
        last[numbers[: 3 if numbers[:2] == (0, 0) else 2]] = release
    yield from last.values()


def _is_wanted(package: AtlasPackage, release: IndexedRelease) -> bool:
    if package.series is not None:
        return release.version >= package.series
    if package.floor is not None and release.version >= package.floor:
        return True
    return max((file.uploaded for file in release.files), default="") >= package.since


def choose_source(files: Sequence[PublishedFile]) -> PublishedFile | None:
    """Return the file to read sources from: a wheel for Linux x86-64 or any platform, else another, else the sdist."""

    def rank(file: PublishedFile) -> tuple[int, str]:
        name = file.name
        if not file.is_wheel:
            return (4 if name.endswith(".tar.gz") else 9, name)
        if name.endswith("-any.whl"):
            return 0, name
        if "x86_64" in name and "linux" in name:
            return 1 if re.search(r"-(cp311|abi3|py3)-", name) else 2, name
        return 3, name

    ranked = sorted((item for item in map(rank, files) if item[0] < 9), key=lambda item: item)
    return next((file for file in files if ranked and file.name == ranked[0][1]), None)


def _read_release(  # noqa: PLR0913, PLR0917 - one step of `harvest_atlas`
    file: PublishedFile,
    top: str,
    index: PackageIndex,
    workers: Executor,
    callees: frozenset[str],
    known: Mapping[str, tuple[str, ModuleRows]],
) -> dict[str, tuple[str, ModuleRows]]:
    """Return module -> (content key, rows) of everything below the module `top`.

    What has the key that it had in `known` is taken from there.
    """
    archive = open_bulk_archive(file, index.session)
    keys = archive.content_keys()
    sources = select_sources(keys)
    own = {module.partition(".")[0] for module in sources}
    members = {module: member for module, member in sources.items() if module.partition(".")[0] == top}
    rows: dict[str, tuple[str, ModuleRows]] = {}
    due = {}
    for module, member in members.items():
        old = known.get(module)
        if old is not None and old[0] == keys[member]:
            rows[module] = old
        else:
            due[member] = module
    jobs = []
    chunk: list[tuple[str, str, bool]] = []
    for member, content in archive.read_members(due):
        is_package = PurePosixPath(member).stem == "__init__"
        chunk.append((content.decode("utf-8", "replace"), due[member], is_package))
        if len(chunk) >= _CHUNK:
            jobs.append(workers.submit(extract_modules, chunk, callees - own))
            chunk = []
    jobs.append(workers.submit(extract_modules, chunk, callees - own))
    keys_of = {module: keys[member] for member, module in due.items()}
    for job in jobs:
        rows.update({module: (keys_of[module], module_rows) for module, module_rows in job.result()})
    return rows


def extract_modules(sources: Iterable[tuple[str, str, bool]], callees: frozenset[str]) -> list[tuple[str, ModuleRows]]:
    """Read (source, module, whether it is a package) one after another; the work of one process."""
    return [
        (module, extract_module(source, module, is_package=is_package, callees=callees))
        for source, module, is_package in sources
    ]


def select_sources(members: Iterable[str]) -> dict[str, str]:
    """Return module -> member of every source that belongs to the package; a stub only where there is no source."""
    chosen: dict[str, str] = {}
    for member in sorted(members, key=lambda name: (name.endswith(".pyi"), name)):
        if not member.endswith((".py", ".pyi")) or ".dist-info/" in member:
            continue
        path = _DATA.sub("", member)
        if _SKIPPED.search(path) or "/" not in path:
            continue
        parts = path.removesuffix("i").removesuffix(".py").split("/")
        if not all(part.isidentifier() for part in parts):
            continue
        if parts[-1] == "__init__":
            parts.pop()
        module = ".".join(parts)
        chosen.setdefault(module, member)
    return chosen


def _render_rows(modules: Mapping[str, tuple[str, ModuleRows]]) -> dict[str, list[str]]:
    rendered: dict[str, list[str]] = {}
    for module, (_, rows) in modules.items():
        rendered[module] = [f"{row.path}\t{row.kind}\t{row.detail}" for row in rows.rows]
        if rows.uses:
            rendered[f"@{module}"] = [f"{use.target}\t{use.place}\t{use.guard}" for use in rows.uses]
    return rendered
