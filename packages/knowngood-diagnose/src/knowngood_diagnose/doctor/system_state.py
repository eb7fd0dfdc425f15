"""What the doctor observed on a machine and in an environment, before anything is judged. Pure; the probes fill it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.engine.probe_gpus import NvidiaState
from knowngood_diagnose.doctor.elf_reader import LinkResult
from knowngood_facts.python_environment import FileOverlap, InstalledDistribution, PythonInterpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.index.gpu_code import GpuCode


@dataclass(frozen=True, kw_only=True)
class InstalledTorch:
    """The installed torch, as its files describe it."""

    version: str
    """With its local part, `2.11.0+cu130`."""
    cuda: str | None
    cxx11abi: bool | None
    gcc: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """CUDA -> the oldest g++ that torch's cpp_extension accepts, and the first one that is too new."""


@dataclass(frozen=True, kw_only=True)
class InstalledBinary:
    """A shared library of the environment."""

    path: str
    """Relative to its folder of distributions."""
    distribution: str | None
    """The name and version of the distribution that installed it."""
    cache: str = ""
    """The folder of an extension that torch compiled here, for the torch that was installed at that time."""
    used: bool = False
    """Python imports it, it is linked with torch, or such a library needs it; others are loaded on demand, if ever."""
    torch: bool = False
    """It is linked with torch's libraries and does not belong to torch."""
    module: bool = False
    """Python imports it as a module."""
    damaged: str = ""
    """Why the file cannot be read; empty when it can."""
    other_python: str = ""
    """The tag of the Python that it was compiled for, when that is not the environment's."""
    code: Mapping[GpuCode, int] = field(default_factory=dict)
    """As `SharedLibrary.code`."""
    linked: LinkResult = field(default_factory=LinkResult)
    demangled: Mapping[str, str] = field(default_factory=dict)
    """Undefined symbol -> its name in the C++ source."""
    cxx11abi: bool | None = None
    """Whether the `std::string` that it passes to torch is that of the C++11 ABI; `None` when it passes none."""
    numpy_1: bool = False
    """It was compiled with the headers of NumPy 1."""
    glibc: str | None = None
    """The newest glibc that it demands."""
    glibcxx: str | None = None
    """The newest GLIBCXX version of libstdc++ that it demands."""


@dataclass(frozen=True, kw_only=True)
class ShadowedLibrary:
    """A library that LD_LIBRARY_PATH puts before the installed one."""

    name: str
    taken: str
    """The path that is loaded."""
    instead: str
    """The path that would be loaded without LD_LIBRARY_PATH."""
    by: str
    """The library that needs it."""


@dataclass(frozen=True, kw_only=True)
class InstalledTool:
    """A program such as a compiler."""

    path: str
    version: str = ""
    problem: str = ""
    """Why the program cannot be used; empty when it can."""


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """A folder to which programs write downloads, compiled kernels or temporary files."""

    what: str
    path: str
    free: int | None
    """Bytes; `None` where the file system does not report it."""
    writable: bool = True
    executable: bool = True
    """It is not mounted noexec."""
    variable: str = ""
    """The environment variable that moves it."""


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """The machine without its GPUs."""

    glibc: str | None = None
    glibcxx: str | None = None
    libcuda: tuple[str, ...] = ()
    """Paths of `libcuda.so` and `libcuda.so.1` in TRITON_LIBCUDA_PATH, ld.so's cache or LD_LIBRARY_PATH."""
    libcuda_stub: str = ""
    """The folder on LD_LIBRARY_PATH with a toolkit's stub of libcuda, where the driver's library should be found."""
    nvcc: InstalledTool | None = None
    cc: InstalledTool | None = None
    cxx: InstalledTool | None = None
    ninja: InstalledTool | None = None
    python_h: bool | None = None
    """Whether Python.h is there; `None` when the interpreter does not say where it belongs."""
    folders: tuple[CacheFolder, ...] = ()
    shm: int | None = None
    """The size of /dev/shm in bytes; `None` without it."""
    container: bool = False
    """Whether this runs in a container."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that are judged, as far as they are set."""


@dataclass(frozen=True, kw_only=True)
class ImageDescription:
    """An image as its labels and its configuration describe it."""

    name: str
    where: str
    """What described it: an engine, a registry, or the id of a cell."""
    digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables of its configuration."""
    architecture: str = ""
    download: int | None = None
    """Bytes of its layers, for an image that has to be pulled."""
    runtimes: tuple[str, ...] | None = None
    """The runtimes of the engine that would run it; `None` without an engine."""


@dataclass(frozen=True, kw_only=True)
class SystemState:
    """Everything that the probes observed."""

    python: PythonInterpreter | None = None
    distributions: tuple[InstalledDistribution, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    """`.dist-info` folder -> what is wrong with it."""
    overlaps: tuple[FileOverlap, ...] = ()
    torch: InstalledTorch | None = None
    binaries: tuple[InstalledBinary, ...] = ()
    shadows: tuple[ShadowedLibrary, ...] = ()
    nvidia: NvidiaState = field(default_factory=NvidiaState)
    machine: MachineState = field(default_factory=MachineState)

    @property
    def packages(self) -> dict[str, str]:
        """Distribution -> version; for one that is installed twice, the version that Python finds."""
        return {item.name: item.version for item in reversed(self.distributions)}
