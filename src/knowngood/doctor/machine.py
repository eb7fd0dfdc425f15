"""The machine but for its GPUs: compilers, headers, C library, where ld.so finds libcuda, disk, variables. An edge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from knowngood.doctor.seen import Folder, Machine, Python, Tool
from knowngood.doctor.shelf import Files
from knowngood.doctor.variables import NAMES

_SECONDS = 10
_SHM = Path("/dev/shm")  # noqa: S108 - this is about that place
_RELEASE = re.compile(r"release (\d+\.\d+)")


def look(python: Python | None, shelf: Files, environ: Mapping[str, str]) -> Machine:
    """All of it."""
    from knowngood import installed

    libstdcxx = shelf.cached("libstdc++.so.6") or ""
    library = shelf.library(libstdcxx) if libstdcxx else None
    return Machine(
        glibc=installed.libc(),
        glibcxx=library.has("GLIBCXX_") if library else None,
        libstdcxx=libstdcxx,
        libcuda=libcuda(shelf, environ),
        libcuda_stub=_stub(environ),
        nvcc=nvcc(environ),
        cc=_compiler(environ, "CC", ("gcc", "clang")),
        cxx=_compiler(environ, "CXX", ("g++", "c++", "clang++")),
        ninja=ninja(python, environ),
        python_h=(Path(python.include) / "Python.h").is_file() if python and python.include else None,
        folders=folders(environ),
        shm=_size(_SHM) if _SHM.is_dir() else None,
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "container" in environ,
        variables={name: value for name in NAMES if (value := environ.get(name)) is not None},
    )


def libcuda(shelf: Files, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where triton would find the driver's library: TRITON_LIBCUDA_PATH alone, ld.so's cache, LD_LIBRARY_PATH."""
    names = ("libcuda.so.1", "libcuda.so")
    if folder := environ.get("TRITON_LIBCUDA_PATH"):
        places = [Path(folder)]
    else:
        cached = [path for name in names if (path := shelf.cached(name))]
        if cached:
            return tuple(path for path in cached if Path(path).exists())
        places = [Path(item) for item in environ.get("LD_LIBRARY_PATH", "").split(":") if item]
    return tuple(str(place / name) for place in places for name in names if (place / name).exists())


def _stub(environ: Mapping[str, str]) -> str:
    """A toolkit's stub of libcuda on LD_LIBRARY_PATH: it links, and fails at the first call."""
    for item in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if item.rstrip("/").endswith("/stubs") and any(Path(item).glob("libcuda.so*")):
            return item
    return ""


def cuda_home(environ: Mapping[str, str]) -> Path | None:
    """The toolkit that torch's cpp_extension takes: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if folder := environ.get(name):
            return Path(folder)
    if found := shutil.which("nvcc", path=environ.get("PATH")):
        return Path(found).resolve().parent.parent
    default = Path("/usr/local/cuda")
    return default if default.exists() else None


def nvcc(environ: Mapping[str, str]) -> Tool | None:
    """The CUDA compiler."""
    home = cuda_home(environ)
    if home is None:
        return None
    path = home / "bin" / "nvcc"
    if not path.exists():
        return Tool(path=str(path), problem=f"{home} has no bin/nvcc")
    told = _run([str(path), "--version"])
    release = _RELEASE.search(told)
    return Tool(path=str(path), version=release[1]) if release else Tool(path=str(path), problem="it does not run")


def _compiler(environ: Mapping[str, str], variable: str, names: Sequence[str]) -> Tool | None:
    """The compiler that triton and torch take: the variable's, else the first of the names on PATH."""
    if said := environ.get(variable):
        words = said.split() or [""]
        path = shutil.which(words[0], path=environ.get("PATH"))
        if path is None:
            return Tool(path=said, problem=f"{variable} names {said!r}, which is not there")
    else:
        path = next((found for name in names if (found := shutil.which(name, path=environ.get("PATH")))), None)
    if path is None:
        return None
    told = _run([path, "-dumpfullversion", "-dumpversion"]).split()
    return Tool(path=path, version=told[0]) if told else Tool(path=path, problem="it does not run")


def ninja(python: Python | None, environ: Mapping[str, str]) -> Tool | None:
    """ninja, on PATH or beside the environment's python (then it is found once the environment is active)."""
    if path := shutil.which("ninja", path=environ.get("PATH")):
        return Tool(path=path, version=_run([path, "--version"]).strip())
    if python and (beside := Path(python.path).parent / "ninja").exists():
        return Tool(path=str(beside), problem="it is in the environment's bin, which is not on PATH")
    return None


def cache_home(environ: Mapping[str, str]) -> Path:
    """The folder of this user's caches."""
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")


def folders(environ: Mapping[str, str]) -> tuple[Folder, ...]:
    """Where weights and compiled kernels are kept, as the programs themselves look for it."""
    home = Path(environ.get("HOME") or Path.home())
    shared = cache_home(environ)
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
    return tuple(_folder(what, variable, Path(environ.get(variable) or default)) for what, variable, default in places)


def _folder(what: str, variable: str, path: Path) -> Folder:
    there = next((place for place in (path, *path.parents) if place.exists()), Path("/"))
    try:
        flags = os.statvfs(there).f_flag
    except OSError:
        flags = 0
    return Folder(
        what=what,
        variable=variable,
        path=str(path),
        free=_free(there),
        writable=os.access(there, os.W_OK | os.X_OK),
        executable=not flags & os.ST_NOEXEC,
    )


def _free(path: Path) -> int | None:
    try:
        told = os.statvfs(path)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize


def _size(path: Path) -> int:
    told = os.statvfs(path)
    return told.f_blocks * told.f_frsize


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
