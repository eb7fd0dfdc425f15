"""Wheels and sdists that an index serves flipped, truncated or replaced: they are named, with both hashes."""

from __future__ import annotations

import hashlib

import pytest
import stamina
from packaging.version import Version

import harvest_registry
from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError
from knowngood.index import wheel_contents
from knowngood.index.artefact import BrokenArchiveError
from knowngood.index.package_index import SimpleIndex
from knowngood.index.remote_archive import RemoteSdist, RemoteWheel
from knowngood.lock import resolver
from knowngood_facts.facts.harvest_run import harvest_facts

NAME = "tiny-1.0-py3-none-any.whl"
SDIST = "tiny-1.0.tar.gz"
TORCH = "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"
RECORD = "".join(f"tiny/{number}.py,sha256={number * 7919:x},1\n" for number in range(100))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(text: str = RECORD) -> bytes:
    return harvest_registry.wheel({"tiny/__init__.py": "x", "tiny-1.0.dist-info/RECORD": text})


def flip(data: bytes) -> bytes:
    """Change one byte in the compressed RECORD, so that neither the index of the archive nor its end is touched."""
    at = data.index(b"RECORD") + 100
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


DAMAGES = {"flipped": flip, "truncated": lambda data: data[: len(data) // 2], "empty": lambda _: b""}


@pytest.fixture(autouse=True)
def _no_waiting():
    stamina.set_testing(True, attempts=4)
    yield
    stamina.set_testing(False)


def publish(registry: harvest_registry.Registry, name: str, good: bytes, served: bytes) -> str:
    registry.files[name], registry.hashes[name] = served, sha256(good)
    return sha256(good)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_file_list_of_a_corrupt_wheel(registry, damage):
    expected = publish(registry, NAME, wheel(), served := DAMAGES[damage](wheel()))
    url = registry.url.replace("/simple/", f"/files/{NAME}")
    with pytest.raises(CorruptArchiveError) as caught:
        wheel_contents.read_wheel_contents(url, expected)
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(f"{NAME} is a corrupt archive (")
    assert f"sha256 expected: {expected}, found: {sha256(served)}" in str(caught.value)


def test_a_corrupt_wheel_on_this_machine(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(flip(wheel()))
    with pytest.raises(CorruptArchiveError, match=f"expected: {sha256(wheel())}, found: {sha256(flip(wheel()))}"):
        wheel_contents.read_wheel_contents(path.as_uri(), sha256(wheel()))


def test_a_wheel_that_was_published_broken_is_not_called_corrupt(registry):
    expected = publish(registry, NAME, flip(wheel()), flip(wheel()))
    url = registry.url.replace("/simple/", f"/files/{NAME}")
    with pytest.raises(KnowngoodError, match="is not a wheel, although its sha256 is the expected one") as caught:
        wheel_contents.read_wheel_contents(url, expected)
    assert not isinstance(caught.value, CorruptArchiveError)


def test_a_transfer_that_stops_early_is_a_failure_of_the_network(registry):
    expected = publish(registry, NAME, wheel(), wheel())
    registry.faults[NAME] = "truncate"
    with pytest.raises(MissingError, match=NAME):
        wheel_contents.read_wheel_contents(registry.url.replace("/simple/", f"/files/{NAME}"), expected)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_wheel_in_a_harvest_is_read_twice_and_named(registry, tmp_path, damage):
    expected = publish(registry, NAME, wheel(), served := DAMAGES[damage](wheel()))
    index = SimpleIndex(registry.url)
    (file,) = index.files("tiny")
    with pytest.raises(BrokenArchiveError) as caught:
        RemoteWheel(file, index.session, tmp_path).read("tiny-1.0.dist-info/RECORD")
    assert caught.value.corrupt
    assert f"sha256 expected: {expected}, found: {sha256(served)}" in str(caught.value)
    assert registry.requests.count(NAME) <= 7  # two readings, with a few requests each, and one of the whole file


def test_a_corrupt_wheel_makes_the_harvest_fail(registry, tmp_path):
    good = harvest_registry.torch_wheel("2.11.0")
    publish(registry, TORCH, good, good[:-40])
    report = harvest_facts(
        ["torch"],
        folder=tmp_path,
        floors={"torch": Version("2.0")},
        notify=print,
        index=SimpleIndex(registry.url),
        cache=tmp_path / "cache",
    )
    assert report.exit_code == 1
    assert report.corrupt == ["torch 2.11.0"]
    assert "is a corrupt archive" in report.unknown["torch 2.11.0: artefact"]


def test_a_replaced_sdist_is_fetched_twice_and_named(registry, tmp_path):
    good, other = (harvest_registry.sdist("tiny-1.0", {"setup.py": text}) for text in ("one", "another"))
    expected = publish(registry, SDIST, good, other)
    index = SimpleIndex(registry.url)
    (file,) = index.files("tiny")
    with pytest.raises(BrokenArchiveError, match=f"expected: {expected}, found: {sha256(other)}"):
        RemoteSdist(file, index.session, tmp_path).read("setup.py")
    assert registry.requests.count(SDIST) == 2


def test_a_corrupt_archive_that_the_resolver_reads_is_no_failure_of_the_network():
    stderr = (
        "error: Failed to fetch `tiny==1.0`\n  cause: Failed to extract archive: tiny-1.0-py3-none-any.whl\n"
        "  cause: Invalid zip file structure\n"
    )
    error = resolver.resolver_error(stderr, ["tiny"])
    assert isinstance(error, CorruptArchiveError)
    assert str(error).startswith(f"{NAME} is a corrupt archive (Invalid zip file structure): ")
