"""The names of single releases that the atlas lacks, read for a user's question, and what breaks between them.

The user's folder has the atlas' files as links, and a file of its own for each package with releases that were added.
Below it, `trl==0.7.1.atlas` has the names of one release alone, and `trl==0.7.1.uses.json.gz` the uses in it that
releases of other packages break.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.core.data_files import read_data_text, write_compressed_text
from knowngood.index.artefact import UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import group_by_release
from knowngood_facts.facts.atlas_file import READER_REVISION, AtlasFile, AtlasTables
from knowngood_facts.facts.atlas_harvest import choose_source, parse_atlas_field, read_release_rows, render_rows
from knowngood_facts.facts.atlas_lookup import forget_opened_atlas, list_read_releases
from knowngood_facts.facts.broken_use_table import read_broken_uses, releases_folder, table_path
from knowngood_facts.facts.broken_uses import compute_broken_uses

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from knowngood.core.notify import Notify
    from knowngood.index.artefact import PackageIndex

Release = tuple[str, str]
"""A package and its version."""


@dataclass(kw_only=True)
class NameReport:
    """What a reading of names did."""

    new: list[str] = field(default_factory=list)
    """The releases that were read, as `trl 0.7.1`."""
    failed: dict[str, str] = field(default_factory=dict)
    """A release that could not be read -> why."""


def read_pairs_of_releases(
    pairs: Collection[tuple[Release, Release]],
    *,
    shipped: Path,
    own: Path,
    notify: Notify,
    index: PackageIndex | None = None,
) -> NameReport:
    """Read the names of releases that nobody read, and judge what breaks between the two of each pair.

    Args:
        pairs: a release, and one of a package that it uses.
        shipped: the atlas that comes with the program.
        own: the user's folder, in which all is kept.
        notify: is told what is read.
        index: where releases are; the package index when it is left out.

    Raises:
        InputError: a file in one of the folders is damaged.
    """
    _link_files(shipped, own)
    modules = parse_atlas_field(read_data_text(own / "packages.yaml"), "packages.yaml").modules
    callees: dict[Release, set[str]] = defaultdict(set)
    for caller, callee in pairs:
        callees[caller].add(callee[0])
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        reading = _Reading(own, modules, index or SimpleIndex(), workers, notify)
        for release in dict.fromkeys(item for pair in pairs for item in pair):
            reading.take(release, is_caller=release in callees)
    forget_opened_atlas()
    for (name, version), used in callees.items():
        among = {callee for callee in used if (own / f"{callee}.atlas").exists()}
        if among and reading.single(name, version).exists():
            notify(f"judging what {name} {version} uses of {', '.join(sorted(among))}")
            _judge_release(name, version, among, own, reading.single(name, version))
    read_broken_uses.cache_clear()
    return reading.report


def _link_files(shipped: Path, own: Path) -> None:
    """Make the user's folder show the atlas; a file with added releases stays while it has all that the atlas has."""
    own.mkdir(parents=True, exist_ok=True)
    for path in (*shipped.glob("*.atlas"), shipped / "packages.yaml"):
        link = own / path.name
        added = not link.is_symlink() and path.suffix == ".atlas" and link.exists()
        if added and set(list_read_releases(path.stem, shipped)) <= set(list_read_releases(path.stem, own)):
            continue
        link.unlink(missing_ok=True)
        if added:  # the atlas has more now, so what was judged by the older one is judged again
            shutil.rmtree(releases_folder(own), ignore_errors=True)
        link.symlink_to(path.resolve())


@dataclass(frozen=True)
class _Reading:
    """What the releases that are read for one question have in common."""

    own: Path
    modules: Mapping[str, str]
    """Package of the atlas -> its top-level module."""
    index: PackageIndex
    workers: Executor
    notify: Notify
    report: NameReport = field(default_factory=NameReport)

    def single(self, name: str, version: str) -> Path:
        """Return the file of one release alone."""
        return releases_folder(self.own) / f"{name}=={version}.atlas"

    def take(self, release: Release, *, is_caller: bool) -> None:
        """Read a release that neither the atlas nor the user's folder has; a caller gets a file of its own."""
        name, version = release
        merged = self.own / f"{name}.atlas"
        if self.single(name, version).exists() or not (is_caller or name in self.modules):
            return
        if version in list_read_releases(name, self.own):
            if is_caller:
                _keep_release(AtlasFile(merged).tables(), version).write_as(self.single(name, version))
            return
        if self.report.failed:  # the index does not answer
            return
        try:
            single = self._read(name, version)
        except UnreadableError as error:
            key = "" if isinstance(error, UnansweredError) else f"{name} {version}"
            self.report.failed[key] = str(error)
            return
        single.write_as(self.single(name, version))
        if name in self.modules:
            tables = AtlasFile(merged).tables()
            place = sum(Version(other) < Version(version) for other in tables.releases)
            rows = {module: list(table) for module, table in single.masks.items()}
            tables.add_release(version, place, single.artefacts[version], rows)
            tables.write(self.own, level=3)
            forget_opened_atlas()
        self.report.new.append(f"{name} {version}")

    def _read(self, name: str, version: str) -> AtlasTables:
        self.notify(f"reading the names in {name} {version}")
        listed = group_by_release(name, self.index.files(name))
        files = next((release.files for release in listed if release.version == Version(version)), ())
        source = choose_source(files)
        if source is None:
            raise UnreadableError(f"the index has no file of {name} {version} with sources")
        callees = frozenset(self.modules.values())
        rows = read_release_rows(source, self.modules.get(name), self.index, self.workers, callees, {})
        if not rows:
            raise UnreadableError(f"{source.name} has no Python sources")
        root = next(iter(rows)).partition(".")[0]
        tables = AtlasTables(package=name, root=root, reader=READER_REVISION)
        tables.add_release(version, 0, source.name, render_rows(rows))
        return tables


def _keep_release(tables: AtlasTables, version: str) -> AtlasTables:
    """Return tables of one release alone."""
    bit = 1 << tables.releases.index(version)
    single = AtlasTables(package=tables.package, root=tables.root, reader=tables.reader)
    rows = {module: [row for row, mask in table.items() if mask & bit] for module, table in tables.masks.items()}
    single.add_release(version, 0, tables.artefacts[version], {module: kept for module, kept in rows.items() if kept})
    return single


def _judge_release(name: str, version: str, among: Collection[str], own: Path, single: Path) -> None:
    """Write what releases of these packages break in one release; what was judged of other packages stays."""
    key = f"{name}=={version}"
    table = compute_broken_uses(name, own, among, single)
    callees = {callee: list_read_releases(callee, own) for callee in sorted(among)}
    uses = {callee: table.uses.get(callee, ()) for callee in callees}
    before = read_broken_uses(key, releases_folder(own))
    if before is not None:
        callees = {**before.callees, **callees}
        uses = {**before.uses, **uses}
    write_compressed_text(table_path(key, releases_folder(own)), replace(table, callees=callees, uses=uses).render())
