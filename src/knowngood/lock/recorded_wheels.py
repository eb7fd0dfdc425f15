"""Which bytes a compiled wheel of the project has: its cell's lock says it, else its record in `docker/wheels/`.

`docker/wheels/<wheel>.json` is the record that lies beside a compiled wheel, without what differs from one compile to
the next. It is committed, so that a wheel from any place can be trusted by its hash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.errors import CorruptArchiveError
from knowngood.core.local_files import write_atomically
from knowngood.lock import wheelhouse
from knowngood.lock.wheelhouse import WheelhouseWheel, WheelRecord

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.core.cell import Cell
    from knowngood.lock.lock_tree import LockTree

_SAME_EVERY_TIME = ("code", "versions", "flags")
"""What a record says about the compile that follows from the inputs."""


@dataclass(frozen=True, kw_only=True)
class WheelPin:
    """The file name of a compiled wheel and the bytes that it must have."""

    file: str
    sha256: str
    record: WheelRecord | None = None
    """How it was compiled, where that is recorded."""


def recorded_wheel_path(tree: LockTree, file: str) -> Path:
    """Return the path of the committed record of a wheel with this file name."""
    return wheelhouse.wheel_record_path(tree.folder / "wheels" / file)


def list_recorded_wheels(tree: LockTree) -> list[WheelRecord]:
    """Return the committed records of wheels in the order of their names; `UsageError` when one is damaged."""
    paths = sorted((tree.folder / "wheels").glob("*.whl.json"))
    records = [wheelhouse.read_wheel_record(path.with_name(path.name.removesuffix(".json"))) for path in paths]
    return [record for record in records if record]


def find_wheel_pin(cell: Cell, tree: LockTree, package: str, version: str, *, cxx11abi: bool) -> WheelPin | None:
    """Return the wheel of a package that a cell has locked, else one that is recorded and fits it; `None` without both.

    `cxx11abi` is the C++ ABI of the cell's torch.
    """

    def fits(file: str) -> bool:
        return not wheelhouse.wheel_mismatches(file, cell, cxx11abi=cxx11abi, package=package, version=version)

    records = {record.sha256: record for record in list_recorded_wheels(tree) if fits(record.wheel)}
    locked = tree.load(cell)
    for item in locked.distributions if locked else ():
        if item.made_here and fits(item.file):
            return WheelPin(file=item.file, sha256=item.sha256, record=records.get(item.sha256))
    for record in records.values():
        return WheelPin(file=record.wheel, sha256=record.sha256, record=record)
    return None


def check_recorded_bytes(tree: LockTree, wheel: WheelhouseWheel) -> bool:
    """Return whether the bytes of a wheel in the wheelhouse are those of its committed record; `False` without one.

    Raises `CorruptArchiveError` when they are others.
    """
    path = recorded_wheel_path(tree, wheel.path.name)
    record = wheelhouse.read_wheel_record(path.with_name(wheel.path.name))
    if record is None:
        return False
    advice = f"put the recorded wheel into {wheel.path.parent}, or remove {path} to lock this one"
    wheelhouse.check_wheel_hash(wheel, record.sha256, advice)
    return True


def record_wheel(tree: LockTree, record: WheelRecord) -> bool:
    """Write the committed record of a compiled wheel, and return whether it changed.

    Raises `CorruptArchiveError` when the same inputs have given other bytes before.
    """
    path = recorded_wheel_path(tree, record.wheel)
    earlier = wheelhouse.read_wheel_record(path.with_name(record.wheel))
    if earlier and earlier.key == record.key and earlier.sha256 != record.sha256:
        advice = (
            f"the same inputs gave other bytes when {path} was written; compare the two, and remove it to record these"
        )
        raise CorruptArchiveError(record.wheel, expected=earlier.sha256, actual=record.sha256, advice=advice)
    made = {name: record.made[name] for name in _SAME_EVERY_TIME if name in record.made}
    return write_atomically(path, json.dumps(replace(record, made=made).document(), indent=1) + "\n")
