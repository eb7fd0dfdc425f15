"""The harvest of the atlas and of messages: reads the sources of every release that is new, and writes the files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core import yaml_document
from knowngood.core.errors import InputError
from knowngood.core.local_files import FACTS_FOLDER
from knowngood.index.artefact import PackageIndex, PublishedFile, UnreadableError
from knowngood.index.releases import group_by_release
from knowngood.index.remote_archive import open_bulk_archive
from knowngood_facts.facts.atlas_file import READER_REVISION, AtlasFile, AtlasRow, AtlasTables, ModuleRows, RowKind
from knowngood_facts.facts.message_store import MessageRow, extract_messages, group_rows
from knowngood_facts.facts.module_rows import extract_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Executor

    from knowngood.core.notify import Notify
    from knowngood.index.releases import IndexedRelease

ATLAS_PACKAGES_FILE = f"{FACTS_FOLDER}/atlas/packages.yaml"
_KEYS = {"since", "packages", "series", "purposes"}


@dataclass(frozen=True, kw_only=True)
class AtlasField:
    """The packages of the atlas, and from when on their releases are read."""

    since: str
    """The day, `2024-01-01`, from which final releases are read."""
    modules: Mapping[str, str]
    """Normalized name of a package -> its top-level module."""
    series: Mapping[str, Version] = field(default_factory=dict)
    """Normalized name of a package -> the release from which only the last of each series is read."""
    purposes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Normalized name of a package -> the names for which people install it; without them it is of no use."""

    def package(self, name: str, floor: Version | None = None) -> AtlasPackage:
        """Return what to read of one of the packages, from a floor of matrix.yaml on too."""
        return AtlasPackage(
            name=name, module=self.modules[name], since=self.since, floor=floor, series=self.series.get(name)
        )


@dataclass(frozen=True, kw_only=True)
class AtlasPackage:
    """A package of the atlas with the releases of interest."""

    name: str
    module: str
    """The module below which its own modules lie, such as `trl`; other modules of its wheels are not read."""
    since: str
    """The day from which releases are read."""
    floor: Version | None = None
    """The release from which older ones are read too."""
    series: Version | None = None
    """The release from which the last of each series is read, and no other, whatever its day."""


def parse_atlas_field(text: str, file: str) -> AtlasField:
    """Return the rule in the text of `packages.yaml`; `InputError` with the line of what is wrong."""
    source = yaml_document.parse_yaml(text, file)
    data = source.data if isinstance(source.data, Mapping) else {}
    since, packages = data.get("since"), data.get("packages")
    problems = [source.problem([key], f"there is no key {key}", key=True) for key in data.keys() - _KEYS]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(since)):
        problems.append(source.problem(["since"], "`since` is a day such as 2024-01-01"))
    if not isinstance(packages, Mapping) or not packages:
        problems.append(source.problem(["packages"], "`packages` gives the top-level module of each package"))
        packages = {}
    for name, module in packages.items():
        if not str(module).isidentifier():
            problems.append(source.problem(["packages", name], f"{module} is not the name of a module"))
    modules: dict[str, str] = {canonicalize_name(str(name)): str(module) for name, module in packages.items()}
    series = dict[str, Version]()
    for name, version in (data.get("series") or {}).items():
        try:
            series[canonicalize_name(str(name))] = Version(str(version))
        except InvalidVersion:
            problems.append(source.problem(["series", name], f"{version} is not a release"))
        if canonicalize_name(str(name)) not in modules:
            problems.append(source.problem(["series", name], "`packages` does not have it"))
    purposes: dict[str, Sequence[str]] = {
        canonicalize_name(str(name)): names for name, names in (data.get("purposes") or {}).items()
    }
    problems += [
        source.problem(["purposes"], f"this lists names of the `packages`, of which {name} is none or has no list")
        for name, names in purposes.items()
        if not isinstance(names, list) or name not in modules
    ]
    if problems:
        raise InputError(problems)
    return AtlasField(since=str(since), modules=modules, series=series, purposes=purposes)


OLDEST_REVISION = 3
"""A file of this revision keeps its releases and gets new ones; an older file is read again from nothing."""

_SAVE_EVERY = 8  # releases
_CHUNK = 24  # modules that one worker reads at a time
_SKIPPED = re.compile(
    r"(?:^|/)(?:tests?|testing_utils_data|examples?|benchmarks?|docs?|scripts|third_party|_vendor|\.?venv)/"
    r"|(?:^|/)(?:setup|conftest|noxfile)\.py$"
    r"|(?:^|/)(?:modular_|convert_)\w+\.py$"
)
_COMPILED = re.compile(r"((?:\w+/)+\w+)\.(?:cpython-3\w+-[\w-]+|abi3)\.so")
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
    if tables.reader < OLDEST_REVISION or tables.root != fresh.root:
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
            release_rows = read_release_rows(file, package.module, index, workers, callees, known)
        except UnreadableError as error:
            tables.failed[version] = str(error)
            notify(f"{package.name} {version}: {error}")
            continue
        if release_rows is None:
            tables.sourceless[version] = file.name  # as transformer-engine 1.9.0, whose modules another package has
            tables.failed.pop(version, None)
            notify(f"{package.name} {version}: {file.name} has no Python sources")
            continue
        known = release_rows
        place = sum(Version(other) < release.version for other in tables.releases)
        tables.add_release(version, place, file.name, render_rows(known))
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


_COMPILED_MODULE = ModuleRows((AtlasRow("", RowKind.MODULE, "x"),), ())
"""A module without a source: it is there, and what it has inside is not known."""


