"""What a new release breaks: both as the one that is used and the one that uses, and only what is new."""

from __future__ import annotations

from functools import partial

import pytest

from atlas_samples import write_atlas
from knowngood_facts.facts.broken_use_renewal import renew_broken_uses
from knowngood_facts.facts.broken_use_table import read_broken_uses
from knowngood_facts.reports.index_changes import UpstreamRelease
from knowngood_facts.reports.new_breaks import find_new_breaks, is_excluded_by_metadata

HEAD = "knowngood/metadata/1 {0}\nregenerate: knowngood harvest --metadata {0}\n= 1.0 2026-01-01 wheel\n"


@pytest.fixture
def find(tmp_path):
    first = {"lib": "def a(): ...\ndef b(): ...\ndef c(): ...", "lib.part": "def p(): ..."}
    second = {"lib": "def a(): ...\ndef c(): ..."}
    write_atlas(tmp_path, "lib", first, second, {"lib": "def a(): ..."})
    both = {"app": "from lib import a\ndef go():\n    from lib import c", "app.more": "from lib import b"}
    write_atlas(tmp_path, "app", {"app": "from lib import a"}, both, {**both, "app": "from lib import a, c"})
    renew_broken_uses(tmp_path)
    read = partial(read_broken_uses, folder=tmp_path)

    def find(package, version, before, **newest):
        release = UpstreamRelease(package=package, version=version)
        found = find_new_breaks(release, before, newest, read, tmp_path)
        return [(list(item.pair.items()), str(item).partition(": ")[2], item.stops) for item in found]

    return find


def test_a_release_breaks_what_the_newest_release_of_another_uses(find):
    pair = [("app", "1.1"), ("lib", "1.1")]
    assert find("lib", "1.1", "1.0", lib="1.1", app="1.1") == [(pair, "app.more uses lib:b", False)]
    pair = [("app", "1.1"), ("lib", "1.2")]
    assert find("lib", "1.2", "1.1", lib="1.2", app="1.1") == [(pair, "1 functions fail when they run", False)]
    assert find("lib", "1.1", "1.0", lib="1.1", app="1.0") == []


def test_a_release_may_use_what_the_newest_release_of_another_lacks(find):
    pair = [("app", "1.2"), ("lib", "1.2")]
    assert find("app", "1.2", "1.1", lib="1.2", app="1.2") == [(pair, "app uses lib:c", True)]
    texts = [text for _, text, _ in find("app", "1.2", None, lib="1.2", app="1.2")]
    assert texts == ["app uses lib:c, app.more uses lib:b"]


@pytest.mark.parametrize(
    ("line", "excluded"),
    [
        ("lib<1.0", True),
        ("lib>=1.0", False),
        ('lib<1.0; extra == "all"', False),
        ('lib<1.0; sys_platform == "linux"', True),
        ("other<1.0", False),
        ("lib @ file:///lib", False),
    ],
)
def test_metadata_excludes_a_pair_where_one_release_declares_it(tmp_path, line, excluded):
    (tmp_path / "app.txt").write_text(HEAD.format("app") + f"r+ {line}\n")
    assert is_excluded_by_metadata({"lib": "1.0", "app": "1.0"}, tmp_path) is excluded
