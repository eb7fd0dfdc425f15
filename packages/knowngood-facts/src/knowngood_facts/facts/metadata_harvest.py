"""The harvest of metadata: reads the releases that are new, many at a time, and replaces each package's file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from threading import Event
from typing import TYPE_CHECKING

from packaging.markers import UndefinedEnvironmentName
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core import yaml_document
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import InputError
from knowngood.core.local_files import FACTS_FOLDER, write_atomically
from knowngood.core.package_names import parse_requirement_text
from knowngood.index.artefact import NoProjectError, PackageIndex, PublishedFile, UnansweredError, UnreadableError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.releases import IndexedRelease, choose_wheel_by, group_by_release
from knowngood.index.remote_metadata import fetch_metadata_text
from knowngood.index.wheel_metadata import linux_environment
from knowngood_facts.facts.harvest_run import HarvestReport
from knowngood_facts.facts.package_metadata import (
    SCHEMA,
    SNAPSHOT_FILE,
    SUFFIX,
    MetadataSource,
    PackageMetadata,
    ReleaseMetadata,
    forget_read_metadata,
    list_metadata_packages,
    parse_package_metadata,
    read_newest_metadata,
    read_package_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from knowngood.core.notify import Notify

_PACKAGES = 4  # whose pages are read at once
_CONNECTIONS = 16  # on which releases are read


def harvest_metadata(  # noqa: PLR0913 - tests replace `index`
    packages: Sequence[str],
    *,
    folder: Path,
    notify: Notify,
    refresh: bool = False,
    field: MetadataField | None = None,
    index: PackageIndex | None = None,
) -> HarvestReport:
    """Read the releases of these packages that `folder` does not know yet, and replace the packages' files.

    `refresh` reads the known releases too. With `field`, all that the packages require is read as well, and so on, by
    the rule of that field. A release that could not be reached is left out of the file, and so is read
    the next time; one whose metadata is broken is kept with the source `none`.

    Raises:
        InputError: a file in `folder` is damaged; it is not overwritten.
    """
    index = index or SimpleIndex(connections=_CONNECTIONS)
    report = HarvestReport()
    names: list[str] = list(dict.fromkeys(map(canonicalize_name, packages)))
    extras: dict[str, set[str]] = {name: set() for name in names}
    with ThreadPoolExecutor(_CONNECTIONS) as readers, ThreadPoolExecutor(_PACKAGES) as pages:
        harvest = _MetadataHarvest(
            index=index, folder=folder, refresh=refresh, readers=readers, field=field, named=frozenset(names)
        )
        while names:
            for part in pages.map(harvest.harvest_package, names):
                _add_report(report, part, notify)
            if harvest.silent.is_set():
                report.failed["index"] = "the index did not answer, so the packages that were left were not asked for"
                break
            names = _follow_requirements(extras, folder) if field else []
            if field and len(extras) > field.at_most:
                listed = ", ".join(names[:3])
                report.failed["field"] = (
                    f"more than {field.at_most} packages are required; {listed} and others are left"
                )
                break
    if not report.failed and set(list_metadata_packages(folder)) <= extras.keys():
        write_atomically(folder / SNAPSHOT_FILE, f"{datetime.now(UTC).date()}\n")
    return report


def refresh_metadata(
    packages: Sequence[str], *, folder: Path, own: Path, notify: Notify, index: PackageIndex | None = None
) -> HarvestReport:
    """Read the releases of these packages that neither `folder` nor `own` knows, and write all of them into `own`.

    Raises:
        InputError: a file in one of the folders is damaged.
    """
    for name in map(canonicalize_name, packages):
        newest = read_newest_metadata(name, folder, own)
        if newest is not None and newest is read_package_metadata(name, folder):
            write_atomically(own / f"{name}{SUFFIX}", read_data_text(folder / f"{name}{SUFFIX}"))
    report = harvest_metadata(packages, folder=own, notify=notify, index=index)
    forget_read_metadata()
    return report


def _follow_requirements(extras: dict[str, set[str]], folder: Path) -> list[str]:
    """Add to `extras` (name -> extras in use) what the packages in it require, and return the names that are new."""
    before = set(extras)
    todo = list(extras)
    while todo:
        package = _read_file(folder, name := todo.pop())
        for required, wanted in find_required_packages(package, extras[name]).items() if package else ():
            if not wanted <= extras.setdefault(required, set()):
                extras[required] |= wanted
                todo.append(required)
    return sorted(extras.keys() - before)


def _read_file(folder: Path, name: str) -> PackageMetadata | None:
    path = folder / f"{name}{SUFFIX}"
    return parse_package_metadata(read_data_text(path), str(path)) if path.exists() else None


def _add_report(report: HarvestReport, part: HarvestReport, notify: Notify) -> None:
    report.new += part.new
    report.unchanged += part.unchanged
    report.unknown |= part.unknown
    report.failed |= part.failed
    report.unanswered |= part.unanswered
    for name, reason in part.failed.items():
        notify(f"{name}: {reason}")
    if part.new:
        package = part.new[0].partition(" ")[0]
        notify(f"{package}: {len(part.new)} releases read, {part.unchanged} known before")


@dataclass(frozen=True, kw_only=True)
class MetadataField:
    """The rule by which packages and releases are chosen."""

    seeds: tuple[str, ...]
    """The packages to start from, by their names in lower case with single dashes (PEP 503)."""
    at_most: int
    """The most packages that following requirements may give."""


@dataclass(frozen=True, kw_only=True)
class _MetadataHarvest:
    """What the packages of one harvest share."""

    index: PackageIndex
    folder: Path
    refresh: bool
    readers: Executor
    field: MetadataField | None
    named: frozenset[str]
    """The packages that the harvest began with; the others are followed requirements."""
    silent: Event = dataclasses.field(default_factory=Event)
    """Set when the index did not answer for a package; it is asked for no other then."""

    def harvest_package(self, name: str) -> HarvestReport:
        """Read one package and write its file."""
        report = HarvestReport()
        if self.silent.is_set():
            return report
        path = self.folder / f"{name}{SUFFIX}"
        package = _read_file(self.folder, name)
        known: Mapping[str, ReleaseMetadata] = package.releases if package else {}
        try:
            listed = group_by_release(name, self.index.files(name))
        except UnreadableError as error:
            report.unanswered = isinstance(error, UnansweredError)
            if report.unanswered:
                self.silent.set()
            # A release may require what is on no index (a private package); that is no failure of the harvest.
            # Nor is it one that the index still lacks what it lacked the last time.
            is_known = isinstance(error, NoProjectError) and package is not None and not known
            is_failure = (name in self.named and not is_known) or error.again
            (report.failed if is_failure else report.unknown)[name] = str(error)
            if isinstance(error, NoProjectError) and not known:  # so that what requires it is known to be impossible
                write_atomically(path, render_package_metadata(name, ()))
            return report
        due = [release for release in listed if self.refresh or _is_due(known.get(str(release.version)), release)]
        readings = self.readers.map(self._read_release, due)
        kept = {version: known[version] for version in known}  # also what the index lists no more
        for release in listed:
            if (version := str(release.version)) in kept:
                kept[version] = describe_release(release, kept[version])
        for release, reading in zip(due, readings, strict=True):
            version, before = str(release.version), kept.get(str(release.version))
            if reading.reason:
                report.unknown[f"{name} {version}"] = reading.reason
            if reading.metadata is not None and not (before and before.source != "none" and reading.reason):
                kept[version] = reading.metadata
        report.new = [f"{name} {version}" for version, release in kept.items() if release != known.get(version)]
        report.unchanged = len(kept) - len(report.new)
        write_atomically(path, render_package_metadata(name, kept.values()))
        return report

    def _read_release(self, release: IndexedRelease) -> _Reading:
        try:
            metadata = read_release_metadata(release, lambda file: fetch_metadata_text(file, self.index.session))
        except UnreadableError as error:
            return _Reading(metadata=None if error.again else describe_release(release), reason=str(error))
        return _Reading(metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The result of reading one release; without metadata it is read again in the next harvest."""

    metadata: ReleaseMetadata | None
    reason: str = ""


