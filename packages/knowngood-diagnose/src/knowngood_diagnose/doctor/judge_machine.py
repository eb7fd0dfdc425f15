"""Judges what Triton, Inductor and extensions compile with, the C and C++ libraries, disk and shared memory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowngood_diagnose.doctor.doctor_line import BAD, NOT_APPLICABLE, OK, UNKNOWN, WARN, DoctorLine, DoctorVerdict
from knowngood_diagnose.doctor.elf_reader import version_numbers
from knowngood_diagnose.doctor.judge_binaries import missing_libraries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knowngood_diagnose.doctor.system_state import (
        CacheFolder,
        InstalledBinary,
        InstalledTool,
        MachineState,
        SystemState,
    )

_COMPILE_AT_FIRST_USE = frozenset({"deepspeed"})
"""Packages that compile CUDA extensions when they are used."""
_GIB = 1 << 30
_MINIMUM_FREE = {"HF_HOME": 10 * _GIB}
_MINIMUM_FREE_ELSEWHERE = 1 * _GIB
_MINIMUM_SHM = 1 * _GIB
_SHM = "/dev/shm"  # noqa: S108 - the line is about that folder


def judge_tools(state: SystemState) -> Iterator[DoctorLine]:
    """Judge compilers, Python.h, libcuda, nvcc and ninja."""
    yield _judge_c_compiler(state)
    yield _judge_cxx_compiler(state)
    yield _judge_python_h(state)
    yield _judge_libcuda(state)
    yield _judge_nvcc(state)
    yield _judge_ninja(state)


def _judge_c_compiler(state: SystemState) -> DoctorLine:
    line = _tool_line("cc", "C compiler", state.machine.cc)
    if "triton" not in state.packages:
        return line.judged(NOT_APPLICABLE, "there is no triton that would use it")
    because = "Triton compiles its launcher in C when the first kernel runs"
    return _judge_tool(line, state.machine.cc, BAD, because, "apt-get install gcc")


def _judge_cxx_compiler(state: SystemState) -> DoctorLine:
    tool, torch = state.machine.cxx, state.torch
    line = _tool_line("cxx", "C++ compiler", tool)
    if torch is None:
        return line.judged(NOT_APPLICABLE, "there is no torch that would use it")
    because = "torch.compile (with FlexAttention too) and extensions are compiled with it"
    line = _judge_tool(line, tool, WARN, because, "apt-get install g++")
    bounds = torch.gcc.get(torch.cuda or "")
    if line.verdict is not OK or tool is None or not bounds or "clang" in tool.path or not state.machine.nvcc:
        return line
    oldest, too_new = bounds
    if version_numbers(oldest) <= version_numbers(tool.version) < version_numbers(too_new):
        return line
    newest_major = int(too_new.split(".")[0]) - 1
    return line.judged(
        WARN,
        f"torch {torch.version} compiles CUDA {torch.cuda} extensions with g++ from {oldest} to below {too_new}",
        f"apt-get install g++-{newest_major}, and CXX=g++-{newest_major}",
        source=("torch/utils/cpp_extension.py",),
    )


def _tool_line(name: str, subject: str, tool: InstalledTool | None) -> DoctorLine:
    return DoctorLine(name, subject, f"{tool.path} {tool.version}".strip() if tool else "none")


def _judge_tool(
    line: DoctorLine, tool: InstalledTool | None, verdict: DoctorVerdict, because: str, fix: str
) -> DoctorLine:
    """Give the line this verdict when the program is absent or does not work."""
    if tool is None:
        return line.judged(verdict, because, fix)
    if tool.problem:
        return line.judged(verdict, f"{tool.problem}; {because[0].lower()}{because[1:]}", fix)
    return line


def _judge_python_h(state: SystemState) -> DoctorLine:
    python, subject = state.python, "Python.h"
    if "triton" not in state.packages:
        return DoctorLine("python-h", subject, "not needed").judged(
            NOT_APPLICABLE, "there is no triton that would include it"
        )
    if python is None or state.machine.python_h is None:
        return DoctorLine("python-h", subject, "the interpreter does not say where it belongs").judged(UNKNOWN)
    if state.machine.python_h:
        return DoctorLine("python-h", subject, python.include)
    release = ".".join(python.version.split(".")[:2])
    return DoctorLine("python-h", subject, f"not in {python.include}").judged(
        BAD,
        "Triton compiles its launcher against it when the first kernel runs",
        f"apt-get install libpython{release}-dev (or the headers of this Python, from where it was installed)",
        incidents=("python-h-missing",),
        source=("facts/triton.json (python_h)",),
    )


def _judge_libcuda(state: SystemState) -> DoctorLine:
    machine, subject = state.machine, "libcuda"
    if state.torch is None or state.torch.cuda is None:
        line = DoctorLine("libcuda", subject, "not needed")
        return line.judged(NOT_APPLICABLE, "there is no torch with CUDA that would load it")
    if machine.libcuda_stub:
        return DoctorLine("libcuda", subject, f"the stub in {machine.libcuda_stub}").judged(
            BAD,
            "a toolkit's stub on LD_LIBRARY_PATH hides the driver's library: it links, and every call fails",
            f"remove {machine.libcuda_stub} from LD_LIBRARY_PATH",
        )
    if machine.libcuda:
        return DoctorLine("libcuda", subject, ", ".join(machine.libcuda))
    line = DoctorLine("libcuda", subject, "neither libcuda.so.1 nor libcuda.so where ld.so searches")
    because = f"torch and {'triton' if 'triton' in state.packages else 'others'} load the driver's library"
    start = "start the container with the GPU (--gpus all)" if machine.container else "install the NVIDIA driver"
    source = ("facts/triton.json (libcuda)",)
    if not (state.nvidia.gpus or state.nvidia.loaded):
        return line.judged(UNKNOWN, f"{because}; a machine without the driver does not have it", start, source=source)
    incidents = ("libcuda-cannot-found", "ld-cannot-find-lcuda")
    set_path = "run ldconfig, or set TRITON_LIBCUDA_PATH to its folder"
    return line.judged(BAD, because, set_path, start, incidents=incidents, source=source)


def _judge_nvcc(state: SystemState) -> DoctorLine:
    tool, cuda = state.machine.nvcc, state.torch.cuda if state.torch else None
    users = sorted(_COMPILE_AT_FIRST_USE & state.packages.keys())
    if tool is None or tool.problem:
        line = DoctorLine("nvcc", "nvcc", tool.problem if tool else "none")
        if not users:
            because = "only needed to compile CUDA extensions (flash-attn from source, for example)"
            return line.judged(NOT_APPLICABLE, because)
        because = f"{', '.join(users)} compiles its operations when they are first used"
        fix = f"a CUDA toolkit {cuda or 'of the same CUDA as torch'}, and CUDA_HOME set to it"
        return line.judged(WARN, because, fix, incidents=("cuda-home-not-set",))
    line = _tool_line("nvcc", "nvcc", tool)
    if cuda is None or version_numbers(cuda) == version_numbers(tool.version):
        return line
    fix = f"set CUDA_HOME to a toolkit {cuda}"
    if version_numbers(cuda)[:1] == version_numbers(tool.version)[:1]:
        return line.judged(WARN, f"torch has CUDA {cuda}: extensions compile with a warning", fix)
    because = f"torch has CUDA {cuda}: torch refuses to compile extensions with it"
    return line.judged(BAD if users else WARN, because, fix, incidents=("cuda-toolkit-other-than-torch",))


def _judge_ninja(state: SystemState) -> DoctorLine:
    because = "torch compiles extensions with it (without it one file at a time, or not at all)"
    line = _tool_line("ninja", "ninja", state.machine.ninja)
    fix = "pip install ninja, in the active environment"
    line = _judge_tool(line, state.machine.ninja, WARN, because, fix)
    if line.verdict is WARN and not _COMPILE_AT_FIRST_USE & state.packages.keys():
        return line.judged(NOT_APPLICABLE, "only needed to compile extensions")
    return line


def judge_system(state: SystemState) -> Iterator[DoctorLine]:
    """Judge glibc, libstdc++, the folders that programs write to, and shared memory."""
    yield _judge_newest_version(state, "glibc", "GLIBC_", state.machine.glibc)
    yield _judge_newest_version(state, "libstdc++", "GLIBCXX_", state.machine.glibcxx)
    yield from (_judge_folder(item) for item in state.machine.folders)
    yield _judge_shm(state.machine)


def _judge_newest_version(state: SystemState, library: str, prefix: str, installed: str | None) -> DoctorLine:
    """Judge the C or the C++ library by the binary that demands the newest version of its symbols."""
    demands = [
        (demand, binary)
        for binary in state.binaries
        if _is_for_this_system(binary) and (demand := binary.glibc if library == "glibc" else binary.glibcxx)
    ]
    if not demands:
        line = DoctorLine(library, library, installed or "?")
        return line.judged(NOT_APPLICABLE, "no binary demands a version of it")
    newest, binary = max(demands, key=lambda pair: version_numbers(pair[0]))
    line = DoctorLine(library, library, f"{prefix}{installed}" if installed else "not found")
    because = f"{binary.path} needs {prefix}{newest}, the newest that any binary needs"
    if installed is None or version_numbers(newest) <= version_numbers(installed):
        return line.judged(OK if installed else UNKNOWN, because)
    count = sum(version_numbers(demand) > version_numbers(installed) for demand, _ in demands)
    more = f"; {count} binaries need a newer one than this" if count > 1 else ""
    known = {"glibc": "binary-needs-newer-glibc", "libstdc++": "binary-needs-newer-libstdcxx"}
    return line.judged(
        BAD,
        because + more,
        "a newer base system (or image)",
        f"or a build of {binary.distribution or binary.path} made on this system",
        incidents=(known[library],) if library in known else (),
    )


def _is_for_this_system(binary: InstalledBinary) -> bool:
    """Return false for one that is loaded on demand and whose libraries are missing: it is for other systems."""
    return binary.used or not missing_libraries(binary)


def _judge_folder(folder: CacheFolder) -> DoctorLine:
    free = f", {folder.free / _GIB:.1f} GiB free" if folder.free is not None else ""
    line = DoctorLine(f"folder:{folder.variable}", folder.what, folder.path + free)
    minimum = _MINIMUM_FREE.get(folder.variable, _MINIMUM_FREE_ELSEWHERE)
    move = f"set {folder.variable} to a folder on another disk"
    if not folder.writable:
        return line.judged(BAD, "this user cannot write there", move)
    if not folder.executable and folder.variable != "HF_HOME":
        return line.judged(BAD, "it is mounted noexec: what is compiled there cannot be loaded", move)
    if folder.free is None:
        return line.judged(UNKNOWN, "its file system does not report the free space")
    if folder.free < minimum:
        verdict = BAD if folder.free < minimum / 100 else WARN
        return line.judged(verdict, f"less than {minimum // _GIB} GiB are free", "free some space", move)
    return line


def _judge_shm(machine: MachineState) -> DoctorLine:
    because = "data loaders with workers and NCCL share memory there"
    if machine.shm is None:
        return DoctorLine("shm", _SHM, "none").judged(WARN, because)
    size = f"{machine.shm / _GIB:.1f} GiB" if machine.shm >= _GIB else f"{machine.shm >> 20} MiB"
    line = DoctorLine("shm", _SHM, size)
    if machine.shm >= _MINIMUM_SHM:
        return line
    return line.judged(WARN, f"{because}; too little is a bus error", "docker run --ipc=host, or --shm-size=16g")
