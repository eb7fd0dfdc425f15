"""Debian packages that a mirror serves with other bytes than were locked."""

from __future__ import annotations

import hashlib

import pytest

from knowngood.base import base_packages
from knowngood.core.errors import CorruptArchiveError
from knowngood.lock.debian_lock import DebianPackage

PACKAGE = DebianPackage(name="libtiny", version="1.0-1", arch="amd64", sha256=hashlib.sha256(b"good").hexdigest())


class Mirror:
    """A mirror that gives each of `answers` once; `None` is a file that it does not have."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)

    def fetch(self, files):
        for _, path in files:
            if (content := self.answers.pop(0)) is not None:
                path.write_bytes(content)


def fetch(mirror, cache):
    base_packages.fetch_debs([PACKAGE], {"libtiny": "http://mirror.test/pool/libtiny_2.0-1_amd64.deb"}, mirror, cache)
    return base_packages.find_cached_debs([PACKAGE], cache)


def test_a_corrupt_package_is_fetched_twice_and_named(tmp_path):
    mirror = Mirror(b"bad", b"bad")
    with pytest.raises(CorruptArchiveError) as caught:
        fetch(mirror, tmp_path)
    found = hashlib.sha256(b"bad").hexdigest()
    assert str(caught.value).startswith(
        f"libtiny_1.0-1_amd64.deb is a corrupt archive: sha256 expected: {PACKAGE.sha256}, found: {found}"
    )
    assert not mirror.answers
    assert not list(tmp_path.iterdir())


def test_a_package_that_was_damaged_on_the_way_is_fetched_once_more(tmp_path):
    assert fetch(Mirror(b"bad", b"good"), tmp_path)


def test_a_package_that_the_mirror_lacks_is_not_corrupt(tmp_path):
    assert fetch(Mirror(None), tmp_path) == {}
