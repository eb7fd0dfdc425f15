"""The harvest of the atlas, from archives that a test gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from packaging.version import Version

from knowngood.facts import atlas_harvest
from knowngood.facts.atlas_file import AtlasFile
from knowngood.facts.atlas_packages import AtlasPackage
from knowngood.index.artefact import PackageIndex, PublishedFile

SOURCES = {
    "1.0": {"lib-1.0.dist-info/METADATA": ""},
    "1.1": {"lib/__init__.py": "def old(): ..."},
    "1.2": {"lib/__init__.py": "def new(): ...", "lib/part.py": ""},
}


class Archive:
    """A wheel whose modules are the texts in `SOURCES` for its release."""

    def __init__(self, file: PublishedFile) -> None:
        self.members = SOURCES[str(file.version)]

    def content_keys(self) -> Mapping[str, str]:
        return self.members

    def read_members(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        yield from ((name, self.members[name].encode()) for name in names)


class Index:
    """An index with the wheels of one package."""

    session = None

    def files(self, project: str) -> tuple[PublishedFile, ...]:
        return tuple(
            PublishedFile(
                name=f"{project}-{version}-py3-none-any.whl",
                url="",
                sha256="",
                version=Version(version),
                yanked=False,
                uploaded="2025-01-01",
            )
            for version in SOURCES
        )


def test_a_release_without_sources_says_nothing_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atlas_harvest, "open_bulk_archive", lambda file, _: Archive(file))
    with ThreadPoolExecutor(1) as workers:
        report = atlas_harvest.harvest_atlas(
            AtlasPackage(name="lib", since="2024-01-01"),
            folder=tmp_path,
            index=cast("PackageIndex", Index()),
            workers=workers,
            callees=frozenset({"lib"}),
            notify=lambda _: None,
        )
    assert report.new == ("1.1", "1.2")
    assert report.failed == {"1.0": "lib-1.0-py3-none-any.whl has no Python sources"}
    assert AtlasFile(tmp_path / "lib.atlas").releases == ["1.1", "1.2"]
