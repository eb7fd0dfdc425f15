"""Which GPUs run a wheel, read from real machine code: `cubins/` has what nvcc 13.0.88 made of one kernel."""

from __future__ import annotations

import pytest

import wheel_samples
from knowngood.core.errors import KnowngoodError
from knowngood.index.gpu_code import GpuCode
from knowngood.wheels import wheel_packing

EVERY_GPU = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def code_of(tmp_path, **libraries):
    path = tmp_path / "wheel.whl"
    path.write_bytes(wheel_samples.pack_libraries({f"{name}.so": parts for name, parts in libraries.items()}))
    return wheel_packing.read_wheel_code(path)


@pytest.mark.parametrize(
    ("library", "gpus"),
    [
        ("sm_80", "sm_80 sm_86 sm_89"),
        ("sm_86", "sm_86 sm_89"),
        ("sm_90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("sm_100", "sm_100 sm_103"),
        ("sm_100f", "sm_100 sm_103"),
        ("sm_103a", "sm_103"),
        ("sm_120", "sm_120 sm_121"),
        ("sm_121a", "sm_121"),
        # PTX is compiled by the driver for anything newer, but that of a family for that family alone.
        ("sm_80+compute_80", "sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 sm_121"),
        ("ptx-100f", "sm_100 sm_103"),
    ],
)
def test_the_gpus_that_run_what_nvcc_made(tmp_path, library, gpus):
    code = code_of(tmp_path, ext=[library])
    assert [gpu for gpu in EVERY_GPU if not wheel_packing.find_unrunnable_code(code, gpu)] == gpus.split()


def test_one_wheel_of_sm_80_serves_three_cells_and_is_refused_in_the_fourth(tmp_path):
    code = code_of(tmp_path, flash_attn_2_cuda=["sm_80"] * 72)
    assert wheel_packing.list_architectures(code) == ["80"]
    for gpu in ("sm_80", "sm_86", "sm_89"):
        wheel_packing.require_runnable_code("fa.whl", code, gpu)
    with pytest.raises(
        KnowngoodError,
        match=r"fa\.whl cannot be used on sm_90: .*runs on sm_90: 72 of its 72 fatbins have sm_80; remove",
    ):
        wheel_packing.require_runnable_code("fa.whl", code, "sm_90")


def test_one_object_of_another_architecture_is_found_among_many(tmp_path):
    code = code_of(tmp_path, flash_attn_2_cuda=["sm_80"] * 71 + ["sm_90"], other=["sm_80"])
    assert wheel_packing.list_architectures(code) == ["80", "90"]
    (problem,) = wheel_packing.find_unrunnable_code(code, "sm_86")
    assert problem == "flash_attn_2_cuda.so has no code that runs on sm_86: 1 of its 72 fatbins have sm_90"


def test_code_for_one_gpu_alone_is_no_architecture_of_the_wheel_s_name(tmp_path):
    (library,) = code_of(tmp_path, ext=["sm_90a"])
    assert library.fatbins == (GpuCode(sass=frozenset({"90a"}), ptx=frozenset()),)
    assert wheel_packing.list_architectures([library]) == []


def test_a_wheel_without_gpu_code_runs_everywhere_and_a_file_that_is_none_is_refused(tmp_path):
    assert code_of(tmp_path) == []
    (tmp_path / "no.whl").write_bytes(b"no wheel")
    with pytest.raises(KnowngoodError, match=r"no\.whl is not a wheel"):
        wheel_packing.read_wheel_code(tmp_path / "no.whl")
