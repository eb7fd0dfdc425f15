from __future__ import annotations

import dataclasses
import hashlib

import pytest

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.lock import wheelhouse
from samples import FA0, FA2, FA4

FILE = "flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
CELL = parse_cell(FA2)


def test_the_wheel_of_the_cell():
    assert wheelhouse.wheel_mismatches(FILE, CELL, cxx11abi=True) == []


@pytest.mark.parametrize(
    "file",
    [
        FILE.replace("cu13t", "cu130t"),
        FILE.replace("cu13torch2.11cxx", "cu13.torch2.11.cxx"),
        FILE.replace(".sm90", ".sm80.sm90"),
        FILE.replace("abitrue", "abiTRUE"),
        FILE.replace("linux_x86_64", "manylinux_2_28_x86_64"),
        FILE.replace("linux_x86_64", "manylinux_2_24_x86_64.manylinux_2_28_x86_64"),
    ],
)
def test_other_spellings_of_a_wheel_that_fits(file):
    assert wheelhouse.wheel_mismatches(file, CELL, cxx11abi=True) == []


def test_a_package_that_bears_no_local_version_says_it_in_the_build_tag():
    file = "transformer_engine_torch-2.20.2-1cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
    ask = {"cxx11abi": True, "package": "transformer-engine-torch", "version": "2.20.2"}
    assert wheelhouse.wheel_mismatches(file, CELL, **ask) == []
    assert wheelhouse.wheel_mismatches(file.replace("sm90", "sm80"), CELL, **ask) == [
        "it is for sm_80, the cell is sm_90"
    ]
    (said,) = wheelhouse.wheel_mismatches(file.replace("-1cu13torch2.11cxx11abitrue.sm90", "-1"), CELL, **ask)
    assert said.startswith("its local version does not say CUDA")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cu13t", "cu12t", "it is for CUDA 12, the cell has 13.0"),
        ("cu13t", "cu132t", "it is for CUDA 132, the cell has 13.0"),
        ("torch2.11", "torch2.10", "it is for torch 2.10, the cell has 2.11.0"),
        ("torch2.11", "torch2.1", "it is for torch 2.1, the cell has 2.11.0"),
        ("abitrue", "abifalse", "its C++11 ABI is false, that of torch 2.11.0 is true"),
        ("cp311-cp311", "cp312-cp312", "its tags are cp312-cp312-linux_x86_64, the cell wants cp311 on x86_64"),
        ("x86_64", "aarch64", "its tags are cp311-cp311-linux_aarch64, the cell wants cp311 on x86_64"),
        (".sm90", ".sm80", "it is for sm_80, the cell is sm_90"),
        (".sm90", ".sm80.sm100", "it is for sm_80, sm_100, the cell is sm_90"),
        (".sm90", "", "it is for no stated architecture, the cell is sm_90"),
        ("+cu13torch2.11cxx11abitrue.sm90", "", "its local version does not say CUDA, torch, ABI and architecture"),
        ("2.8.3.post2", "2.8.3", "it is flash-attn 2.8.3, the cell has flash-attn 2.8.3.post2"),
        ("flash_attn", "flash_attn_3", "it is flash-attn-3 2.8.3.post2, the cell has flash-attn 2.8.3.post2"),
        ("-linux_x86_64.whl", ".whl", "Invalid wheel filename"),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused_by_name(old, new, message):
    assert old in FILE
    (only,) = wheelhouse.wheel_mismatches(FILE.replace(old, new), CELL, cxx11abi=True)
    assert only.startswith(message)


def test_every_mismatch_is_named():
    wrong = FILE.replace("cu13t", "cu12t").replace("2.11", "2.9").replace(".sm90", ".sm80").replace("cp311", "cp310")
    assert len(wheelhouse.wheel_mismatches(wrong, CELL, cxx11abi=False)) == 5


@pytest.mark.parametrize(
    ("built", "gpu", "fits"), [("sm80", "sm_86", True), ("sm86", "sm_80", False), ("sm90", "sm_100", False)]
)
def test_code_runs_on_the_same_major_and_a_later_minor(built, gpu, fits):
    cell = dataclasses.replace(CELL, gpu=gpu)
    assert (wheelhouse.wheel_mismatches(FILE.replace("sm90", built), cell, cxx11abi=True) == []) is fits


@pytest.mark.parametrize("identity", [FA4, FA0])
def test_no_wheel_is_for_a_cell_of_another_family(identity):
    assert wheelhouse.wheel_mismatches(FILE, parse_cell(identity), cxx11abi=True)


def test_the_wheel_is_found_among_others_and_each_other_is_refused_with_its_reasons(tmp_path):
    other = FILE.replace("cu13t", "cu12t")
    older = FILE.replace("2.8.3.post2", "2.7.4")
    for name in (FILE, other, older, "numpy-1.0-py3-none-any.whl", "flash_attn-notes.txt"):
        (tmp_path / name).write_bytes(b"")
    found, refused = wheelhouse.find_wheel(CELL, tmp_path, cxx11abi=True)
    assert (found.path.name, found.version) == (FILE, "2.8.3.post2+cu13torch2.11cxx11abitrue.sm90")
    assert refused == [f"{other}: it is for CUDA 12, the cell has 13.0"]
    (tmp_path / FILE).unlink()
    assert wheelhouse.find_wheel(CELL, tmp_path, cxx11abi=True) == (None, refused)


def test_a_house_that_is_not_there_has_no_wheels(tmp_path):
    assert wheelhouse.find_wheel(CELL, tmp_path / "none", cxx11abi=True) == (None, [])


def test_a_wheel_that_is_not_the_locked_one_is_refused_by_name(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(b"wheel")
    wheel = wheelhouse.WheelhouseWheel(path=path, version="1")
    wheelhouse.check_wheel_hash(wheel, hashlib.sha256(b"wheel").hexdigest())
    path.write_bytes(b"other")
    with pytest.raises(KnowngoodError, match=r"expected: 1ce5.*, found: d9298a.*lock --upgrade") as caught:
        wheelhouse.check_wheel_hash(wheel, "1ce5" + "0" * 60)
    assert str(caught.value).startswith(FILE)


def test_where_the_house_is(tmp_path, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_WHEELHOUSE", raising=False)
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    assert wheelhouse.wheelhouse_folder() == tmp_path / "cache" / "wheelhouse"
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(tmp_path / "named"))
    assert wheelhouse.wheelhouse_folder() == tmp_path / "named"
