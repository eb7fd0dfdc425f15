"""The stored tables of broken uses: what is written is read, and the tables of this checkout follow from its atlas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_broken_uses import LIB

from atlas_samples import write_atlas
from knowngood.core.data_files import read_compressed_text, write_compressed_text
from knowngood.core.errors import InputError
from knowngood_facts.facts import broken_use_renewal
from knowngood_facts.facts.atlas_lookup import atlas_folder, open_atlas
from knowngood_facts.facts.broken_use_renewal import renew_broken_uses
from knowngood_facts.facts.broken_use_table import list_table_packages, read_broken_uses, table_path
from knowngood_facts.facts.broken_uses import compute_broken_uses

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood_facts.facts.broken_use_table import BrokenUseTable


def write_pair(folder: Path) -> None:
    write_atlas(folder, "lib", *LIB)
    source = "from lib import old\nimport lib\ndef go():\n    lib.run(1, b=2)"
    write_atlas(folder, "app", {"app": "from .core import go", "app.core": source}, {"app": ""})


def test_a_table_that_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    write_pair(tmp_path)
    assert renew_broken_uses(tmp_path) == ["app"]
    table = read_broken_uses("app", tmp_path)
    assert table == compute_broken_uses("app", tmp_path)
    assert [(use.target, use.reached, use.callees) for use in table.uses["lib"]] == [
        ("lib:old", 0b01, 0b110),
        ("lib:run", 0, 0b001),
    ]
    assert renew_broken_uses(tmp_path) == []
    assert read_broken_uses("lib", tmp_path) is None


def test_only_the_use_of_the_named_packages_is_judged(tmp_path: Path) -> None:
    write_pair(tmp_path)
    assert compute_broken_uses("app", tmp_path, {"lib"}) == compute_broken_uses("app", tmp_path)
    assert compute_broken_uses("app", tmp_path, {"other"}).uses == {}


def test_the_table_of_a_caller_that_nothing_breaks_any_more_goes(tmp_path: Path) -> None:
    write_pair(tmp_path)
    renew_broken_uses(tmp_path)
    again = tmp_path / "again"
    write_atlas(again, "lib", *LIB)
    write_atlas(again, "app", {"app": "import lib"})
    table_path("app", again).write_bytes(table_path("app", tmp_path).read_bytes())
    assert renew_broken_uses(again) == ["app"]
    assert list_table_packages(again) == []


def test_only_pairs_with_a_changed_package_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pair(tmp_path)
    write_atlas(tmp_path, "other", {"other": "def part(): ..."}, {"other": ""})
    write_atlas(tmp_path, "tool", {"tool": "from lib import old\nfrom other import part\nimport lib"})
    judged = []

    def compute(package: str, folder: Path, among: set[str] | None) -> BrokenUseTable:
        judged.append((package, among))
        return compute_broken_uses(package, folder, among)

    monkeypatch.setattr(broken_use_renewal, "compute_broken_uses", compute)
    assert renew_broken_uses(tmp_path) == ["app", "tool"]
    judged.clear()
    assert (renew_broken_uses(tmp_path), judged) == ([], [])
    write_atlas(tmp_path, "lib", *LIB, {"lib": ""})
    assert renew_broken_uses(tmp_path) == ["app", "tool"]
    assert judged == [("app", {"lib"}), ("lib", None), ("other", {"lib"}), ("tool", {"lib"})]
    for name in ("app", "tool"):
        assert read_broken_uses(name, tmp_path) == compute_broken_uses(name, tmp_path)


def test_a_damaged_table_is_refused_with_its_place(tmp_path: Path) -> None:
    write_pair(tmp_path)
    renew_broken_uses(tmp_path)
    path = table_path("app", tmp_path)
    write_compressed_text(path, read_compressed_text(path, "").decode().replace('"releases"', '"release"', 1))
    with pytest.raises(InputError, match=r"app\.uses\.json\.gz:\d+:\d+: .*knowngood harvest --atlas"):
        read_broken_uses("app", tmp_path)


@pytest.mark.parametrize(("part", "words"), [(slice(None, -9), "cut off"), (slice(1, None), "cannot be unpacked")])
def test_a_table_that_cannot_be_unpacked_is_refused_with_what_to_do(tmp_path: Path, part: slice, words: str) -> None:
    write_pair(tmp_path)
    renew_broken_uses(tmp_path)
    path = table_path("app", tmp_path)
    path.write_bytes(path.read_bytes()[part])
    with pytest.raises(InputError, match=rf"app\.uses\.json\.gz:1:1: .*{words}.*knowngood harvest --atlas"):
        read_broken_uses("app", tmp_path)


@pytest.mark.parametrize("package", list_table_packages(atlas_folder()))
def test_the_tables_of_this_checkout_have_the_releases_of_its_atlas(package: str) -> None:
    table = read_broken_uses(package, atlas_folder())
    for name, releases in {package: table.releases, **table.callees}.items():
        assert list(releases) == open_atlas(name).file.releases, "run `knowngood harvest --atlas`"


@pytest.mark.parametrize("package", ["accelerate", "bitsandbytes", "peft"])
def test_a_table_of_this_checkout_is_what_its_atlas_gives(package: str) -> None:
    text = read_compressed_text(table_path(package, atlas_folder()), "").decode()
    assert text == compute_broken_uses(package, atlas_folder()).render(), "run `knowngood harvest --atlas`"
