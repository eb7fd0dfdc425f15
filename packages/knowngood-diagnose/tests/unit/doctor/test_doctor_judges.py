"""The doctor's verdicts: one description of a system for each case, no machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from knowngood.core import local_files
from knowngood.core.hosts import HostArchitecture
from knowngood.engine.probe_gpus import GpuProcess, GpuState, NvidiaState
from knowngood.index.gpu_code import GpuCode
from knowngood_diagnose.doctor import judge_binaries, judge_environment, judge_host, judge_machine
from knowngood_diagnose.doctor.doctor_line import DoctorLine, DoctorVerdict, doctor_exit_code, overall_verdict
from knowngood_diagnose.doctor.elf_reader import LinkResult
from knowngood_diagnose.doctor.system_state import (
    CacheFolder,
    ImageDescription,
    InstalledBinary,
    InstalledTool,
    InstalledTorch,
    MachineState,
    ShadowedLibrary,
    SystemState,
)
from knowngood_facts.python_environment import FileOverlap, InstalledDistribution, PythonInterpreter

GIB = 1 << 30
H200 = GpuState(index=0, name="NVIDIA H200", sm="sm_90", memory=140 * GIB, used=GIB)
TORCH = InstalledTorch(version="2.11.0+cu130", cuda="13.0", cxx11abi=True, gcc={"13.0": ("6.0", "16.0")})

PYTHON = PythonInterpreter(
    path="/env/bin/python", why="--python", version="3.11.2", tag="cpython-311-x86_64-linux-gnu", include="/inc"
)
MACHINE = MachineState(
    glibc="2.36",
    glibcxx="3.4.30",
    libcuda=("/usr/lib/libcuda.so.1",),
    cc=InstalledTool(path="/usr/bin/gcc", version="12.2.0"),
    cxx=InstalledTool(path="/usr/bin/g++", version="12.2.0"),
    python_h=True,
    shm=8 * GIB,
)
STATE = SystemState(
    python=PYTHON,
    distributions=(
        InstalledDistribution(name="torch", version="2.11.0", info="/s/torch-2.11.0.dist-info"),
        InstalledDistribution(name="triton", version="3.6.0", info="/s/triton-3.6.0.dist-info"),
    ),
    torch=TORCH,
    nvidia=NvidiaState(driver="580.65.06", cuda="13.0", gpus=(H200,), loaded=True),
    machine=MACHINE,
)
MINIMUMS = {"13.0": "580", "12.4": "525.60.13"}
CODE = {GpuCode(sass=frozenset({"80", "90"}), ptx=frozenset()): 3}
FLASH = InstalledBinary(
    path="flash_attn_2_cuda.so", distribution="flash-attn 2.8.3", used=True, torch=True, module=True, code=CODE
)
ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def one(lines, name) -> DoctorLine:
    """Return the line with an id."""
    lines = list(lines)
    matches = [line for line in lines if line.id == name]
    assert len(matches) == 1, [line.id for line in lines]
    return matches[0]


def machine(**changes):
    return replace(STATE, machine=replace(MACHINE, **changes))


def binaries(*items, gpus=("sm_90",), state=STATE, logs=None):
    def diagnose(log):
        if logs is not None:
            logs.append(log)
        return ("flash-attn-cxx11-abi",) if "c105Error" in log else ()

    return [*judge_binaries.judge_binaries(replace(state, binaries=items), gpus, diagnose)]


# Exit codes and the whole.


@pytest.mark.parametrize(
    ("verdicts", "word", "code"),
    [
        ("ok n/a", "ok", 0),
        ("ok warn", "warn", 0),
        ("ok unknown warn", "unknown", 3),
        ("ok unknown bad", "bad", 1),
        ("n/a", "n/a", 0),
    ],
)
def test_the_gravest_line_decides(verdicts, word, code):
    lines = [DoctorLine("x", "x", "x", verdict=DoctorVerdict(text)) for text in verdicts.split()]
    assert (str(overall_verdict(lines)), doctor_exit_code(lines)) == (word, code)


# GPU and driver.


@pytest.mark.parametrize(
    ("driver", "cuda", "verdict"),
    [
        ("580.65.06", "13.0", "ok"),
        ("580", "13.0", "ok"),
        ("579.99.99", "13.0", "bad"),
        ("525.60.13", "12.4", "ok"),
        ("525.60.11", "12.4", "bad"),
        (None, "13.0", "unknown"),
        ("580.65.06", "99.0", "unknown"),
        ("580.65.06", None, "n/a"),
    ],
)
def test_driver_against_torchs_cuda(driver, cuda, verdict):
    state = replace(STATE, torch=replace(TORCH, cuda=cuda), nvidia=replace(STATE.nvidia, driver=driver))
    line = one(judge_host.judge_gpus_and_driver(state, (), None, MINIMUMS), "driver")
    assert line.verdict == verdict
    assert (line.incidents == ("nvidia-driver-too-old",)) == (verdict == "bad")
    assert bool(line.fix) == (verdict == "bad")


def test_a_driver_is_compared_as_a_version():
    nvidia = NvidiaState(driver="525.60.13", gpus=(H200,))
    for least, verdict in (("525.60.9", "ok"), ("525.60.13", "ok"), ("525.60.100", "bad")):
        assert judge_host.judge_driver(nvidia, None, "12.4", {"12.4": least}, "torch").verdict == verdict


def test_a_stated_driver_and_gpu_replace_the_machines():
    lines = [*judge_host.judge_gpus_and_driver(STATE, ("sm_70",), "470.82", MINIMUMS)]
    assert [line.id for line in lines] == ["gpu", "driver"]
    assert one(lines, "driver").verdict == "bad"


@pytest.mark.parametrize(
    ("gpu", "name", "verdict"),
    [
        (H200, "gpu:0", "ok"),
        (replace(H200, ecc_errors=3), "gpu:0", "bad"),
        (replace(H200, ecc_errors=0), "gpu:0", "ok"),
        (replace(H200, mig=True), "gpu:0", "warn"),
        (replace(H200, exclusive="prohibited"), "gpu:0", "warn"),
        (H200, "gpu-use:0", "ok"),
        (replace(H200, processes=(GpuProcess(pid=7, name="python"),)), "gpu-use:0", "warn"),
        (replace(H200, used=100 * GIB), "gpu-use:0", "warn"),
    ],
)
def test_a_gpu(gpu, name, verdict):
    state = replace(STATE, nvidia=replace(STATE.nvidia, gpus=(gpu,)))
    line = one(judge_host.judge_gpus(state, ()), name)
    assert line.verdict == verdict
    assert bool(line.fix) == (verdict != "ok")


def test_no_gpu_is_unknown_with_the_problem_of_nvml():
    state = replace(STATE, nvidia=NvidiaState(problem="NVML's library (libnvidia-ml.so.1) is not found"))
    line = one(judge_host.judge_gpus(state, ()), "gpu")
    assert line.verdict == "unknown"
    assert "libnvidia-ml" in line.observation
    assert "--gpu" in line.fix[-1]
    inside = replace(state, machine=replace(MACHINE, container=True))
    assert "--gpus all" in one(judge_host.judge_gpus(inside, ()), "gpu").fix[0]
    cpu = replace(state, torch=replace(TORCH, cuda=None))
    assert one(judge_host.judge_gpus(cpu, ()), "gpu").verdict == "n/a"


# Binaries.


def test_a_build_for_another_torch_is_named_with_its_symbols_and_its_incident():
    logs: list[str] = []
    broken = replace(FLASH, linked=LinkResult(undefined=(ERROR,)), demangled={ERROR: "c10::Error::Error(...)"})
    line = one(binaries(broken, logs=logs), "binary:flash-attn")
    assert line.verdict == "bad"
    assert "2.11.0+cu130 lacks 1 of its symbols: c10::Error::Error(...)" in line.because
    assert "C++11 ABI true" in line.fix[0]
    assert line.incidents == ("flash-attn-cxx11-abi",)
    assert f"flash_attn_2_cuda.so: undefined symbol: {ERROR}" in logs[0]


@pytest.mark.parametrize(
    ("gpu", "verdict"), [("sm_80", "ok"), ("sm_86", "ok"), ("sm_90", "ok"), ("sm_75", "bad"), ("sm_100", "bad")]
)
def test_gpu_code(gpu, verdict):
    line = one(binaries(FLASH, gpus=(gpu,)), "binary:flash-attn")
    assert line.verdict == verdict
    assert line.incidents == (("cuda-no-kernel-image",) if verdict == "bad" else ())
    assert line.observation == "sm_80, sm_90"


def test_ptx_is_code_for_newer_gpus():
    ptx = {GpuCode(sass=frozenset(), ptx=frozenset({"80"})): 1}
    assert one(binaries(replace(FLASH, code=ptx), gpus=("sm_120",)), "binary:flash-attn").verdict == "ok"
    assert one(binaries(replace(FLASH, code=ptx), gpus=("sm_75",)), "binary:flash-attn").verdict == "bad"


@pytest.mark.parametrize(
    ("gpu", "incident"),
    [
        ("sm_75", "cuda-no-kernel-image"),
        ("sm_100", "torch-without-gpu-code"),
        ("sm_120", "torch-without-gpu-code"),
    ],
)
def test_torch_without_blackwell(gpu, incident):
    torch = replace(FLASH, path="torch/lib/libtorch_cuda.so", distribution="torch 2.7.1", torch=False)
    line = one(binaries(torch, gpus=(gpu,)), "binary:torch")
    assert line.incidents == (incident,)


def test_a_library_of_several_without_code_is_a_warning():
    torch = replace(FLASH, path="torch/lib/libtorch_cuda.so", distribution="torch 2.11.0", torch=False)
    linalg = replace(
        torch, path="torch/lib/libtorch_cuda_linalg.so", code={GpuCode(sass=frozenset({"90"}), ptx=frozenset()): 1}
    )
    line = one(binaries(torch, linalg, gpus=("sm_80",)), "binary:torch")
    assert line.verdict == "warn"
    assert "libtorch_cuda_linalg.so" in line.because


def test_libraries_for_other_systems_are_no_fault():
    cuda12 = replace(FLASH, path="b/libcuda12.so", distribution="bnb 1", used=False, torch=False)
    cuda12 = replace(cuda12, linked=LinkResult(missing=(("libcudart.so.12", "/s/b/libcuda12.so"),)))
    cuda13 = replace(cuda12, path="b/libcuda13.so", linked=LinkResult())
    line = one(binaries(cuda12, cuda13), "binary:bnb")
    assert line.verdict == "ok"
    assert "1 of 2 libraries are for other systems" in line.observation
    line = one(binaries(cuda12), "binary:bnb")
    assert line.verdict == "bad"
    assert "libcudart.so.12 not found" in line.because


def test_the_drivers_libraries_are_not_the_binarys_fault():
    needs = replace(
        FLASH, linked=LinkResult(missing=(("libcuda.so.1", "/s/flash_attn_2_cuda.so"),), undefined=("cuInit",))
    )
    assert one(binaries(needs), "binary:flash-attn").verdict == "ok"


def test_when_torch_itself_cannot_be_loaded_the_extension_is_not_blamed():
    missing = LinkResult(missing=(("libcudart.so.13", "/s/torch/lib/libtorch_cpu.so"),), undefined=("cudaMalloc",))
    torch = InstalledBinary(path="torch/lib/libtorch_cpu.so", distribution="torch 2.11.0", used=True, linked=missing)
    lines = binaries(replace(FLASH, linked=missing), torch)
    assert "repair torch first" in one(lines, "binary:flash-attn").fix
    assert "pip install --force-reinstall torch" in one(lines, "binary:torch").fix[0]


def test_a_damaged_file_and_one_of_another_python():
    cut = InstalledBinary(path="x/_C.so", distribution="x 1.0", damaged="the file is cut short")
    line = one(binaries(cut), "binary:x")
    assert (line.verdict, line.observation, "x==1.0" in line.fix[0]) == ("bad", "x/_C.so", True)
    other = replace(
        FLASH, path="flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so", other_python="cpython-312-x86_64-linux-gnu"
    )
    line = one(binaries(other), "binary:flash-attn")
    assert "compiled for cpython-312; this Python is cpython-311" in line.because
    assert line.incidents == ("flash-attn-wheel-other-python",)
    right = replace(FLASH, path="flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so")
    assert one(binaries(other, right), "binary:flash-attn").verdict == "ok"


def test_the_other_abi_and_numpy_1():
    line = one(binaries(replace(FLASH, cxx11abi=False)), "binary:flash-attn")
    assert "its C++11 ABI is false, torch's is true" in line.because
    numpy = InstalledDistribution(name="numpy", version="2.2.6", info="/s/numpy-2.2.6.dist-info")
    with_2 = replace(STATE, distributions=(*STATE.distributions, numpy))
    old = replace(FLASH, numpy_1=True)
    assert one(binaries(old, state=with_2), "binary:flash-attn").incidents == ("numpy-1-binary-on-numpy-2",)
    assert one(binaries(old), "binary:flash-attn").verdict == "ok"


def test_an_optional_module_that_cannot_be_loaded_is_no_fault():
    """Examples on a real machine: numba's module for TBB, cupy's for cuTENSOR."""
    missing = LinkResult(missing=(("libtbb.so.12", "/s/numba/tbbpool.so"),))
    tbb = InstalledBinary(path="numba/tbbpool.so", distribution="numba 0.68", used=True, module=True, linked=missing)
    rest = InstalledBinary(path="numba/_helper.so", distribution="numba 0.68", used=True, module=True)
    line = one(binaries(tbb, rest), "binary:others")
    assert "optional modules that cannot be loaded here: tbbpool.so" in line.observation
    assert one(binaries(tbb), "binary:numba").verdict == "bad"  # without the rest, nothing of it is left
    assert one(binaries(replace(tbb, torch=True), rest), "binary:numba").verdict == "bad"


def test_versions_of_symbols_that_the_system_lacks():
    logs: list[str] = []
    new = replace(FLASH, linked=LinkResult(versions=(("GLIBC_2.99", "/lib/libc.so.6"),)), glibc="2.99")
    line = one(binaries(new, logs=logs), "binary:flash-attn")
    assert "it needs GLIBC_2.99, which /lib/libc.so.6 does not have" in line.because
    assert "version `GLIBC_2.99' not found (required by flash_attn_2_cuda.so)" in logs[0]
    line = one(judge_machine.judge_system(replace(STATE, binaries=(new,))), "glibc")
    assert (line.verdict, line.incidents) == ("bad", ("binary-needs-newer-glibc",))


def test_a_library_of_another_release_is_named():
    """The case of transformer-engine 2.16.0 beside torch 2.11.0, in the words of ld.so."""
    missing = "cublasLtGroupedMatrixLayoutInit_internal, version libcublasLt.so.13"
    engine = replace(FLASH, distribution="transformer-engine-cu13 2.20.2", used=False, torch=False)
    line = one(binaries(replace(engine, linked=LinkResult(undefined=(missing,)))), "binary:transformer-engine-cu13")
    assert line.verdict == "bad"
    assert "not in the installed libcublasLt.so.13 (1): cublasLtGroupedMatrixLayoutInit_internal" in line.because


def test_a_symbol_that_is_missed_only_in_a_call_is_a_warning():
    """The case of transformer-engine 2.20.2 beside torch 2.11.0: it loads its core lazily."""
    missing = "cublasLtGroupedMatrixLayoutInit_internal, version libcublasLt.so.13"
    engine = replace(FLASH, distribution="transformer-engine-cu13 2.20.2", linked=LinkResult(later=(missing,)))
    line = one(binaries(engine), "binary:transformer-engine-cu13")
    assert line.verdict == "warn"
    assert f"fails when it calls what no library here has (1): {missing}" in line.because
    without = LinkResult(missing=(("libcuda.so.1", "/s/it.so"),), later=("cuInit",))
    assert one(binaries(replace(engine, linked=without)), "binary:transformer-engine-cu13").verdict == "ok"


def test_symbols_of_a_missing_driver_do_not_count():
    linked = LinkResult(missing=(("libcuda.so.1", "/x.so"),), undefined=("cuInit", "other_symbol"))
    assert judge_binaries.undefined_symbols(replace(FLASH, linked=linked), STATE) == ["other_symbol"]
    there = LinkResult(undefined=("cuInit", "other_symbol"))
    assert judge_binaries.undefined_symbols(replace(FLASH, linked=there), STATE) == ["cuInit", "other_symbol"]


def test_symbols_of_torch_count_only_if_torch_is_installed():
    """Where another library is missing too, its symbols could be in that one."""
    linked = LinkResult(missing=(("libother.so.1", "/x.so"),), undefined=(ERROR, "other_symbol"))
    item = replace(FLASH, linked=linked)
    assert judge_binaries.undefined_symbols(item, STATE) == [ERROR]
    assert judge_binaries.undefined_symbols(item, replace(STATE, torch=None)) == []


def test_binaries_without_fault_or_gpu_code_share_one_line():
    quiet = [InstalledBinary(path=f"q{n}/_x.so", distribution=f"q{n} 1", module=True) for n in range(3)]
    line = one(binaries(*quiet), "binary:others")
    assert line.observation.startswith("3 libraries of 3 distributions")


# Environment.


def test_two_distributions_that_share_files():
    overlap = FileOverlap(
        first="flash-attn 2.8.3", second="flash-attn-4 4.0.0b36", paths=("flash_attn/cute/a.py", "flash_attn/cute/b.py")
    )
    line = one(
        judge_environment.judge_environment(replace(STATE, overlaps=(overlap,)), None), "shared:flash-attn:flash-attn-4"
    )
    assert line.verdict == "warn"
    assert "and 1 more files" in line.observation
    trifle = FileOverlap(first="a 1", second="b 1", paths=("tests/__init__.py", "LICENSE"))
    assert one(judge_environment.judge_environment(replace(STATE, overlaps=(trifle,)), None), "shared").verdict == "ok"


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("/s/flash_attn-2.7.4.dist-info", "/s/flash_attn-2.8.3.dist-info", "bad"),
        ("/user/flash_attn-2.7.4.dist-info", "/s/flash_attn-2.8.3.dist-info", "warn"),
    ],
)
def test_a_distribution_that_is_installed_twice(first, second, verdict):
    twice = tuple(
        InstalledDistribution(name="flash-attn", version=info[-15:-10], info=info) for info in (first, second)
    )
    state = replace(STATE, distributions=twice, binaries=(FLASH,))
    line = one(judge_environment.judge_environment(state, None), "twice:flash-attn")
    assert (line.verdict, line.incidents) == (verdict, ("flash-attn-two-installations",))


def test_metadata_and_files_of_torch_disagree():
    torch = replace(TORCH, version="2.6.0+cu124")
    line = one(judge_environment.judge_environment(replace(STATE, torch=torch), None), "torch")
    assert line.verdict == "bad"
    assert "2.11.0" in line.because


def test_a_cpu_build_beside_a_gpu():
    state = replace(STATE, torch=replace(TORCH, version="2.11.0+cpu", cuda=None))
    assert one(judge_environment.judge_environment(state, None), "torch").verdict == "bad"


def test_a_cpu_build_of_torch_is_fine_where_there_is_no_gpu():
    state = replace(STATE, torch=replace(TORCH, version="2.11.0+cpu", cuda=None))
    assert one(judge_environment.judge_environment(state, None), "torch").verdict == "bad"
    assert one(judge_environment.judge_environment(replace(state, nvidia=NvidiaState()), None), "torch").verdict == "ok"


def test_broken_metadata_is_a_warning_with_its_path():
    line = one(
        judge_environment.judge_environment(replace(STATE, broken={"/s/~orch.dist-info": "left over"}), None),
        "metadata",
    )
    assert line.verdict == "warn"
    assert "/s/~orch.dist-info" in line.fix[0]


# Tools.


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "incidents"),
    [
        ({}, "cc", "ok", ()),
        ({"cc": None}, "cc", "bad", ()),
        ({"cc": InstalledTool(path="x", problem="CC names 'x', which is not there")}, "cc", "bad", ()),
        ({"cxx": None}, "cxx", "warn", ()),
        (
            {"cxx": InstalledTool(path="g++", version="16.1"), "nvcc": InstalledTool(path="nvcc", version="13.0")},
            "cxx",
            "warn",
            (),
        ),
        (
            {"cxx": InstalledTool(path="g++", version="15.9"), "nvcc": InstalledTool(path="nvcc", version="13.0")},
            "cxx",
            "ok",
            (),
        ),
        ({"python_h": False}, "python-h", "bad", ("python-h-missing",)),
        ({"python_h": None}, "python-h", "unknown", ()),
        ({"libcuda": ()}, "libcuda", "bad", ("libcuda-cannot-found", "ld-cannot-find-lcuda")),
        ({"libcuda_stub": "/cuda/lib64/stubs"}, "libcuda", "bad", ()),
        ({}, "nvcc", "n/a", ()),
        ({"nvcc": InstalledTool(path="nvcc", version="13.0")}, "nvcc", "ok", ()),
        ({"nvcc": InstalledTool(path="nvcc", version="13.1")}, "nvcc", "warn", ()),
        ({"nvcc": InstalledTool(path="nvcc", version="12.8")}, "nvcc", "warn", ("cuda-toolkit-other-than-torch",)),
        ({}, "ninja", "n/a", ()),
    ],
)
def test_tools(changes, name, verdict, incidents):
    line = one(judge_machine.judge_tools(machine(**changes)), name)
    assert (line.verdict, line.incidents) == (verdict, incidents)
    assert bool(line.fix) == (verdict in ("bad", "warn"))


def test_deepspeed_needs_nvcc_at_first_use():
    deepspeed = InstalledDistribution(name="deepspeed", version="0.18", info="/s/deepspeed-0.18.dist-info")
    state = replace(STATE, distributions=(*STATE.distributions, deepspeed))
    line = one(judge_machine.judge_tools(state), "nvcc")
    assert (line.verdict, line.incidents) == ("warn", ("cuda-home-not-set",))
    wrong = replace(state, machine=replace(MACHINE, nvcc=InstalledTool(path="nvcc", version="12.8")))
    assert one(judge_machine.judge_tools(wrong), "nvcc").verdict == "bad"


def test_without_a_driver_libcuda_is_unknown_and_no_incident():
    state = replace(STATE, nvidia=NvidiaState(problem="none"), machine=replace(MACHINE, libcuda=()))
    line = one(judge_machine.judge_tools(state), "libcuda")
    assert (line.verdict, line.incidents) == ("unknown", ())


# The system.


@pytest.mark.parametrize(
    ("folder", "verdict"),
    [
        ({}, "ok"),
        ({"free": GIB}, "ok"),
        ({"free": GIB - 1}, "warn"),
        ({"free": GIB // 2}, "warn"),
        ({"free": GIB // 200}, "bad"),
        ({"free": None}, "unknown"),
        ({"writable": False}, "bad"),
        ({"executable": False}, "bad"),
        ({"executable": False, "variable": "HF_HOME"}, "ok"),
        ({"free": 2 * GIB, "variable": "HF_HOME"}, "warn"),
    ],
)
def test_folders(folder, verdict):
    item = replace(CacheFolder(what="x", path="/x", free=50 * GIB, variable="TRITON_CACHE_DIR"), **folder)
    line = one(judge_machine.judge_system(machine(folders=(item,))), f"folder:{item.variable}")
    assert line.verdict == verdict


@pytest.mark.parametrize(("size", "verdict"), [(64 << 20, "warn"), (GIB, "ok"), (None, "warn")])
def test_shared_memory(size, verdict):
    assert one(judge_machine.judge_system(machine(shm=size)), "shm").verdict == verdict


def test_a_newer_libstdcxx_is_needed():
    new = replace(FLASH, glibcxx="3.4.31")
    line = one(judge_machine.judge_system(replace(STATE, binaries=(new,))), "libstdc++")
    assert (line.verdict, line.incidents) == ("bad", ("binary-needs-newer-libstdcxx",))
    assert (
        one(
            judge_machine.judge_system(replace(STATE, binaries=(replace(FLASH, glibcxx="3.4.9"),))), "libstdc++"
        ).verdict
        == "ok"
    )


def test_glibc_of_exactly_the_needed_version_is_enough():
    old, new = replace(FLASH, path="old.so", glibc="2.36"), replace(FLASH, path="new.so", glibc="2.37")
    line = one(judge_machine.judge_system(replace(STATE, binaries=(old,))), "glibc")
    assert (line.verdict, line.because) == ("ok", "old.so needs GLIBC_2.36, the newest that any binary needs")
    line = one(judge_machine.judge_system(replace(STATE, binaries=(old, new))), "glibc")
    assert (line.verdict, line.because) == ("bad", "new.so needs GLIBC_2.37, the newest that any binary needs")
    line = one(judge_machine.judge_system(replace(STATE, binaries=(old, new, replace(new, path="other.so")))), "glibc")
    assert "; 2 binaries need a newer one than this" in line.because


def test_the_glibc_of_a_binary_for_another_system_does_not_count():
    other = replace(FLASH, used=False, glibc="2.99", linked=LinkResult(missing=(("libmusl.so.1", "/x.so"),)))
    assert one(judge_machine.judge_system(replace(STATE, binaries=(other,))), "glibc").verdict == "n/a"
    assert (
        one(judge_machine.judge_system(replace(STATE, binaries=(replace(other, used=True),))), "glibc").verdict == "bad"
    )
    driver = replace(other, linked=LinkResult(missing=(("libcuda.so.1", "/x.so"),)))
    assert one(judge_machine.judge_system(replace(STATE, binaries=(driver,))), "glibc").verdict == "bad"


# Variables.


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("CUDA_VISIBLE_DEVICES", "0", "ok"),
        ("CUDA_VISIBLE_DEVICES", "", "bad"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "bad"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1234", "ok"),
        ("TORCH_CUDA_ARCH_LIST", "8.0;9.0", None),
        ("TORCH_CUDA_ARCH_LIST", "8.0+PTX", None),
        ("TORCH_CUDA_ARCH_LIST", "7.0 8.0", "bad"),
        ("TORCH_CUDA_ARCH_LIST", "Hopper", None),
        ("TORCH_CUDA_ARCH_LIST", "9.1", "bad"),
        ("PYTHONPATH", "/opt/lib/python3.8/site-packages", "bad"),
        ("PYTHONPATH", "/opt/lib/python3.1/site-packages", "bad"),
        ("PYTHONPATH", "/opt/lib/python3.11/site-packages", None),
        ("PYTHONPATH", "/s", "warn"),
        ("PYTHONPATH", "/workspace", None),
        ("PYTHONPATH", "/workspace:", None),
        ("PYTHONHOME", "/usr", "bad"),
        ("HF_HUB_OFFLINE", "1", "warn"),
        ("HF_HUB_OFFLINE", "0", None),
        ("USE_TORCH", "0", "bad"),
        ("BNB_CUDA_VERSION", "121", "warn"),
        ("BNB_CUDA_VERSION", "130", None),
        ("TRITON_INTERPRET", "1", "bad"),
        ("CUDA_LAUNCH_BLOCKING", "1", "warn"),
        ("PYTORCH_NVML_BASED_CUDA_CHECK", "1", "warn"),
        ("NVIDIA_VISIBLE_DEVICES", "void", "warn"),
        ("NVIDIA_VISIBLE_DEVICES", "all", None),
        ("LD_PRELOAD", "/x.so", "warn"),
        ("LD_LIBRARY_PATH", "/usr/lib", None),
    ],
)
def test_a_variable(name, value, verdict):
    lines = [*judge_environment.judge_variables(machine(variables={name: value}), ("sm_90",))]
    if verdict is None:
        assert [line.id for line in lines] == ["variables"]
    else:
        assert one(lines, f"variable:{name}").verdict == verdict


def test_ld_library_path_that_shadows_names_the_library_and_the_incident():
    shadow = ShadowedLibrary(
        name="libnvJitLink.so.12", taken="/cuda/x.so", instead="/s/y.so", by="nvidia/cusparse/lib/z.so"
    )
    state = replace(machine(variables={"LD_LIBRARY_PATH": "/cuda"}), shadows=(shadow,))
    line = one(judge_environment.judge_variables(state, ()), "variable:LD_LIBRARY_PATH")
    assert line.incidents == ("cusparse-nvjitlink",)
    assert "libnvJitLink.so.12 from /cuda/x.so" in line.because
    for count, more in ((3, False), (4, True)):
        shadowed = replace(state, shadows=(shadow,) * count)
        line = one(judge_environment.judge_variables(shadowed, ()), "variable:LD_LIBRARY_PATH")
        assert (" and 1 more, for" in line.because) is more
        assert (" more, for" in line.because) is more


def test_code_of_an_older_minor_is_compiled_for_a_gpu_of_the_same_major():
    for value, verdict in (("8.0", None), ("8.9", "bad"), ("7.5", "bad")):
        lines = [*judge_environment.judge_variables(machine(variables={"TORCH_CUDA_ARCH_LIST": value}), ("sm_86",))]
        verdicts = [line.verdict for line in lines if line.id != "variables"]
        assert verdicts == ([verdict] if verdict else [])


# Images.

LABELS = {
    "io.knowngood.cell": "sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311",
    "io.knowngood.gpu": "sm_90",
    "io.knowngood.cuda": "13.0",
    "io.knowngood.flash-attn": "2.8.3.post2",
}


X86_64, AARCH64 = HostArchitecture
HERE = judge_host.choose_host(X86_64)


def image_lines(image, *, state=STATE, stated=(), driver=None, host=HERE, twin=None):
    return [
        *judge_host.judge_image(
            image,
            state,
            host=host,
            twin=twin,
            stated_gpus=stated,
            stated_driver=driver,
            minimums=MINIMUMS,
            answer=None,
            tier=None,
        )
    ]


def test_an_image_on_the_gpu_that_it_was_made_for():
    lines = image_lines(ImageDescription(name="r/k:t", where="r", labels=LABELS, architecture="amd64"))
    assert overall_verdict(lines) == "ok"
    assert {line.id for line in lines} >= {"image", "driver", "image-gpu:sm_90"}


@pytest.mark.parametrize(
    ("gpu", "flash", "verdict"), [("sm_80", "2.8.3", "bad"), ("sm_80", "0", "warn"), ("sm_100", "2.8.3", "bad")]
)
def test_an_image_on_another_gpu(gpu, flash, verdict):
    image = ImageDescription(name="r/k:t", where="r", labels={**LABELS, "io.knowngood.flash-attn": flash})
    assert one(image_lines(image, stated=(gpu,)), f"image-gpu:{gpu}").verdict == verdict


def test_an_image_without_labels_is_judged_by_its_demand_on_nvidias_runtime():
    foreign = ImageDescription(name="r/k:t", where="r", variables={"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 brand=tesla"})
    lines = image_lines(foreign, driver="550.54")
    assert one(lines, "image").verdict == "unknown"
    assert one(lines, "driver").verdict == "bad"


def test_an_image_for_another_processor_and_an_engine_without_nvidias_runtime():
    image = ImageDescription(name="r/k:t", where="r", labels=LABELS, architecture="arm64", runtimes=("runc",))
    lines = image_lines(image)
    line = one(lines, "host")
    assert line.verdict == "bad"
    assert line.because == "the image is for aarch64, and its programs do not run on x86-64"
    assert (
        line.fix[-1] == f"without a GPU its core can be tried under QEMU: knowngood smoke {LABELS['io.knowngood.cell']}"
    )
    assert one(lines, "runtime").verdict == "bad"


@pytest.mark.parametrize(
    ("architecture", "host", "verdict", "fixes"),
    [
        ("arm64", judge_host.choose_host(X86_64, stated=AARCH64), "ok", ()),
        ("arm64", judge_host.choose_host(X86_64, arm_card="GH200"), "ok", ()),
        ("", HERE, "ok", ()),
        ("amd64", judge_host.choose_host(X86_64, arm_card="GH200"), "bad", ("twin: twin-id", "a host of x86-64")),
        ("amd64", judge_host.choose_host(AARCH64), "bad", ("twin: twin-id", "a host of x86-64")),
        ("s390x", HERE, "bad", ("twin: twin-id",)),
        ("amd64", judge_host.choose_host(None), "unknown", ()),
    ],
)
def test_an_image_is_judged_for_the_processor_of_its_host(architecture, host, verdict, fixes):
    image = ImageDescription(name="r/k:t", where="r", labels=LABELS, architecture=architecture)
    line = one(image_lines(image, host=host, twin="twin-id"), "host")
    assert line.verdict == verdict
    assert len(line.fix) == len(fixes)
    assert all(fix.endswith(words) for fix, words in zip(line.fix, fixes, strict=True))


def test_an_environment_runs_on_hosts_of_this_machines_processor():
    line = judge_host.judge_environment_host(judge_host.choose_host(X86_64, stated=AARCH64))
    assert (line.verdict, line.observation) == ("bad", "aarch64, as stated with --host")
    assert "for x86-64, and nothing of it runs on aarch64" in line.because
    assert "knowngood cells host=aarch64" in line.fix[1]
    assert judge_host.judge_environment_host(HERE).verdict == "ok"
    assert judge_host.judge_environment_host(judge_host.choose_host(None)).verdict == "unknown"


# What is named exists.


def test_the_incidents_that_lines_name_exist():
    import re

    known = {path.stem for path in (local_files.data_folder() / "packages/knowngood-diagnose/incidents").glob("*.yaml")}
    folder = Path(judge_machine.__file__).parent
    named = set(judge_binaries._OTHER_TORCH.values())
    for path in folder.glob("*.py"):
        for listed in re.findall(r"incidents=\(([^)]*)\)|, \((\"[a-z0-9-]+\",)\)", path.read_text()):
            named |= set(re.findall(r'"([a-z][a-z0-9-]+)"', " ".join(listed)))
    named -= {"flash-attn", "libstdc", "glibc", "torch"}
    assert {"python-h-missing", "nvidia-driver-too-old", "cuda-no-kernel-image"} <= named
    assert named <= known, named - known
