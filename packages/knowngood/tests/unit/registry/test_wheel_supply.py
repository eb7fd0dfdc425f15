"""Compiled wheels from the places that the environment and matrix.yaml name."""

from __future__ import annotations

import pytest

import wheel_samples
from knowngood.core.cell import parse_cell
from knowngood.core.errors import CorruptArchiveError
from knowngood.lock import wheelhouse
from knowngood.project.checkout import Project
from knowngood.registry import wheel_supply
from knowngood.registry.manifests import DamagedContentError
from samples import FA0, FA2

CELL = parse_cell(FA2)
PIN = wheelhouse.WheelPin(
    file=wheel_samples.FILE,
    sha256=wheel_samples.SHA256,
    record=wheel_samples.without_attempts(wheel_samples.record()),
)


def test_places_come_from_the_environment_then_the_matrix_then_the_repositories_of_images(home):
    text = (home.root / "matrix.yaml").read_text()
    places = "wheel-places: [wheels, https://wheels.example/fa2]\npublish: {repository: registry.example/team/images}\n"
    (home.root / "matrix.yaml").write_text(text + places)
    environ = {
        "KNOWNGOOD_WHEEL_PLACES": "/mnt/wheels, oci://a.example/wheels",
        "KNOWNGOOD_REGISTRY": "b.example/images",
    }
    assert wheel_supply.list_wheel_places(Project(home.root), environ) == (
        "/mnt/wheels",
        "oci://a.example/wheels",
        str(home.root / "wheels"),
        "https://wheels.example/fa2",
        "oci://b.example/images",
        "oci://registry.example/team/images",
    )


def test_a_wheel_comes_from_the_first_place_that_has_it_with_its_record(tmp_path):
    there, house, notes = wheel_samples.fill_folder(tmp_path / "a place"), tmp_path / "house", []
    wheel = wheel_supply.fetch_pinned_wheel(PIN, [str(tmp_path / "none"), str(there)], house, notes.append)
    assert wheel == house / wheel_samples.FILE
    assert wheel.read_bytes() == wheel_samples.CONTENT
    assert wheelhouse.read_wheel_record(wheel) == PIN.record
    assert notes[0] == f"{wheel_samples.FILE} is not from {tmp_path / 'none'}: the folder has no such file"
    assert sorted(path.name for path in house.iterdir()) == [wheel.name, f"{wheel.name}.json"]


def test_other_bytes_under_the_name_are_refused_unless_another_place_has_the_right_ones(tmp_path):
    wrong = str(wheel_samples.fill_folder(tmp_path / "wrong", b"other bytes"))
    right, house, notes = str(wheel_samples.fill_folder(tmp_path / "right")), tmp_path / "house", []
    with pytest.raises(CorruptArchiveError, match=f"expected: {wheel_samples.SHA256}.*{wrong} has another file"):
        wheel_supply.fetch_pinned_wheel(PIN, [wrong, str(tmp_path / "none")], house, notes.append)
    assert not list(house.iterdir())
    assert wheel_supply.fetch_pinned_wheel(PIN, [wrong, right], house, notes.append)


def test_a_registry_with_other_bytes_is_refused(tmp_path, monkeypatch):
    def damaged(_registry, digest, _out, _size):
        raise DamagedContentError(f"serves other bytes for the blob {digest}")

    monkeypatch.setattr(wheel_supply.Registry, "copy_blob", damaged)
    with pytest.raises(DamagedContentError, match=f"serves other bytes for the blob sha256:{wheel_samples.SHA256}"):
        wheel_supply.fetch_pinned_wheel(PIN, ["oci://registry.example/wheels"], tmp_path / "house", print)


def test_what_cells_need_and_the_wheelhouse_lacks_is_fetched(home, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_supply.core_facts, "load_torch_cxx11abi", lambda _: True)
    house = tmp_path / "house"
    monkeypatch.setenv("KNOWNGOOD_WHEEL_PLACES", str(wheel_samples.fill_folder(tmp_path / "place")))
    cells = [parse_cell(FA0), CELL]
    assert wheel_supply.supply_wheels(home, cells, house, print) == [], "nothing says which bytes the wheel has"
    wheelhouse.record_wheel(home.tree, wheel_samples.record())
    assert wheel_supply.supply_wheels(home, cells, house, print) == [house / wheel_samples.FILE]
    assert wheel_supply.supply_wheels(home, cells, house, print) == []
