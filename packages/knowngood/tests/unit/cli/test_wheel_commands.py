"""Commands that need a compiled wheel fetch it first, and `publish` pushes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import wheel_samples
from knowngood.cli import build_matrix, main, publish
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.launch import image_access
from knowngood.lock import cell_locking, wheelhouse
from knowngood.lock.cell_lock import split_into_layers
from knowngood.lock.lock_tree import CellLock
from knowngood.registry import wheel_supply
from knowngood.registry.content_inspection import InspectionDepth
from memory_registry import MemoryRegistry
from samples import FA0, FA2

CELL = parse_cell(FA2)


@pytest.fixture
def far(home, tmp_path, monkeypatch):
    """A place that has the wheel of `CELL`, whose bytes the project records; the wheelhouse is empty."""
    monkeypatch.setattr(wheel_supply.core_facts, "load_torch_cxx11abi", lambda _: True)
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    place = wheel_samples.fill_folder(tmp_path / "place")
    monkeypatch.setenv("KNOWNGOOD_WHEEL_PLACES", str(place))
    (tmp_path / "house").mkdir()
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(tmp_path / "house"))
    return place


@pytest.mark.usefixtures("far")
def test_lock_fetches_the_wheel_before_it_resolves(monkeypatch, capsys):
    def lock_cell(_entry, locking_place, **_options):
        raise KnowngoodError(
            f"the wheelhouse has {sorted(path.name for path in locking_place.wheel_folder.glob('*.whl'))}"
        )

    monkeypatch.setattr(cell_locking, "lock_cell", lock_cell)
    assert main.main(["lock", FA2]) == 1
    assert f"the wheelhouse has ['{wheel_samples.FILE}']" in capsys.readouterr().out


def test_build_fetches_what_it_can_and_prints_why_it_cannot(far, home, tmp_path, capsys):
    build_matrix._fetch_wheels(home, [parse_cell(FA0), CELL], tmp_path / "house")
    assert (tmp_path / "house" / wheel_samples.FILE).exists()
    wheel_samples.fill_folder(far, b"other bytes")
    build_matrix._fetch_wheels(home, [parse_cell(FA0), CELL], tmp_path / "another house")
    assert f"{FA2}: {wheel_samples.FILE} is a corrupt archive" in capsys.readouterr().err


def test_run_fetches_the_wheel_before_it_builds(far, home, tmp_path, monkeypatch):
    def no_engine(**_):
        raise MissingError("the engine was asked for")

    monkeypatch.setattr(image_access.container_engine, "ensure_engine", no_engine)
    with pytest.raises(MissingError, match="the engine was asked for"):
        image_access.build_cell_image(home, CELL, print)
    (far / wheel_samples.FILE).unlink()
    (tmp_path / "house" / wheel_samples.FILE).unlink()
    with pytest.raises(MissingError, match=r"the wheelhouse has no flash-attn 2\.8\.3\.post2 wheel"):
        image_access.build_cell_image(home, CELL, print)


@pytest.mark.parametrize("depth", [InspectionDepth.SIZE, InspectionDepth.BYTES])
def test_publish_pushes_the_wheels_of_a_cell(far, home, depth, monkeypatch):
    lock = CellLock(
        cell=CELL, base="debian12", inputs="1", layers=split_into_layers([wheel_samples.LOCKED], home.matrix.layers)
    )
    home.tree.save(lock)
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(far))
    registry = MemoryRegistry()
    publisher = publish._CellPublisher(
        project=home,
        target=SimpleNamespace(registry=registry),
        inspector=SimpleNamespace(depth=depth),
        open_engine=None,
        revision=1,
        dry_run=False,
    )
    row = {"file": wheel_samples.FILE, "sha256": wheel_samples.SHA256, "status": "pushed"}
    assert publisher._push_wheels(CELL) == [row]
    registry.blobs[f"sha256:{wheel_samples.SHA256}"] = wheel_samples.CONTENT[::-1]
    assert publisher._push_wheels(CELL) == [
        row | {"status": "unchanged" if depth is InspectionDepth.SIZE else "pushed"}
    ]
