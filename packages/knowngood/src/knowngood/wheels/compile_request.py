"""What a compile is: the wheel that a cell needs, the plan, and the outcome.

The source archive (sdist) that is compiled: from the index or from a file, checked by its hash.

The settings with which a package's own setup compiles for one architecture and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.core.matrix import Matrix
from knowngood.images import build_command
from knowngood.images.pipeline import Pipeline
from knowngood.index.cxx_standard import find_passed_standard, is_build_file
from knowngood.lock import wheelhouse
from knowngood.lock.lock_tree import CellLock
from knowngood.lock.wheelhouse import WheelRecord

_LARGEST_SETUP = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """A source archive on this machine."""

    package: str
    """Canonical name, such as `flash-attn`."""
    version: str
    path: Path
    file: str
    """The name under which it was published."""
    sha256: str

    def setup(self) -> str:
        """Return the text of its `setup.py`, or an empty text; `KnowngoodError` when it is no archive."""
        with self._open() as archive:
            for member in archive:
                if member.isreg() and member.name.count("/") == 1 and member.name.endswith("/setup.py"):
                    opened = archive.extractfile(member)
                    return opened.read(_LARGEST_SETUP).decode(errors="replace") if opened else ""
        return ""

    def read_build_files(self) -> list[str]:
        """Return the text of each file that decides how its extension is compiled."""
        with tarfile.open(self.path) as archive:
            files = [archive.extractfile(item) for item in archive if is_build_file(item.name.partition("/")[2])]
            return [file.read().decode(errors="replace") for file in files if file]

    def unpack(self, folder: Path) -> None:
        """Extract the files below `folder` with the times of the archive.

        This is done before every attempt, since a setup may remove files of its own when it is done.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with self._open() as archive:
            archive.extractall(folder, filter=_below_top)  # noqa: S202  # _below_top applies the data filter

    @contextlib.contextmanager
    def _open(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.path) as archive:
                yield archive
        except (tarfile.TarError, zlib.error, EOFError, KeyError) as error:
            raise KnowngoodError(f"{self.file} is not a readable sdist: {error}") from None


