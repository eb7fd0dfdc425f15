"""Observes everything that the doctor judges: the environment's files and libraries, the machine, its GPUs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.engine import probe_gpus
from knowngood_diagnose.doctor.elf_reader import (
    DynamicLinker,
    LinkResult,
    MachineLibraries,
    SharedLibrary,
    demangle_symbol,
)
from knowngood_diagnose.doctor.judge_environment import JUDGED_VARIABLES
from knowngood_diagnose.doctor.system_state import (
    CacheFolder,
    InstalledBinary,
    InstalledTool,
    InstalledTorch,
    MachineState,
    ShadowedLibrary,
    SystemState,
)
from knowngood_facts import python_environment
from knowngood_facts.facts.torch_files import detect_cxx11abi, parse_build_constants, parse_compiler_bounds
from knowngood_facts.python_environment import PythonInterpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from knowngood.core.notify import Notify
    from knowngood_facts.python_environment import EnvironmentContents


def read_system_state(named: str | None, environ: Mapping[str, str], notify: Notify) -> SystemState:
    """Observe this machine and the environment of an interpreter.

    `named` is the value of --python. Raises `MissingError` when there is no such interpreter.
    """
    python = python_environment.find_interpreter(named, environ)
    source = MachineLibraries()
    notify("reading the environment's metadata")
    contents = python_environment.read_distributions(python.folders)
    torch = _read_torch(python.folders)
    compiled = list_torch_extensions(python, torch, environ)
    paths = [*list_libraries(python.folders), *compiled]
    notify(f"reading {len(paths)} libraries")
    libraries = EnvironmentLibraries(
        paths,
        python=python,
        source=source,
        contents=contents,
        compiled=compiled,
        library_path=[folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder],
    )
    return SystemState(
        python=python,
        distributions=tuple(contents.distributions),
        broken=contents.broken,
        overlaps=contents.overlaps,
        torch=torch,
        binaries=tuple(libraries.binaries()),
        shadows=tuple(libraries.shadows()),
        nvidia=probe_gpus.read_nvidia_state(),
        machine=read_machine_state(python, source, environ),
    )


def list_libraries(folders: Iterable[str]) -> Iterator[str]:
    """Yield every shared library in folders of distributions; other folders on PYTHONPATH are not searched."""
    for folder in folders:
        if not re.search(r"(site|dist)-packages$", folder) and not any(Path(folder).glob("*.dist-info")):
            continue
        for place, below, names in os.walk(folder):
            below[:] = [name for name in below if name not in ("__pycache__", "include")]
            yield from (f"{place}/{name}" for name in sorted(names) if LIBRARY_NAME.search(name))


def list_torch_extensions(
    python: PythonInterpreter, torch: InstalledTorch | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what torch compiled for this Python and CUDA, such as deepspeed's operations.

    The result maps the path of a library to its folder; torch compiles it again when that folder is removed. torch
    keeps these folders by Python and CUDA, not by its own release, so they outlive an upgrade of torch.
    """
    if torch is None or not python.version:
        return {}
    root = environ.get("TORCH_EXTENSIONS_DIR")
    place = Path(root) if root else user_cache_folder(environ) / "torch_extensions"
    tag = f"py{''.join(python.version.split('.')[:2])}_{'cu' + torch.cuda.replace('.', '') if torch.cuda else 'cpu'}"
    return {
        str(path): str(path.parent)
        for folder in ({place} if root else set()) | {place / tag}
        for path in sorted(folder.glob("*/*.so"))
    }