def _is_due(known: ReleaseMetadata | None, release: IndexedRelease) -> bool:
    """Whether a release is new, or has a wheel by now while only its sdist was read before."""
    return known is None or (
        known.source in ("none", "dynamic") and not known.wheels and choose_metadata_file(release).is_wheel
    )


_STATIC_SINCE = Version("2.2")
"""The metadata version from which an sdist says which of its fields are dynamic (PEP 643)."""
_choose_linux_wheel = choose_wheel_by("-cp311-cp311-", "-none-any", "-cp311-", "-abi3-", "-cp310-", "-cp312-")


def choose_metadata_file(release: IndexedRelease) -> PublishedFile:
    """Return the file whose metadata stands for the release.

    A wheel for CPython 3.11 on Linux x86_64, else for any platform, else any wheel, else the sdist: releases whose
    wheels declare different things are rare, and resolvers read one wheel too.
    """
    wheels = (file for file in release.files if file.is_wheel)
    return _choose_linux_wheel(release) or next(wheels, release.files[0])


def describe_release(release: IndexedRelease, known: ReleaseMetadata | None = None) -> ReleaseMetadata:
    """Return what the index's page states of a release, with the requirements of `known`, or else none."""
    days = [file.uploaded for file in release.files if file.uploaded]
    kept = known or ReleaseMetadata(
        version=str(release.version),
        requires_python=next((file.requires_python for file in release.files if file.requires_python), ""),
        requirements=(),
        extras=(),
        wheels=(),
        has_sdist=False,
        yanked=False,
        source="none",
        uploaded="",
    )
    return replace(
        kept,
        wheels=tuple(sorted({_tags_of_name(file.name) for file in release.files if file.is_wheel})),
        has_sdist=any(not file.is_wheel for file in release.files),
        yanked=release.yanked,
        uploaded=min(days, default=kept.uploaded),
    )