def _below_top(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return the member without the top folder, or `None`; a path that would leave `folder` is refused."""
    rest = member.name.partition("/")[2]
    return tarfile.data_filter(member.replace(name=rest), folder) if rest else None


def read_sdist_file(name: str) -> Sdist:
    """Return the sdist at a path; `FILE#sha256=...` pins its content, as in pip's links."""
    text, _, fragment = name.partition("#")
    path = Path(text).expanduser()
    if not path.is_file():
        raise UsageError(f"--sdist {text}: there is no such file")
    package, version = _parse_sdist_name(path.name)
    with path.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if fragment:
        pin = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if pin is None:
            raise UsageError(f"--sdist {name}: write sha256= and 64 hex digits after #")
        if pin[1] != actual:
            raise KnowngoodError(f"{path.name}: its sha256 is {actual}, not {pin[1]} as stated; it is another file")
    return Sdist(package=package, version=version, path=path.resolve(), file=path.name, sha256=actual)


def _parse_sdist_name(file: str) -> tuple[str, str]:
    if not file.endswith(".tar.gz"):
        raise UsageError(f"{file} is not an sdist: its name must end in .tar.gz")
    try:
        name, version = parse_sdist_filename(file)
    except InvalidSdistFilename as error:
        raise UsageError(f"this is not the name of an sdist: {error}") from None
    return name, str(version)


def fetch_sdist(package: str, version: str) -> Sdist:
    """Return the sdist of a release, checked against the hash that the index states.

    Raises:
        MissingError: the index does not answer.
        KnowngoodError: it has no such sdist, states no hash, or serves a corrupt one; or the cache's copy was damaged.
    """
    from knowngood.index.artefact import BrokenArchiveError, UnreadableError
    from knowngood.index.package_index import SimpleIndex
    from knowngood.index.remote_archive import RemoteSdist

    name = canonicalize_name(package)
    try:
        index = SimpleIndex()
        files = [file for file in index.files(name) if file.version == Version(version) and not file.is_wheel]
        file = next((file for file in files if file.name.endswith(".tar.gz")), None)
        if file is None:
            raise KnowngoodError(f"the index has no sdist (.tar.gz) of {package} {version}")
        if not file.sha256:
            raise KnowngoodError(f"the index states no sha256 for {file.name}, so it cannot be verified")
        path = RemoteSdist(file, index.session).path
    except UnreadableError as error:
        transient = error.again and not isinstance(error, BrokenArchiveError)
        raise (MissingError if transient else KnowngoodError)(f"{package} {version}: {error}") from None
    with path.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if actual != file.sha256:  # the cache's copy: the download was checked when it arrived
        path.unlink()
        raise KnowngoodError(
            f"{file.name} in the cache has the sha256 {actual}, the index states {file.sha256}; "
            "it was damaged and is now removed: run it again"
        )
    return Sdist(package=name, version=str(file.version), path=path, file=file.name, sha256=actual)


MEMORY_PER_JOB = 7 << 30
"""Bytes for each job: NVIDIA's device compiler was seen using 6.2 GB for one of flash-attn's files."""

BUILD_REQUIREMENTS = ("ninja", "packaging", "psutil", "setuptools<81", "wheel")
"""What building an extension of torch needs; older torch imports `pkg_resources`, which setuptools 81 removed."""


@dataclass(frozen=True, kw_only=True)
class CompileRecipe:
    """How one package is compiled."""

    env: Mapping[str, str] = field(default_factory=dict)
    switch: str | None = None
    """The environment variable in which its setup takes architectures, as in `90;100`; without one, torch's own."""
    requires: tuple[str, ...] = ()
    """What its setup needs besides `BUILD_REQUIREMENTS`."""
    plain: bool = False
    """Whether the wheel keeps its published version, because the package compares it; the build tag has the rest."""
    minutes: int | None = None
    """Minutes that compiling took on two idle cores, by docs/compile.md; `None` where nobody noted them."""

    def estimate_minutes(self, cores: int) -> int | None:
        """Return about how many minutes it takes on a machine with so many cores; `None` where that is not known."""
        return None if self.minutes is None else max(1, round(self.minutes * 2 / cores))


RECIPES: Mapping[str, CompileRecipe] = {
    "flash-attn": CompileRecipe(
        # Otherwise its setup looks for a published wheel, and compiles every file with four threads.
        env={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "NVCC_THREADS": "1"},
        switch="FLASH_ATTN_CUDA_ARCHS",
        minutes=88,
    ),
    "transformer-engine-torch": CompileRecipe(
        env={"NVTE_FRAMEWORK": "pytorch", "NVTE_PYTORCH_FORCE_BUILD": "TRUE"},
        switch="NVTE_CUDA_ARCHS",
        requires=("pybind11",),
        plain=True,  # transformer_engine/common asserts that its version equals that of its core exactly
    ),
    "deepspeed": CompileRecipe(
        # Of its operators the optimizer that it takes for a GPU, since the others are seldom asked for.
        env={"DS_ACCELERATOR": "cuda", "DS_BUILD_FUSED_ADAM": "1"},
        minutes=3,
        requires=("einops", "hjson", "msgpack", "py-cpuinfo", "pydantic", "tqdm"),  # its setup imports deepspeed
        plain=True,  # deepspeed/git_version_info_installed.py says the version too
    ),
}


def find_recipe(package: str) -> CompileRecipe:
    """Return the recipe of a package; an extension that uses torch's own build helper needs none."""
    return RECIPES.get(package, CompileRecipe())


def check_cxx_standard(sdist: Sdist, torch: str, demanded: int | None) -> None:
    """Raise `KnowngoodError` when the build of an sdist passes a lower C++ standard than torch's headers demand."""
    passed = find_passed_standard(sdist.read_build_files())
    if passed and demanded and passed < demanded:
        raise KnowngoodError(
            f"{sdist.package} {sdist.version} cannot be compiled against torch {torch}: its build passes "
            f"-std=c++{passed}, and torch's headers demand C++{demanded}; take a torch that accepts C++{passed}, or "
            "with --sdist a source whose flag is changed"
        )


@dataclass(frozen=True, kw_only=True)
class CompileTarget:
    """The architectures that a wheel is compiled for, and how its setup is told."""

    codes: tuple[str, ...]
    """Architectures as nvcc numbers them, such as `90`."""
    env: Mapping[str, str]
    note: str = ""
    """Something that the user should know, such as that the GPU runs the code of another architecture."""


_ACCEPTED_CODE = re.compile(r"""["'](\d{2,3})["'] in cuda_archs\(\)""")
_FIXED_CODE = re.compile(r"code=sm_(\d{2,3})")


def choose_target(package: str, version: str, setup: str, gpu: str) -> CompileTarget:
    """Choose the architectures for a GPU such as `sm_86`; `setup` is the text of the release's setup.py.

    Raises `KnowngoodError` when the release has no code that this GPU runs.
    """
    number = gpu.removeprefix("sm_")
    setup = re.sub(r"(?m)^\s*#.*$", "", setup)
    switch = find_recipe(package).switch
    if switch is None:
        return CompileTarget(codes=(number,), env={"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"})
    if switch in setup:
        accepted = tuple(dict.fromkeys(_ACCEPTED_CODE.findall(setup)))
    elif always := tuple(dict.fromkeys(_FIXED_CODE.findall(setup))):
        _newest_code_for(package, version, always, number)
        note = f"{package} {version} has no setting for architectures: it always compiles for {_describe_codes(always)}"
        return CompileTarget(codes=always, env={}, note=note)
    else:
        accepted = ()
    if not accepted:  # the setup takes any architecture, or has no device code
        return CompileTarget(codes=(number,), env={switch: number})
    code = _newest_code_for(package, version, accepted, number)
    note = "" if code == number else f"{gpu} runs sm_{code} code; {switch} accepts {_describe_codes(accepted)}"
    return CompileTarget(codes=(code,), env={switch: code}, note=note)


def _newest_code_for(package: str, version: str, codes: tuple[str, ...], number: str) -> str:
    """Return the newest of `codes` that the GPU runs: the same major architecture and no later minor one."""
    fits = [code for code in codes if code[:-1] == number[:-1] and int(code) <= int(number)]
    if not fits:
        raise KnowngoodError(
            f"{package} {version} has no code for sm_{number}: its setup compiles for {_describe_codes(codes)}; code "
            "runs on its own major architecture only, so use a cell without it"
        )
    return max(fits, key=int)


def _describe_codes(codes: tuple[str, ...]) -> str:
    return ", ".join(f"sm_{code}" for code in codes)


def wheel_local_version(cell: Cell, codes: tuple[str, ...], *, cxx11abi: bool) -> str:
    """Return the local version of a wheel, as flash-attn's own releases spell it, with the architectures added."""
    torch = ".".join(cell.torch.split(".")[:2])
    sms = "".join(f".sm{code}" for code in codes)
    return f"cu{cell.cuda.split('.')[0]}torch{torch}cxx11abi{str(cxx11abi).lower()}{sms}"


def jobs_that_fit(cores: int, available: int, each: int) -> int:
    """Return how many compile jobs a machine can run at once: one for each core, as many as memory allows (bytes)."""
    return min(cores, available // each)


def choose_jobs(cores: int, available: int, each: int, limit: int | None) -> int:
    """Return how many compile jobs run at once: as many as fit, and at most `limit`.

    Raises `KnowngoodError` when memory is too small for a single one.
    """
    most = jobs_that_fit(cores, available, each)
    if most < 1:
        raise KnowngoodError(
            f"one compile job needs {each / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are free; "
            "free some memory, or allow less with --memory-per-job"
        )
    return min(most, limit or most)


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options that all compiles of a run share."""

    wheelhouse: Path
    memory_each: int = MEMORY_PER_JOB
    """Memory for each job in bytes."""
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """A wheel that a cell needs."""

    cell: Cell
    package: str
    version: str
    sdist: Sdist | None = None
    """The source archive when it comes from a file; otherwise it is fetched from the index."""


def needed_wheels(cells: Sequence[Cell], matrix: Matrix) -> list[WheelRequest]:
    """Return the wheels that these cells need and no index has. Pure."""
    return [
        WheelRequest(cell=cell, package=package, version=version)
        for cell in cells
        for package, version in matrix.compiled_packages(cell)
    ]


class WheelStatus(StrEnum):
    """How a wheel came into the wheelhouse."""

    PRESENT = "present"
    FETCHED = "fetched"
    COMPILED = "compiled"


@dataclass(frozen=True, kw_only=True)
class WheelResult:
    """A wheel in the wheelhouse, and how it came there."""

    cell: str
    package: str
    version: str
    status: WheelStatus
    wheel: Path
    seconds: float
    record: WheelRecord | None
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return the entry of `compile --json`."""
        return {
            "cell": self.cell,
            "package": self.package,
            "version": self.version,
            "status": str(self.status),
            "wheel": str(self.wheel),
            "seconds": round(self.seconds, 1),
            "note": self.note,
            "record": self.record.document() if self.record else None,
        }


def failed_wheel_document(order: WheelRequest, error: KnowngoodError) -> dict[str, Any]:
    """Return the entry of `compile --json` for a wheel that could not be made."""
    return {
        "cell": str(order.cell),
        "package": order.package,
        "version": order.version,
        "status": "failed",
        "error": str(error),
        "exit": error.exit_code,
    }


@dataclass(frozen=True, kw_only=True)
class CompileCapacity:
    """What a place offers for a compile."""

    processors: int
    memory: int
    """In bytes, what is free now; each compiler takes a part of it."""


@dataclass(frozen=True, kw_only=True)
class CompileHost:
    """The cell in whose image a wheel is compiled: it has the same torch, and no compiled wheel."""

    line: Pipeline
    """The pipeline that builds the image."""
    locked: CellLock
    plan: build_command.CellBuildPlan


@dataclass(frozen=True, kw_only=True)
class CompilePlan:
    """Everything that is decided before the compiler runs."""

    name: str
    """Name of the compile; one for each folder of objects, so that no two runs compile the same."""
    host: CompileHost
    sdist: Sdist
    work: Path
    """The build folder; its name is a hash of what shapes the objects."""
    toolkit: Path
    tools: Path
    env: Mapping[str, str]
    power: CompileCapacity
    jobs: int
    inputs: Mapping[str, Any]
    """Everything that shapes the wheel."""
    local: str
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the hash of everything that shapes the wheel."""
        return wheelhouse.wheel_key(self.inputs)


@dataclass(frozen=True, kw_only=True)
class CompileOutcome:
    """How a compile ended, and the folder with what it left: `unpacked`, `attempt-N.json`, `log`."""

    folder: Path
    code: int
    out_of_memory: bool
    """Whether the engine reported it; `compile_inside` reports it for the processes that it started."""
    result: Mapping[str, Any]
    """What `compile_inside` wrote; empty when it was killed."""

    @property
    def log(self) -> Path:
        """Return the path of the compilers' output."""
        return self.folder / "log"


def compile_variables(home: str, jobs: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the build. Pure."""
    cuda = f"/toolkit/{home}"
    return {
        "CUDA_HOME": cuda,
        "PATH": f"{cuda}/bin:/tools/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/tools",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": "315532800",
        "MAX_JOBS": str(jobs),
        "HOME": "/tmp",  # noqa: S108  # in the container
        "LC_ALL": "C.UTF-8",
        **extra,
    }
