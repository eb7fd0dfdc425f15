"""Which bytes a compiled wheel must have, by the lock of its cell or by its committed record."""

from __future__ import annotations

import dataclasses

import pytest

import wheel_samples
from knowngood.core.cell import parse_cell
from knowngood.core.errors import CorruptArchiveError, UsageError
from knowngood.lock import wheelhouse
from knowngood.lock.cell_lock import split_into_layers
from knowngood.lock.lock_tree import CellLock
from samples import FA0, FA2

CELL = parse_cell(FA2)


def pin(home, cell=CELL):
    return wheelhouse.find_wheel_pin(cell, home.tree, "flash-attn", "2.8.3.post2", cxx11abi=True)


def save_lock(home, wheel):
    lock = CellLock(cell=CELL, base="debian12", inputs="1", layers=split_into_layers([wheel], home.matrix.layers))
    home.tree.save(lock)


def test_the_committed_record_has_nothing_that_differs_between_two_compiles(home):
    assert wheelhouse.record_wheel(home.tree, wheel_samples.record())
    committed = wheelhouse.list_recorded_wheels(home.tree)
    assert committed == [wheel_samples.without_attempts(wheel_samples.record())]
    again = wheel_samples.record()
    again = dataclasses.replace(again, made=again.made | {"attempts": [{"seconds": 1.0}], "jobs": 16})
    assert not wheelhouse.record_wheel(home.tree, again), "another number of jobs is no other wheel"


def test_the_same_inputs_with_other_bytes_are_refused_and_other_inputs_are_not(home):
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    with pytest.raises(
        CorruptArchiveError, match=r"the same inputs gave other bytes when .*docker/wheels/.*was written"
    ):
        wheelhouse.record_wheel(home.tree, wheel_samples.record(b"other bytes"))
    other = wheel_samples.record(b"other bytes", architectures=["90", "100"])
    assert wheelhouse.record_wheel(home.tree, other)
    assert wheelhouse.list_recorded_wheels(home.tree)[0].sha256 == other.sha256


def test_a_wheel_is_pinned_by_the_lock_before_the_record(home):
    assert pin(home) is None
    record = wheel_samples.record(b"another compile", architectures=["90", "100"])
    wheelhouse.record_wheel(home.tree, record)
    assert pin(home).sha256 == record.sha256
    save_lock(home, wheel_samples.LOCKED)
    assert pin(home) == wheelhouse.WheelPin(file=wheel_samples.FILE, sha256=wheel_samples.SHA256)
    wheelhouse.recorded_wheel_path(home.tree, wheel_samples.FILE).unlink()
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    assert pin(home).record == wheel_samples.without_attempts(wheel_samples.record())


def test_a_record_for_another_cell_pins_nothing(home):
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    other = parse_cell(FA2.replace("torch2.11.0", "torch2.10.0"))
    assert pin(home, other) is None
    assert pin(home, parse_cell(FA0)) is not None, "a twin takes the wheel when it is asked for by name"


def test_a_record_that_was_changed_by_hand_is_refused(home):
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    path = wheelhouse.recorded_wheel_path(home.tree, wheel_samples.FILE)
    path.write_text(path.read_text().replace('"90"', '"80"', 1))
    with pytest.raises(UsageError, match="is not the record of"):
        pin(home)
