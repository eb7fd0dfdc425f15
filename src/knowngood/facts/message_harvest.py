"""The harvest of messages: what the packages of the atlas raise, assert and log as an error, in which releases.

Of each series of releases (4.45, 0.12) only the last is read: messages seldom change in a patch, and reading all would
take three times as long. A source that did not change since the release read before is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.facts.atlas_file import AtlasFile, AtlasTables
from knowngood.facts.atlas_harvest import (
    AtlasReport,
    choose_source,
    last_of_series,
    list_wanted_releases,
    select_sources,
)
from knowngood.facts.atlas_packages import AtlasPackage
from knowngood.facts.message_rows import MessageRow, extract_messages, group_rows
from knowngood.index.artefact import PackageIndex, PublishedFile, UnreadableError
from knowngood.index.remote_archive import open_bulk_archive

if TYPE_CHECKING:
    from knowngood.core.notify import Notify

_READER_REVISION = 1
"""Raised when the messages of the same source change; then every release is read again."""
_OPTION = "--messages"
_SAVE_EVERY = 8  # releases
_CHUNK = 48  # modules that one worker reads at a time
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
            if len(chunk) >= _CHUNK:
                jobs.append(self.workers.submit(_extract_all, chunk))
                chunk = []
        jobs.append(self.workers.submit(_extract_all, chunk))
        for job in jobs:
            rows.update({module: (keys[members[module]], messages) for module, messages in job.result()})
        return rows


def _extract_all(sources: list[tuple[str, str]]) -> list[tuple[str, tuple[MessageRow, ...]]]:
    """Read modules one after another; the work of one process."""
    return [(module, extract_messages(source)) for module, source in sources]