def read_release_rows(  # noqa: PLR0913, PLR0917 - one step of `harvest_atlas`
    file: PublishedFile,
    top: str | None,
    index: PackageIndex,
    workers: Executor,
    callees: frozenset[str],
    known: Mapping[str, tuple[str, ModuleRows]],
) -> dict[str, tuple[str, ModuleRows]] | None:
    """Return module -> (content key, rows) of everything below the module `top`; `None` when it installs none at all.

    What has the key that it had in `known` is taken from there. Without `top` it is the module that is called like the
    package, else the one with the most sources.

    Raises:
        UnreadableError: the file cannot be read.
    """
    archive = open_bulk_archive(file, index.session)
    keys = archive.content_keys()
    sources = select_sources(keys)
    tops = Counter(module.partition(".")[0] for module in sources)
    own = frozenset(tops)
    guess = file.name.partition("-")[0].lower().replace(".", "_")
    top = top or (guess if guess in tops else next((name for name, _ in tops.most_common(1)), ""))
    members = {module: member for module, member in sources.items() if module.partition(".")[0] == top}
    if not members and not (file.is_wheel and own):
        return None  # an sdist may have sources of what builds it alone
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
    for member in keys:
        if (compiled := _COMPILED.fullmatch(_DATA.sub("", member))) and member.partition("/")[0] == top:
            rows.setdefault(compiled[1].replace("/", "."), (keys[member], _COMPILED_MODULE))
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


def render_rows(modules: Mapping[str, tuple[str, ModuleRows]]) -> dict[str, list[str]]:
    """Return module -> its rows as the file has them; of the uses in it under `@module`."""
    rendered: dict[str, list[str]] = {}
    for module, (_, rows) in modules.items():
        rendered[module] = [f"{row.path}\t{row.kind}\t{row.detail}" for row in rows.rows]
        if rows.uses:
            rendered[f"@{module}"] = [f"{use.target}\t{use.place}\t{use.guard}" for use in rows.uses]
    return rendered


_READER_REVISION = 1
"""Raised when the messages of the same source change; then every release is read again."""
_OPTION = "--messages"
_MESSAGE_CHUNK = 48  # modules that one worker reads at a time
_SPEAKS = re.compile(rb"\braise\b|\bassert\b|\.(?:error|critical|fatal|exception)\(")

_Known = Mapping[str, tuple[str, tuple[MessageRow, ...]]]
"""Module -> the key of its content, and its messages."""


@dataclass(frozen=True, kw_only=True)
class MessageHarvest:
    """What a harvest of messages works with."""

    folder: Path
    """The folder of the messages' files."""
    index: PackageIndex
    workers: Executor
    notify: Notify

    def harvest_package(self, package: AtlasPackage) -> AtlasReport:
        """Read the last release of every series that the package's file does not have.

        A series whose last release is a newer one now is read again: the older release is left out.

        Raises:
            UnreadableError: the index has no proper page of the package.
            InputError: the package's file is damaged.
        """
        path = self.folder / f"{package.name}.atlas"
        wanted = list(last_of_series(list_wanted_releases(package, self.index)))
        fresh = AtlasTables(package=package.name, root=package.module, option=_OPTION, reader=_READER_REVISION)
        tables = AtlasFile(path).tables() if path.exists() else fresh
        versions = {str(release.version) for release in wanted}
        if tables.reader != fresh.reader or not versions.issuperset(tables.releases):
            tables = fresh
        tables.option = _OPTION
        known: _Known = {}
        new: list[str] = []
        for release in wanted:
            version = str(release.version)
            file = None if version in tables.artefacts else choose_source(release.files)
            if file is None:
                continue
            try:
                known = self._read_release(package.module, file, known)
            except UnreadableError as error:
                tables.failed[version] = str(error)
                self.notify(f"{package.name} {version}: {error}")
                continue
            place = sum(Version(other) < release.version for other in tables.releases)
            rows = dict(group_rows({module: messages for module, (_, messages) in known.items() if messages}))
            tables.add_release(version, place, file.name, rows)
            new.append(version)
            self.notify(f"messages of {package.name} {version}: {sum(map(len, rows.values()))}")
            if len(new) % _SAVE_EVERY == 0:
                tables.write(self.folder, level=3)
        if new or not path.exists():
            tables.write(self.folder)
        return AtlasReport(
            package=package.name,
            new=tuple(new),
            known=len(tables.releases) - len(new),
            failed=dict(tables.failed),
            size=path.stat().st_size,
        )

    def _read_release(
        self, root: str, file: PublishedFile, known: _Known
    ) -> dict[str, tuple[str, tuple[MessageRow, ...]]]:
        """Return the messages of the modules below the package's own; what did not change is taken from `known`."""
        archive = open_bulk_archive(file, self.index.session)
        keys = archive.content_keys()
        members = {
            module: name
            for module, name in select_sources(keys).items()
            if name.endswith(".py") and module.partition(".")[0] == root
        }
        due = {
            name: module for module, name in members.items() if module not in known or known[module][0] != keys[name]
        }
        rows = {module: known[module] for module, name in members.items() if name not in due}
        jobs = []
        chunk: list[tuple[str, str]] = []
        for name, content in archive.read_members(due):
            if not _SPEAKS.search(content):
                rows[due[name]] = keys[name], ()
                continue
            chunk.append((due[name], content.decode("utf-8", "replace")))
            if len(chunk) >= _MESSAGE_CHUNK:
                jobs.append(self.workers.submit(_extract_all, chunk))
                chunk = []
        jobs.append(self.workers.submit(_extract_all, chunk))
        for job in jobs:
            rows.update({module: (keys[members[module]], messages) for module, messages in job.result()})
        return rows


def _extract_all(sources: list[tuple[str, str]]) -> list[tuple[str, tuple[MessageRow, ...]]]:
    """Read modules one after another; the work of one process."""
    return [(module, extract_messages(source)) for module, source in sources]
