"""Compiled wheels as artifacts of a registry."""

from __future__ import annotations

import pytest

import wheel_samples
from knowngood.core.cell import parse_cell
from knowngood.core.errors import CorruptArchiveError
from knowngood.registry import wheel_supply
from memory_registry import MemoryRegistry
from samples import FA0, FA2

BLOB = f"sha256:{wheel_samples.SHA256}"
TAG = f"wheel-{wheel_samples.SHA256}"


def push(registry, house, *, every_byte=False, dry_run=False):
    wheels = wheel_supply.push_wheels(registry, [wheel_samples.LOCKED], house, every_byte=every_byte, dry_run=dry_run)
    return [str(status) for _, status in wheels]


def test_a_wheel_is_pushed_once_under_its_hash(tmp_path):
    registry, house = MemoryRegistry(), wheel_samples.fill_folder(tmp_path / "house")
    assert push(registry, house, dry_run=True) == ["pushed"]
    assert not registry.puts
    assert push(registry, house) == ["pushed"]
    assert registry.blobs[BLOB] == wheel_samples.CONTENT
    (layer,) = registry.manifests[TAG].document["layers"]
    assert layer["digest"] == BLOB
    assert layer["annotations"]["org.opencontainers.image.title"] == wheel_samples.FILE
    registry.puts.clear()
    assert push(registry, tmp_path / "no house") == ["unchanged"]
    assert not registry.puts


def test_what_is_missing_or_damaged_in_the_registry_is_sent_again(tmp_path):
    registry, house = MemoryRegistry(), wheel_samples.fill_folder(tmp_path / "house")
    push(registry, house)
    del registry.manifests[TAG]
    assert push(registry, house) == ["pushed"]
    registry.blobs[BLOB] = wheel_samples.CONTENT[::-1]
    assert push(registry, house) == ["unchanged"], "the size is right"
    assert push(registry, house, every_byte=True) == ["pushed"]
    assert registry.blobs[BLOB] == wheel_samples.CONTENT


def test_a_wheel_that_this_machine_lacks_is_said_and_another_one_is_never_pushed(tmp_path):
    registry = MemoryRegistry()
    assert push(registry, tmp_path / "no house") == ["not in the wheelhouse"]
    with pytest.raises(CorruptArchiveError, match="put the locked wheel into the wheelhouse"):
        push(registry, wheel_samples.fill_folder(tmp_path / "house", b"other bytes"))
    assert not registry.puts


def test_a_cell_s_compiled_wheels_are_those_of_its_lock(home, lock_of):
    for identity in (FA0, FA2):
        lock_of(identity)
    assert wheel_supply.list_compiled_wheels(home, parse_cell(FA0)) == []
    assert [item.name for item in wheel_supply.list_compiled_wheels(home, parse_cell(FA2))] == ["flash-attn"]
