"""Reads the machine without its GPUs: compilers, Python.h, C library, libcuda, disk, variables.

An edge: it reads files and runs compilers to learn their versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.doctor import python_environment
from knowngood.doctor.judge_environment import JUDGED_VARIABLES
from knowngood.doctor.system_state import CacheFolder, InstalledTool, MachineState, PythonInterpreter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood.doctor.elf_reader import MachineLibraries

_SECONDS = 10
_SHM = Path("/dev/shm")  # noqa: S108 - the doctor examines that folder
_RELEASE = re.compile(r"release (\d+\.\d+)")


def read_machine_state(
    python: PythonInterpreter | None, source: MachineLibraries, environ: Mapping[str, str]
) -> MachineState:
    """Return the state of this machine; `python` is the interpreter of the environment, if there is one."""
    libstdcxx = source.library(source.cached("libstdc++.so.6") or "")
    return MachineState(
        glibc=python_environment.glibc_release(),
        glibcxx=libstdcxx.newest_provided("GLIBCXX_") if libstdcxx else None,
        libcuda=list_libcuda_paths(source, environ),
        libcuda_stub=_find_libcuda_stub(environ),
        nvcc=find_nvcc(environ),
        cc=_find_compiler(environ, "CC", ("gcc", "clang")),
        cxx=_find_compiler(environ, "CXX", ("g++", "c++", "clang++")),
        ninja=find_ninja(python, environ),
        python_h=(Path(python.include) / "Python.h").is_file() if python and python.include else None,
        folders=list_cache_folders(environ),
        shm=_file_system_size(_SHM) if _SHM.is_dir() else None,
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "container" in environ,
        variables={name: value for name in JUDGED_VARIABLES if (value := environ.get(name)) is not None},
    )


def list_libcuda_paths(source: MachineLibraries, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths at which triton finds the driver's library.

    It searches TRITON_LIBCUDA_PATH alone when that is set, else ld.so's cache, then LD_LIBRARY_PATH.
    """
    names = ("libcuda.so.1", "libcuda.so")
    if folder := environ.get("TRITON_LIBCUDA_PATH"):
        places = [Path(folder)]
    else:
        cached = [path for name in names if (path := source.cached(name))]
        if cached:
            return tuple(path for path in cached if Path(path).exists())
        places = [Path(item) for item in environ.get("LD_LIBRARY_PATH", "").split(":") if item]
    return tuple(str(place / name) for place in places for name in names if (place / name).exists())


def _find_libcuda_stub(environ: Mapping[str, str]) -> str:
    """Return the folder on LD_LIBRARY_PATH with a toolkit's stub of libcuda, which fails at the first call; else ""."""
    for item in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if item.rstrip("/").endswith("/stubs") and any(Path(item).glob("libcuda.so*")):
            return item
    return ""


def find_cuda_home(environ: Mapping[str, str]) -> Path | None:
    """Return the toolkit that torch's cpp_extension uses: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if folder := environ.get(name):
            return Path(folder)
    if nvcc := shutil.which("nvcc", path=environ.get("PATH")):
        return Path(nvcc).resolve().parent.parent
    default = Path("/usr/local/cuda")
    return default if default.exists() else None


def find_nvcc(environ: Mapping[str, str]) -> InstalledTool | None:
    """Return the CUDA compiler of that toolkit; `None` without a toolkit."""
    home = find_cuda_home(environ)
    if home is None:
        return None
    path = home / "bin" / "nvcc"
    if not path.exists():
        return InstalledTool(path=str(path), problem=f"{home} has no bin/nvcc")
    release = _RELEASE.search(_run([str(path), "--version"]))
    return _tool(str(path), release[1] if release else "")


def _find_compiler(environ: Mapping[str, str], variable: str, names: Sequence[str]) -> InstalledTool | None:
    """Return the compiler that triton and torch use: the variable's, else the first of the names on PATH."""
    if command := environ.get(variable):
        words = command.split() or [""]
        path = shutil.which(words[0], path=environ.get("PATH"))
        if path is None:
            return InstalledTool(path=command, problem=f"{variable} names {command!r}, which does not exist")
    else:
        path = next(filter(None, (shutil.which(name, path=environ.get("PATH")) for name in names)), None)
    if path is None:
        return None
    words = _run([path, "-dumpfullversion", "-dumpversion"]).split()
    return _tool(path, words[0] if words else "")


def _tool(path: str, version: str) -> InstalledTool:
    return InstalledTool(path=path, version=version, problem="" if version else "it does not run")


def find_ninja(python: PythonInterpreter | None, environ: Mapping[str, str]) -> InstalledTool | None:
    """Return ninja on PATH, or the one beside the environment's python, which an active environment has on PATH."""
    if path := shutil.which("ninja", path=environ.get("PATH")):
        return InstalledTool(path=path, version=_run([path, "--version"]).strip())
    if python and (beside := Path(python.path).parent / "ninja").exists():
        return InstalledTool(path=str(beside), problem="it is in the environment's bin, which is not on PATH")
    return None


def user_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this user's caches."""
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")


def list_cache_folders(environ: Mapping[str, str]) -> tuple[CacheFolder, ...]:
    """Return the folders of weights and compiled kernels, determined as the programs themselves do."""
    home = Path(environ.get("HOME") or Path.home())
    shared = user_cache_folder(environ)
    user = re.sub(r"[\\/:*?\"<>|]", "_", environ.get("USER") or environ.get("LOGNAME") or "root")
    triton = Path(environ.get("TRITON_HOME") or home) / ".triton" / "cache"
    temporary = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    places = (
        ("Hugging Face downloads", "HF_HOME", shared / "huggingface"),
        ("Triton's kernels", "TRITON_CACHE_DIR", triton),
        ("Inductor's kernels", "TORCHINDUCTOR_CACHE_DIR", temporary / f"torchinductor_{user}"),
        ("torch's extensions", "TORCH_EXTENSIONS_DIR", shared / "torch_extensions"),
        ("temporary files", "TMPDIR", temporary),
    )
    return tuple(
        _describe_folder(what, variable, Path(environ.get(variable) or default)) for what, variable, default in places
    )


def _describe_folder(what: str, variable: str, path: Path) -> CacheFolder:
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    try:
        system = os.statvfs(existing)
    except OSError:
        system = None
    return CacheFolder(
        what=what,
        variable=variable,
        path=str(path),
        free=system.f_bavail * system.f_frsize if system else None,
        writable=os.access(existing, os.W_OK | os.X_OK),
        executable=not (system and system.f_flag & os.ST_NOEXEC),
    )


def _file_system_size(path: Path) -> int:
    system = os.statvfs(path)
    return system.f_blocks * system.f_frsize


def _run(command: Sequence[str]) -> str:
    """Return what a program prints; an empty text when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
