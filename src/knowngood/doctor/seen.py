"""What was seen of a machine and an environment, before anyone judges it. Pure; filled in at the edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from knowngood.doctor.linking import Linked
from knowngood.fatbin import Code


@dataclass(frozen=True, kw_only=True)
class Process:
    """Somebody else's work on a GPU."""

    pid: int
    name: str
    memory: int | None
    """Bytes; `None` where the driver does not tell."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as NVML describes it."""

    index: int
    name: str
    sm: str
    """`sm_90`"""
    memory: int
    used: int
    processes: tuple[Process, ...] = ()
    ecc_errors: int | None = None
    """Uncorrected since the driver was loaded; `None` without ECC."""
    mig: bool = False
    exclusive: str = ""
    """Compute mode when it is not the default: `exclusive process`, `prohibited`."""


@dataclass(frozen=True, kw_only=True)
class Nvidia:
    """The driver and its GPUs."""

    driver: str | None = None
    """`580.65.06`"""
    cuda: str | None = None
    """The newest CUDA that it knows, `13.0`."""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """Why NVML does not answer."""
    loaded: bool = False
    """The kernel has the driver, whether or not NVML answers."""


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter of the environment."""

    path: str
    why: str
    """How it was found: `--python`, `VIRTUAL_ENV`, the first on PATH."""
    version: str = ""
    prefix: str = ""
    tag: str = ""
    """Of its extension modules: `cpython-311-x86_64-linux-gnu`."""
    include: str = ""
    """Where Python.h is looked for."""
    folders: tuple[str, ...] = ()
    """Where distributions are, the first found first."""
    problem: str = ""
    """Why it does not run."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed distribution."""

    name: str
    """Canonical."""
    version: str
    info: str
    """Its `.dist-info` folder."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Two distributions that wrote the same files with different bytes."""

    first: str
    second: str
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Torch:
    """torch by its files."""

    version: str
    """With its local part, `2.11.0+cu130`."""
    cuda: str | None
    cxx11abi: bool | None
    gcc: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """CUDA -> least g++, and the first that is too new, as its own cpp_extension has them."""


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A shared library of the environment."""

    path: str
    """Below its folder of distributions."""
    distribution: str | None
    """Who installed it."""
    cache: str = ""
    """The folder of an extension that torch compiled here, for the torch of that day."""
    used: bool = False
    """Python imports it, it is linked with torch, or one that is needs it; others are loaded on demand, if ever."""
    torch: bool = False
    """It is linked with torch's libraries and is not torch's own."""
    module: bool = False
    damaged: str = ""
    """Why it cannot be read."""
    other_python: str = ""
    """The tag of the Python that it was compiled for, when that is another one."""
    code: Mapping[Code, int] = field(default_factory=dict)
    linked: Linked = field(default_factory=Linked)
    demangled: Mapping[str, str] = field(default_factory=dict)
    """Undefined symbols -> as they stand in the source."""
    cxx11abi: bool | None = None
    """The `std::string` that it passes to torch."""
    numpy_1: bool = False
    """It was compiled with the headers of NumPy 1."""
    glibc: str | None = None
    glibcxx: str | None = None


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """A library that LD_LIBRARY_PATH puts before the one that was installed for it."""

    name: str
    taken: str
    instead: str
    by: str
    """The library that needs it."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program."""

    path: str
    version: str = ""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A place that is written to."""

    what: str
    path: str
    free: int | None
    writable: bool = True
    executable: bool = True
    """It is not mounted noexec."""
    variable: str = ""
    """The environment variable that moves it."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine, but for its GPUs."""

    glibc: str | None = None
    glibcxx: str | None = None
    libstdcxx: str = ""
    """Path of the C++ library that ld.so finds."""
    libcuda: tuple[str, ...] = ()
    """Paths of `libcuda.so` and `libcuda.so.1` that ld.so's cache, TRITON_LIBCUDA_PATH or LD_LIBRARY_PATH have."""
    libcuda_stub: str = ""
    """The stub of a toolkit that stands where the driver's library should."""
    nvcc: Tool | None = None
    cc: Tool | None = None
    cxx: Tool | None = None
    ninja: Tool | None = None
    python_h: bool | None = None
    folders: tuple[Folder, ...] = ()
    shm: int | None = None
    container: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image by what it says of itself."""

    name: str
    where: str
    """Who was asked: an engine, a registry, the matrix."""
    digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its configuration."""
    architecture: str = ""
    download: int | None = None
    """Bytes of its layers, when it is not here yet."""
    runtimes: tuple[str, ...] | None = None
    """Of the engine that would run it; `None` when there is none."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All of it."""

    python: Python | None = None
    distributions: tuple[Distribution, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    """`.dist-info` folder -> what is wrong with it."""
    overlaps: tuple[Overlap, ...] = ()
    torch: Torch | None = None
    binaries: tuple[Binary, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    nvidia: Nvidia = field(default_factory=Nvidia)
    machine: Machine = field(default_factory=Machine)

    @property
    def packages(self) -> dict[str, str]:
        """Distribution -> version; of several, the one that Python finds."""
        found: dict[str, str] = {}
        for item in self.distributions:
            found.setdefault(item.name, item.version)
        return found