def _read_torch(folders: Iterable[str]) -> InstalledTorch | None:
    for folder in folders:
        place = Path(folder) / "torch"
        try:
            build = parse_build_constants((place / "version.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        abi, bounds = None, {}
        try:
            abi = detect_cxx11abi((place / "lib" / "libc10.so").read_bytes())
            bounds = parse_compiler_bounds((place / "utils" / "cpp_extension.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            pass
        version, cuda = str(build.get("__version__", "")), build.get("cuda")
        return InstalledTorch(version=version, cuda=str(cuda) if cuda else None, cxx11abi=abi, gcc=bounds)
    return None


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


LIBRARY_NAME = re.compile(r"\.so(\.\d+)*$")
_PYTHON_TAG = re.compile(r"\.(cpython-[^.]+)\.so$")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_TORCH_SYMBOL = re.compile(rb"_ZNK?(3c10|2at|5torch)")


@dataclass(frozen=True, kw_only=True)
class DlopenFlags:
    """The flags with which a package calls `ctypes.CDLL`."""

    everywhere: bool = False
    """RTLD_GLOBAL: libraries that are loaded later see the symbols."""
    lazily: bool = False
    """RTLD_LAZY: a function that is not defined anywhere is missed when it is called, not before."""


def read_dlopen_flags(package: Path) -> DlopenFlags:
    """Return the flags in the `__init__.py` of a package and of the packages directly below it; nothing is run."""
    flags: set[str] = set()
    for path in (package / "__init__.py", *sorted(package.glob("*/__init__.py"))):
        flags |= set(_list_flags(path))
    return DlopenFlags(everywhere="RTLD_GLOBAL" in flags, lazily="RTLD_LAZY" in flags)


def _list_flags(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text))) if "CDLL" in text else []
    except (OSError, ValueError, SyntaxError):
        return
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "CDLL":
            for keyword in (item for item in node.keywords if item.arg == "mode"):
                yield from (item.attr for item in ast.walk(keyword.value) if isinstance(item, ast.Attribute))


class EnvironmentLibraries:
    """The libraries of an environment and the two linkers that they need."""

    def __init__(  # noqa: PLR0913 - what an environment consists of
        self,
        paths: Sequence[str],
        *,
        python: PythonInterpreter,
        source: MachineLibraries,
        contents: EnvironmentContents,
        compiled: Mapping[str, str],
        library_path: Sequence[str],
    ) -> None:
        """Read the libraries at `paths`.

        `compiled` maps the paths of extensions that torch compiled to their folders; `library_path` has the folders of
        LD_LIBRARY_PATH.
        """
        self._paths, self._python, self._source = paths, python, source
        self._contents, self._compiled = contents, compiled
        self._packages: dict[str, tuple[DlopenFlags, list[SharedLibrary]]] = {}
        self._libraries = {path: library for path in paths if (library := source.library(path))}
        self._torch_linker, self._linker = self._create_linkers(library_path)
        self._loaders = self._find_loaders()

    def binaries(self) -> Iterator[InstalledBinary]:
        """Yield all libraries, with the damaged ones, and with those that RECORD lists and that are missing."""
        for path in self._paths:
            if path in self._libraries:
                yield self._describe(self._libraries[path])
            elif path in self._source.damaged:
                yield self._describe_damaged(path, self._explain_damage(path))
        for path in self._contents.sizes.keys() - set(self._paths):
            if LIBRARY_NAME.search(path) and not Path(path).exists():
                yield self._describe_damaged(path, "RECORD lists it, and the file is not there")

    def shadows(self) -> Iterator[ShadowedLibrary]:
        """Yield the libraries that LD_LIBRARY_PATH replaces, each once for torch and once for all others."""
        for linker in (self._torch_linker, self._linker) if self._linker.library_path else ():
            bare = DynamicLinker(source=self._source, wheel_folders=linker.wheel_folders, loaded=linker.loaded)
            reported = set()
            for library in (item for item in self._libraries.values() if self._linker_for(item) is linker):
                for name in library.needed:
                    taken, instead = linker.find_library(name, [library]), bare.find_library(name, [library])
                    if taken and instead and not _is_same_file(taken, instead) and name not in reported:
                        reported.add(name)
                        by = self._relative_path(library.path)
                        yield ShadowedLibrary(name=name, taken=taken.path, instead=instead.path, by=by)

    def _create_linkers(self, library_path: Sequence[str]) -> tuple[DynamicLinker, DynamicLinker]:
        """Return the linker of torch's own libraries, and that of all others, for which torch's are loaded."""
        wheel_folders = [
            str(path)
            for folder in self._python.folders
            for path in sorted(Path(folder).glob("nvidia/*/lib"))
            if path.is_dir()
        ]

        def create(**scope: Any) -> DynamicLinker:
            return DynamicLinker(source=self._source, wheel_folders=wheel_folders, library_path=library_path, **scope)

        interpreter = self._source.library(os.path.realpath(self._python.path))
        global_scope = create().closure(interpreter).libraries if interpreter else ()
        torch_linker = create(global_scope=global_scope)
        loaded: dict[str, SharedLibrary] = {}
        for library in self._libraries.values():
            if self._is_torchs(library) and library.name in ("libtorch_python.so", "libtorch_global_deps.so"):
                loaded |= {item.linked_name: item for item in torch_linker.closure(library).libraries}
        return torch_linker, create(global_scope=global_scope, loaded=loaded)

    def _linker_for(self, library: SharedLibrary) -> DynamicLinker:
        return self._torch_linker if self._is_torchs(library) else self._linker

    def _is_torchs(self, library: SharedLibrary) -> bool:
        return any(library.path.startswith(f"{folder}/torch/") for folder in self._python.folders)

    def _uses_torch(self, library: SharedLibrary) -> bool:
        return not self._is_torchs(library) and any(_TORCH_LIBRARY.fullmatch(name) for name in library.needed)

    def _find_loaders(self) -> dict[str, list[SharedLibrary]]:
        """Return path -> the libraries that Python certainly loads and that load the one at the path."""
        loaders: dict[str, list[SharedLibrary]] = defaultdict(list)
        for library in self._libraries.values():
            if library.importable or self._uses_torch(library):
                for item in self._linker_for(library).closure(library).libraries:
                    loaders[item.path].append(library)
        return loaders

    @cached_property
    def _nvidia_libraries(self) -> list[SharedLibrary]:
        """Those of NVIDIA's wheels: packages that load a library on demand load them before it, with RTLD_GLOBAL."""
        return [library for path, library in self._libraries.items() if "/nvidia/" in path and "/lib/" in path]

    def _describe(self, library: SharedLibrary) -> InstalledBinary:
        tag = _PYTHON_TAG.search(library.path)
        other_python = tag[1] if tag and self._python.tag and tag[1] != self._python.tag else ""
        uses_torch = self._uses_torch(library)
        linked = LinkResult() if other_python else self._link(library)
        return InstalledBinary(
            path=self._relative_path(library.path),
            distribution=self._owner(library.path),
            cache=self._compiled.get(library.path, ""),
            used=library.path in self._loaders,
            torch=uses_torch,
            module=library.importable,
            other_python=other_python,
            code=library.code,
            linked=linked,
            demangled={text: demangle_symbol(text) for text in linked.undefined if text.startswith("_Z")},
            cxx11abi=passed_string_abi(library) if uses_torch else None,
            numpy_1=library.numpy_1,
            glibc=library.newest_demanded("GLIBC_"),
            glibcxx=library.newest_demanded("GLIBCXX_"),
        )

    def _describe_damaged(self, path: str, damage: str) -> InstalledBinary:
        return InstalledBinary(path=self._relative_path(path), distribution=self._owner(path), damaged=damage)

    def _link(self, library: SharedLibrary) -> LinkResult:
        beside = self._loaders.get(library.path, self._nvidia_libraries)
        flags, own = self._package_libraries(library.path)
        if flags.everywhere and library.importable:
            beside = [*beside, *own]
        return self._linker_for(library).link(library, beside, lazily=flags.lazily and not library.importable)

    def _package_libraries(self, path: str) -> tuple[DlopenFlags, list[SharedLibrary]]:
        """Return how the import package of a library loads its own libraries, and what those are."""
        folder = self._folder(path)
        name, inside, _ = path.removeprefix(f"{folder}/").partition("/") if folder else ("", "", "")
        if not inside or name == "torch":
            return DlopenFlags(), []
        package = f"{folder}/{name}"
        if package not in self._packages:
            libraries = self._libraries.items()
            own = [item for path, item in libraries if path.startswith(f"{package}/") and not item.importable]
            self._packages[package] = (read_dlopen_flags(Path(package)) if own else DlopenFlags(), own)
        return self._packages[package]

    def _owner(self, path: str) -> str | None:
        if folder := self._compiled.get(path):
            return f"{Path(folder).name} of torch_extensions"
        return self._contents.owners.get(path)

    def _explain_damage(self, path: str) -> str:
        recorded = self._contents.sizes.get(path)
        more = f"; RECORD has {recorded:,}" if recorded is not None and recorded != Path(path).stat().st_size else ""
        return self._source.damaged[path] + more

    def _folder(self, path: str) -> str | None:
        return next((item for item in self._python.folders if path.startswith(f"{item}/")), None)

    def _relative_path(self, path: str) -> str:
        return path.removeprefix(f"{self._folder(path)}/")


def _is_same_file(one: SharedLibrary, other: SharedLibrary) -> bool:
    return one.path == other.path or os.path.realpath(one.path) == os.path.realpath(other.path)


def passed_string_abi(library: SharedLibrary) -> bool | None:
    """Return whether the strings that a library passes to torch are of the C++11 ABI; `None` when it passes none."""
    symbols = [symbol for symbol in library.undefined if _TORCH_SYMBOL.match(symbol)]
    if any(b"NSt7__cxx11" in symbol for symbol in symbols):
        return True
    old = (demangle_symbol(symbol.decode(errors="replace")) for symbol in symbols if b"Ss" in symbol)
    return False if any("std::string" in text for text in old) else None
