"""The harvest of the atlas, from archives that a test gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest
from packaging.version import Version

from knowngood.index.artefact import PackageIndex, PublishedFile
from knowngood_facts.facts import atlas_harvest
from knowngood_facts.facts.atlas_file import AtlasFile, AtlasTables
from knowngood_facts.facts.atlas_harvest import ATLAS_PACKAGES_FILE, OLDEST_REVISION, AtlasPackage, parse_atlas_field
from knowngood_facts.facts.atlas_lookup import AtlasLookup, atlas_folder, list_atlas_packages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from knowngood_facts.facts.atlas_harvest import AtlasReport

SOURCES = {
    "1.0": {"lib-1.0.dist-info/METADATA": ""},
    "1.1": {"lib/__init__.py": "def old(): ..."},
    "1.2": {"lib/__init__.py": "def new(): ...", "lib/part.py": ""},
    "1.3": {"build_tools/build_ext.py": "def build(): ..."},
    "1.4": {"other/__init__.py": "def other(): ..."},
}


OPENED: list[str] = []


class Archive:
    """A wheel whose modules are the texts in `SOURCES` for its release."""

    def __init__(self, file: PublishedFile) -> None:
        OPENED.append(str(file.version))
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
                name=f"{project}-{version}" + (".tar.gz" if version == "1.3" else "-py3-none-any.whl"),
                url="",
                sha256="",
                version=Version(version),
                yanked=False,
                uploaded="2025-01-01",
            )
            for version in SOURCES
        )


def harvest(folder: Path) -> AtlasReport:
    with ThreadPoolExecutor(1) as workers:
        return atlas_harvest.harvest_atlas(
            AtlasPackage(name="lib", module="lib", since="2024-01-01"),
            folder=folder,
            index=cast("PackageIndex", Index()),
            workers=workers,
            callees=frozenset({"lib"}),
            notify=lambda _: None,
        )


def test_a_release_without_sources_of_its_module_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.3 has sources, but only of what builds it, as transformer-engine-torch's sdist; 1.4 is without the module."""
    monkeypatch.setattr(atlas_harvest, "open_bulk_archive", lambda file, _: Archive(file))
    report = harvest(tmp_path)
    assert report.new == ("1.1", "1.2", "1.4")
    assert not report.failed
    file = AtlasFile(tmp_path / "lib.atlas")
    assert file.releases == ["1.1", "1.2", "1.4"]
    assert file.sourceless == {"1.0": "lib-1.0-py3-none-any.whl", "1.3": "lib-1.3.tar.gz"}
    OPENED.clear()
    assert harvest(tmp_path).known == 3
    assert OPENED == []


@pytest.mark.parametrize(
    ("reader", "read"), [(OLDEST_REVISION, ["1.2", "1.4"]), (OLDEST_REVISION - 1, ["1.1", "1.2", "1.4"])]
)
def test_a_file_of_an_older_reader_gets_new_releases_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: int, read: list[str]
) -> None:
    monkeypatch.setattr(atlas_harvest, "open_bulk_archive", lambda file, _: Archive(file))
    tables = AtlasTables(package="lib", root="lib", reader=reader)
    tables.add_release("1.1", 0, "lib-1.1-py3-none-any.whl", {"lib": ["\tm\tp"]})
    tables.write(tmp_path)
    assert list(harvest(tmp_path).new) == read


def test_a_module_that_becomes_a_compiled_one_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = {"lib/__init__.py": "", "lib/part.cpython-311-x86_64-linux-gnu.so": "", "lib/libcudart.so": ""}
    sources = {"1.0": {"lib/__init__.py": "", "lib/part.py": "def run(): ..."}, "1.1": compiled}
    monkeypatch.setattr(atlas_harvest, "open_bulk_archive", lambda file, _: Archive(file))
    monkeypatch.setitem(globals(), "SOURCES", sources)
    harvest(tmp_path)
    lookup = AtlasLookup(AtlasFile(tmp_path / "lib.atlas"))
    assert lookup.find_name("lib.part").present == 0b11
    assert (lookup.find_name("lib.part.run").present, lookup.find_name("lib.part.run").unclear) == (0b01, 0b10)
    assert not lookup.find_name("lib.libcudart").present


def test_every_package_of_the_rule_is_read_below_its_module_in_at_most_15_mb() -> None:
    folder = atlas_folder()
    field = parse_atlas_field((folder / "packages.yaml").read_text("utf-8"), ATLAS_PACKAGES_FILE)
    assert {name: AtlasFile(folder / f"{name}.atlas").root for name in list_atlas_packages()} == field.modules
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 15_000_000