def read_release_metadata(release: IndexedRelease, fetch: Callable[[PublishedFile], bytes]) -> ReleaseMetadata:
    """Return what a release declares; `fetch` returns the metadata of a file.

    Raises:
        UnreadableError: the chosen file has no metadata, or it cannot be read.
    """
    published = choose_metadata_file(release)
    raw, _ = parse_email(fetch(published))
    if not raw.get("name"):
        raise UnreadableError(f"the metadata of {published.name} has no name")
    described = describe_release(release)
    python = _join_words(raw.get("requires_python", "")) or described.requires_python
    described = replace(described, requires_python=python)
    source: MetadataSource = "wheel" if published.is_wheel else "sdist"
    if source == "sdist" and not _is_static(raw.get("metadata_version", ""), raw.get("dynamic", ())):
        if not raw.get("requires_dist"):
            return described
        source = "dynamic"
    return replace(
        described,
        requirements=tuple(sorted({spell_requirement(line) for line in raw.get("requires_dist", ())})),
        extras=tuple(sorted({_join_words(name) for name in raw.get("provides_extra", ())})),
        source=source,
    )


def spell_requirement(text: str) -> str:
    """Return a requirement in the one spelling of `packaging`; as it is, with single spaces, when it does not parse.

    Builders spell the same requirement in several ways (`torch (>=1.4)`, `torch>=1.4`); one spelling keeps the files
    small and their differences readable.
    """
    try:
        return str(parse_requirement_text(text))
    except InvalidRequirement:
        return _join_words(text)


def _is_static(version: str, dynamic: Iterable[str]) -> bool:
    """Whether an sdist's requirements are those of every wheel that is built from it."""
    try:
        is_new = Version(version) >= _STATIC_SINCE
    except InvalidVersion:
        return False
    return is_new and not {"requires-dist", "provides-extra"} & {name.lower() for name in dynamic}


def _tags_of_name(name: str) -> str:
    return "-".join(name.removesuffix(".whl").split("-")[-3:])


