"""Packs of compiled kernels: what is kept, the same bytes, where they may be used, and what is refused."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from dataclasses import replace

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.engine.probe_gpus import GpuState, NvidiaState
from knowngood.launch import kernel_pack, kernel_store, warm_inside, warm_up
from knowngood.launch.kernel_pack import KernelMachine, KernelPack

MACHINE = KernelMachine(gpu="NVIDIA H100 80GB HBM3", capability="sm_90", driver="580.1", cpu_flags=("avx2", "avx512f"))
FILES = {"triton/AB/k.cubin": b"code", "triton/AB/__grp__k.json": b"{}", "inductor/fx/a": b"x"}


def pack(**changes):
    values = {"cell": "sm90-x", "image": "sha256:" + "a" * 64, "machine": MACHINE, "made": "2026-11-23", "files": FILES}
    return KernelPack(**{**values, **changes})


def tar_of(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 12345
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_a_pack_is_read_as_it_was_written_and_has_the_same_bytes_in_any_order():
    first = pack(seconds={"flex": {"cold": 18.5, "warm": 7.0}})
    again = kernel_pack.parse_kernel_pack(first.data, "x")
    assert again == first
    shuffled = replace(first, files=dict(reversed(FILES.items())))
    assert shuffled.data == first.data
    assert first.name == "aaaaaaaaaaaa-nvidia-h100-80gb-hbm3.tar.xz"


def test_locks_parts_and_bytecode_are_left_out():
    litter = ["triton/AB/lock", "inductor/locks/a.lock", "inductor/ab/__pycache__/m.pyc", "triton/AB/tmp.pid_1_a/k"]
    litter += ["flash-attention/f/fwd/.ab.12.tmp.o", "flash-attention/f/fwd/ab.lock", "cute-dsl/x/abc.tmp"]
    kept = ["triton/AB/k.cubin", "flash-attention/f/fwd/ab.o", "inductor/ab/block.py", "inductor/ab/clocks.py"]
    files = kernel_pack.select_kernel_files(tar_of([(name, b"1") for name in litter + kept]))
    assert sorted(files) == sorted(kept)


def test_the_kernels_and_their_folders_belong_to_the_user_in_the_volume():
    with tarfile.open(fileobj=io.BytesIO(pack().archive(1234, 99))) as tar:
        members = tar.getmembers()
    assert {(item.uid, item.gid) for item in members} == {(1234, 99)}
    assert [item.name for item in members if item.isdir()] == ["inductor", "inductor/fx", "triton", "triton/AB"]
    assert not [item.name for item in members if "knowngood" in item.name]


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (MACHINE, ""),
        (replace(MACHINE, driver="600", cpu_flags=("amx", "avx2", "avx512f")), ""),
        (replace(MACHINE, gpu="NVIDIA H200"), "this is NVIDIA H200"),
        (replace(MACHINE, cpu_flags=("avx2",)), "lacks avx512f"),
    ],
)
def test_a_pack_is_for_one_kind_of_gpu_and_for_cpus_with_the_same_instructions(machine, words):
    misfit = pack().describe_misfit(machine)
    assert words in misfit
    assert bool(misfit) == bool(words)


@pytest.mark.parametrize("name", ["../etc/passwd", "triton/../../x", "/triton/x", "other/file", "triton"])
def test_a_pack_with_a_path_outside_of_the_compilers_folders_is_refused(name):
    data = lzma.compress(tar_of([("knowngood-kernels.json", b"{}"), (name, b"x")]))
    with pytest.raises(KnowngoodError, match=r"not a pack of kernels, or is damaged"):
        kernel_pack.parse_kernel_pack(data, "file")


@pytest.mark.parametrize("cut", [0, 10, 100, -1])
def test_a_damaged_pack_is_refused_with_a_sentence(cut):
    with pytest.raises(KnowngoodError, match=r"^file is not a pack of kernels"):
        kernel_pack.parse_kernel_pack(pack().data[:cut], "file")


def test_a_pack_of_another_version_is_to_be_made_again():
    description = json.dumps({"schema": "knowngood/kernels/9"}).encode()
    data = lzma.compress(tar_of([("knowngood-kernels.json", description)]))
    with pytest.raises(KnowngoodError, match="another version"):
        kernel_pack.parse_kernel_pack(data, "file")


def test_packs_are_stored_by_image_and_gpu():
    path = kernel_store.save_kernel_pack(pack())
    assert kernel_store.load_kernel_pack("sha256:" + "a" * 64, MACHINE.gpu) == pack()
    assert kernel_store.load_kernel_pack("sha256:" + "b" * 64, MACHINE.gpu) is None
    assert kernel_store.load_kernel_pack("sha256:" + "a" * 64, "NVIDIA A100") is None
    assert list(kernel_store.kernel_folder().iterdir()) == [path]


def test_this_machine_is_described_by_its_first_gpu_or_as_a_cpu():
    gpu = GpuState(index=0, name="NVIDIA H100", sm="sm_90", memory=1, used=0)
    machine = kernel_store.describe_machine(NvidiaState(driver="580", gpus=(gpu,)))
    assert (machine.gpu, machine.capability, machine.driver) == ("NVIDIA H100", "sm_90", "580")
    assert kernel_store.describe_machine(NvidiaState()).gpu == "cpu"
    assert kernel_pack.parse_cpu_flags("processor : 0\nflags\t\t: sse avx2\nflags : other\n") == ("avx2", "sse")


def test_cold_and_warm_seconds_stand_beside_each_other_or_the_reason_does():
    cold = {
        "flex": {"first_step": 18.5, "all": 20.0},
        "fa4": {"problem": "no module"},
        "compile": {"first_step": 1, "all": 1},
    }
    warm = {"flex": {"first_step": 7.0, "all": 8.0}, "fa4": {"problem": "no module"}, "compile": {"problem": "killed"}}
    assert warm_up.compare_first_steps(cold, warm) == {
        "flex": {"cold": 18.5, "warm": 7.0, "cold_all": 20.0, "warm_all": 8.0},
        "fa4": {"problem": "no module"},
        "compile": {"problem": "killed"},
    }


def test_the_program_in_the_image_names_what_is_missing(monkeypatch):
    monkeypatch.setitem(warm_inside.SETTINGS, "fa4", ("flash_attention_4", "no_such_module.cute", False))
    assert warm_inside.run_setting("fa4") == {"problem": "no_such_module.cute is not in the image"}
    assert warm_inside.list_shapes("compile") == [(64, 2)]
    shapes = warm_inside.list_shapes("fa4")
    assert shapes[0] == (64, 2)
    assert sorted(shapes) == sorted({(size, sharing) for size in (64, 128) for sharing in (1, 2, 4, 8)})
