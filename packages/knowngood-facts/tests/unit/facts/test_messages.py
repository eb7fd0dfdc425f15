"""The messages of packages: read from sources, harvested for each series, found by what a log shows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest
from packaging.version import Version

from knowngood.index.artefact import PackageIndex, PublishedFile
from knowngood_facts.facts import atlas_harvest
from knowngood_facts.facts.atlas_file import AtlasFile
from knowngood_facts.facts.atlas_harvest import AtlasPackage, MessageHarvest
from knowngood_facts.facts.message_store import (
    MessageKind,
    extract_messages,
    find_bare_asserts,
    find_messages,
    match_template,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

SOURCE = """
class Trainer:
    def __init__(self, size):
        if size is None:
            msg = f"Please set the size, or the {size!r} of the batch"
            raise ValueError(msg)
        elif size < 0:
            raise ValueError("A size of %d cannot be negative" % size)
        else:
            logger.error("The size {} was not used".format(size))
        assert self.groups == 0, "groups are initialized already"
        assert len(self.checkpoints) > 0
        try:
            import that
        except ImportError:
            raise ImportError("Install " + "that, which is required")
        raise ValueError(size)
"""


def test_messages_have_their_place_their_condition_and_gaps_for_values() -> None:
    messages = {(row.kind, row.text, row.condition) for row in extract_messages(SOURCE)}
    assert messages == {
        (MessageKind.RAISE, "Please set the size, or the {} of the batch", "size is None"),
        (MessageKind.RAISE, "A size of {} cannot be negative", "size < 0"),
        (MessageKind.LOG, "The size {} was not used", "not (size < 0)"),
        (MessageKind.ASSERT, "groups are initialized already", "self.groups == 0"),
        (MessageKind.ASSERT, "", "len(self.checkpoints) > 0"),
        (MessageKind.RAISE, "Install that, which is required", "except ImportError"),
    }
    assert {row.place for row in extract_messages(SOURCE)} == {"Trainer.__init__"}


def test_a_source_that_does_not_parse_has_no_messages() -> None:
    assert extract_messages("raise ValueError('a b c") == ()


@pytest.mark.parametrize(
    ("template", "text", "matches"),
    [
        ("Please set the size {} of the batch", "Please set the size 'None' of the batch", True),
        ("{} cannot be used with the option {}.", "Packing cannot be used with the option X.", True),
        ("Please set the size of the batch before training", "Please set the size of the batch", True),
        ("Please set the size {} of the batch", "Please set the length None of the batch", False),
        ("Please set {}", "Please set the size and much else that the template has not a word of", False),
    ],
)
def test_a_template_matches_its_own_text_only(template: str, text: str, matches: bool) -> None:
    assert bool(match_template(template, text)) is matches


SOURCES = {
    "1.0.0": {"lib/__init__.py": "raise ValueError('one wrong thing is there')"},
    "1.0.1": {"lib/__init__.py": "raise ValueError('another wrong thing is there')"},
    "1.1.0": {"lib/__init__.py": "raise ValueError('another wrong thing is there')\nassert left_over > right_over"},
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


@pytest.fixture
def harvested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtlasFile:
    monkeypatch.setattr(atlas_harvest, "open_bulk_archive", lambda file, _: Archive(file))
    with ThreadPoolExecutor(1) as workers:
        harvest = MessageHarvest(
            folder=tmp_path, index=cast("PackageIndex", Index()), workers=workers, notify=lambda _: None
        )
        package = AtlasPackage(name="lib", module="lib", since="2024-01-01")
        assert harvest.harvest_package(package).new == ("1.0.1", "1.1.0")
        assert harvest.harvest_package(package).new == ()
    return AtlasFile(tmp_path / "lib.atlas")


def test_the_last_release_of_each_series_is_read_once(harvested: AtlasFile) -> None:
    assert not list(find_messages("one wrong thing is there", harvested))
    (match,) = find_messages("another wrong thing is there", harvested)
    assert (match.module, match.mask, list(match.releases)) == ("lib", 0b11, ["1.0.1", "1.1.0"])


def test_an_assert_without_words_is_found_by_its_line(harvested: AtlasFile) -> None:
    (match,) = find_bare_asserts("assert left_over > right_over", "lib", harvested)
    assert match.mask == 0b10
    assert not list(find_bare_asserts("assert left_over < right_over", "lib", harvested))