def _join_words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def render_package_metadata(name: str, releases: Iterable[ReleaseMetadata]) -> str:
    """Return the text of a package's file; the releases may come in any order."""
    lines = [f"{SCHEMA} {name}", f"regenerate: knowngood harvest --metadata {name}"]
    python = ""
    requirements: Collection[str] = ()
    extras: Collection[str] = ()
    wheels: Collection[str] = ()
    for release in sorted(releases, key=lambda release: Version(release.version)):
        lines.append(_head(release))
        if release.requires_python != python:
            python = release.requires_python
            lines.append(f"py {python}")
        if release.source != "none":  # what is not known ends nothing
            lines += _differences("r", requirements, release.requirements)
            lines += _differences("x", extras, release.extras)
            requirements, extras = release.requirements, release.extras
        lines += _differences("w", wheels, release.wheels)
        wheels = release.wheels
    return "\n".join(lines) + "\n"


def _head(release: ReleaseMetadata) -> str:
    words = ["=", release.version, release.uploaded or "-", release.source]
    words += ["sdist"] * release.has_sdist + ["yanked"] * release.yanked
    return " ".join(words)


def _differences(kind: str, before: Collection[str], after: Collection[str]) -> Iterator[str]:
    yield from (f"{kind}- {value}" for value in sorted(set(before) - set(after)))
    yield from (f"{kind}+ {value}" for value in sorted(set(after) - set(before)))


SEEDS_FILE = f"{FACTS_FOLDER}/metadata/seeds.yaml"
_TARGETS = tuple(product([f"3.{minor}" for minor in range(8, 16)], ["x86_64", "aarch64"]))
"""The Pythons and machines for which a requirement may hold; one that holds for none of them is not followed."""


def parse_metadata_field(text: str, file: str) -> MetadataField:
    """Return the rule in the text of `seeds.yaml`; `InputError` with the line of what is wrong."""
    source = yaml_document.parse_yaml(text, file)
    data = source.data if isinstance(source.data, Mapping) else {}
    seeds, at_most = data.get("seeds"), data.get("at_most")
    problems = []
    names = [str(name) for name in seeds] if isinstance(seeds, list) else []
    if not names:
        problems.append(source.problem(["seeds"], "`seeds` is the list of the packages to start from"))
    if not re.fullmatch(r"[1-9]\d{0,4}", str(at_most)):
        problems.append(source.problem(["at_most"], "`at_most` is a number of packages"))
    problems += [source.problem([key], f"there is no key {key}", key=True) for key in data.keys() - _KEYS]
    if problems:
        raise InputError(problems)
    return MetadataField(seeds=tuple(dict.fromkeys(map(canonicalize_name, names))), at_most=int(str(at_most)))


_KEYS = {"seeds", "at_most"}


def find_required_packages(package: PackageMetadata, extras: Iterable[str]) -> dict[str, set[str]]:
    """Return normalized name -> extras of all that any release requires on Linux, with these extras of its own."""
    required: dict[str, set[str]] = {}
    wanted = ("", *sorted(extras))
    for text in {text for release in package.releases.values() for text in release.requirements}:
        requirement = _parse_requirement(text)
        if requirement is not None and any(_may_hold(text, extra) for extra in wanted):
            name = canonicalize_name(requirement.name)
            required.setdefault(name, set()).update(canonicalize_name(extra) for extra in requirement.extras)
    return required


@cache
def _parse_requirement(text: str) -> Requirement | None:
    try:
        return parse_requirement_text(text)
    except InvalidRequirement:
        return None


@cache
def _may_hold(text: str, extra: str) -> bool:
    """Whether a requirement holds for some Linux machine and Python, with this extra."""
    requirement = _parse_requirement(text)
    if requirement is None or requirement.marker is None:
        return requirement is not None
    try:
        return any(
            requirement.marker.evaluate(linux_environment(python, machine) | {"extra": extra})
            for python, machine in _TARGETS
        )
    except UndefinedEnvironmentName:
        return False
