"""nvcc with its headers, and the tools that build a wheel: wheels of the index, installed into folders of the cache.

A set is pinned by the resolver like a cell, and installed once; the name of its folder is the hash of its content.

nvcc of CUDA 12: the wheels on the index contain ptxas and the headers, Debian's non-free package has the rest.

The package is unpacked and not installed; together with the headers of the wheels it is laid out as a toolkit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.base import debian_host, private_apt
from knowngood.core.cell import Cell
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.local_files import cache_folder, lock_folder
from knowngood.core.notify import Notify
from knowngood.lock import resolver
from knowngood.lock.resolver import PinnedFile, ResolverRequest

TOOLKIT_SUITES = ("trixie", "bookworm")
"""Debian suites to look in, newest first; which CUDA they have is read from the mirror."""
_PACKAGE = "nvidia-cuda-toolkit"
_COMPONENTS = ("main", "contrib", "non-free")

# As in NVIDIA's own wheel of nvcc, with the folders of this layout; Debian's file names those of a Debian system.
_PROFILE = """\
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(CICC_PATH):$(_HERE_):
INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64"
CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""
_PROGRAMS = ("bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas", "__nvcc_device_query")


@dataclass(frozen=True, kw_only=True)
class DebianToolkit:
    """Debian's package of a CUDA toolkit."""

    suite: str
    remote: private_apt.RemotePackage

    @property
    def cuda(self) -> str:
        """Return its CUDA release, such as `12.4`."""
        return ".".join(self.remote.version.split(".")[:2])

    @property
    def nvcc(self) -> str:
        """Return the version of its nvcc, such as `12.4.131`."""
        return self.remote.version.partition("~")[0]

    def document(self) -> dict[str, str]:
        """Return the package by name and hash, for keys and records."""
        return {
            "file": f"{self.remote.name}_{self.remote.version}_{self.remote.arch}.deb",
            "sha256": self.remote.sha256,
        }


def newest_fitting_toolkit(toolkits: Sequence[DebianToolkit], cuda: str) -> DebianToolkit | None:
    """Return the newest toolkit for a torch of this CUDA: the same major release and no later minor one. Pure.

    Minor releases of one major are compatible; flash-attn's own wheels for all of CUDA 12 come from one of them.
    """
    major, minor = map(int, cuda.split("."))
    fits = [
        item for item in toolkits if int(item.cuda.split(".")[0]) == major and int(item.cuda.split(".")[1]) <= minor
    ]
    return max(fits, key=lambda item: tuple(map(int, item.cuda.split("."))), default=None)


def find_debian_toolkits(notify: Notify) -> list[DebianToolkit]:
    """Return the toolkits that this machine's Debian mirror has; none when it has none."""
    notify("looking for Debian's package of nvcc")
    toolkits = []
    for suite in TOOLKIT_SUITES:
        try:
            remotes = _toolkit_mirror(suite).locate([_PACKAGE])
        except KnowngoodError:
            continue
        toolkits += [DebianToolkit(suite=suite, remote=remote) for remote in remotes]
    return toolkits


def _toolkit_mirror(suite: str) -> private_apt.PrivateApt:
    folder = cache_folder() / "toolkits"
    archives = debian_host.find_debian_archives(suite, folder / "host")
    mirror = private_apt.PrivateApt(
        folder / f"apt-{suite}", [replace(item, components=_COMPONENTS) for item in archives if item.suite == suite]
    )
    mirror.refresh()
    return mirror


def assemble_toolkit(package: DebianToolkit, wheels: InstalledWheels, notify: Notify) -> Path:
    """Return a folder with a toolkit in `TOOLKIT_HOME`: programs of the package, headers of the wheels.

    The folder is complete or absent.
    """
    whole = [package.document(), wheels.document(), _PROFILE, TOOLKIT_EPOCH]
    folder = cache_folder() / "toolkits" / hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:20]
    if folder.is_dir():
        return folder
    with lock_folder(folder.parent):
        if folder.is_dir():
            return folder
        notify(f"fetching {package.remote.name} {package.remote.version} of Debian {package.suite}")
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            work = Path(temporary)
            (file,) = _toolkit_mirror(package.suite).download([_PACKAGE], work / "debs")
            with file.open("rb") as opened:
                actual = hashlib.file_digest(opened, "sha256").hexdigest()
            if actual != package.remote.sha256:
                raise KnowngoodError(f"{file.name} has the sha256 {actual}, the mirror states {package.remote.sha256}")
            private_apt.unpack_deb(file, work / "deb")
            _lay_out(work / "deb", wheels.folder / "nvidia", work / "part" / TOOLKIT_HOME)
            for path in [work / "part", *(work / "part").rglob("*")]:
                os.utime(path, (TOOLKIT_EPOCH, TOOLKIT_EPOCH), follow_symlinks=False)
            (work / "part").rename(folder)
    return folder


def _lay_out(deb: Path, nvidia: Path, home: Path) -> None:
    """Lay out CUDA_HOME from the files of the package and the wheels."""
    private = deb / "usr/lib/nvidia-cuda-toolkit"
    (home / "nvvm/bin").mkdir(parents=True)
    (home / "lib64").mkdir()
    shutil.copytree(private / "bin/crt", home / "bin/crt")
    for name in _PROGRAMS:
        shutil.copy2(deb / "usr/bin" / name, home / "bin")
    shutil.copy2(private / "bin/nvcc", home / "bin")
    shutil.copy2(private / "bin/cicc", home / "nvvm/bin")
    (home / "bin/nvcc.profile").write_text(_PROFILE)
    for part in sorted(nvidia.glob("*/include")):
        shutil.copytree(part, home / "include", dirs_exist_ok=True)
    shutil.copytree(nvidia / "cuda_nvcc/nvvm/libdevice", home / "nvvm/libdevice")
    for library in sorted(nvidia.glob("cuda_runtime/lib/*.so.*")):
        shutil.copy2(library, home / "lib64")
        (home / "lib64" / re.sub(r"\.so\..*$", ".so", library.name)).symlink_to(library.name)


TOOLKIT_EPOCH = 315532800
"""1980-01-01 in seconds since 1970: a header that is newer than an object would cause another compile."""

TOOLKIT_HOME = "cuda"
"""CUDA_HOME below the folder of a toolkit that is assembled here."""

# nvcc itself, the headers of its front end, the device compiler, the runtime that it links, and <cuda/std>.
_EXTRAS = {13: "nvcc,crt,nvvm,cudart,cccl", 12: "nvcc,cudart,cccl"}


REPRODUCIBLE_FLAGS: Mapping[str, str] = {"-objtemp": "-objtemp", "-frandom-seed": "-frandom-seed=1"}
"""Options of nvcc, as its help names them, and what is passed so that an object has the same bytes every time: the
first names temporary files after the object and not after a process, the second names what a file keeps to itself."""


@dataclass(frozen=True, kw_only=True)
class InstalledWheels:
    """Wheels that are installed into a folder."""

    folder: Path
    pinned: tuple[PinnedFile, ...]

    def document(self) -> list[dict[str, str]]:
        """Return the wheels by name and hash, for keys and records."""
        return [{"file": item.file, "sha256": item.sha256} for item in self.pinned]


@dataclass(frozen=True, kw_only=True)
class CudaToolkit:
    """An installed CUDA toolkit."""

    folder: Path
    """The folder that is mounted into the container."""
    home: str
    """CUDA_HOME below that folder."""
    release: str
    """The release that nvcc reports, such as `13.0`."""
    codes: frozenset[str]
    """The architectures that it compiles for, such as `90`."""
    contents: tuple[dict[str, str], ...]
    """Its packages by name and hash."""
    flags: str
    """Those of `REPRODUCIBLE_FLAGS` that this nvcc has, for `NVCC_APPEND_FLAGS`; 12.4 lacks `-frandom-seed`."""
    note: str = ""
    """Something that the user should know about it."""


def install_cuda_toolkit(
    cell: Cell, request: ResolverRequest, pins: Iterable[tuple[str, str]], notify: Notify
) -> CudaToolkit:
    """Install the toolkit for the cell's CUDA; `pins` are its locked distributions, which name the patch release.

    Raises `MissingError` when neither the index nor the Debian mirror has an nvcc for that CUDA.
    """
    version = dict(pins).get("cuda-toolkit", f"{cell.cuda}.*")
    pinned = _toolkit_wheels(cell.cuda, version, request)
    if wheels_have_nvcc(pinned, notify):
        tools = install_wheels(pinned, request, notify)
        home = next(path.parents[1] for path in sorted(tools.folder.glob("nvidia/*/bin/nvcc")))
        return _inspect_toolkit(tools.folder, home, cell.cuda, tools.document())

    package = newest_fitting_toolkit(find_debian_toolkits(notify), cell.cuda)
    if package is None:
        names = ", ".join(f"{item.name} {item.version}" for item in pinned if "nvcc" in item.name)
        raise MissingError(
            f"there is no nvcc for CUDA {cell.cuda}: {names or 'the wheels'} on the index "
            "contain no bin/nvcc, and this machine's Debian mirror has none of that major release; "
            "take a cell of CUDA 13, whose wheels have nvcc; or, for a compiled wheel, put one that was compiled "
            "elsewhere into the wheelhouse, or use the fa0 twin"
        )
    headers = install_wheels(_toolkit_wheels(package.cuda, f"{package.cuda}.*", request), request, notify)
    folder = assemble_toolkit(package, headers, notify)
    toolkit = _inspect_toolkit(folder, folder / TOOLKIT_HOME, package.cuda, [package.document(), *headers.document()])
    note = f"nvcc {package.nvcc} of Debian {package.suite} compiles for a torch of CUDA {cell.cuda}"
    return toolkit if toolkit.release == cell.cuda else replace(toolkit, note=f"{note}: the same major release")


def _toolkit_wheels(cuda: str, version: str, request: ResolverRequest) -> list[PinnedFile]:
    """Return the wheels of a toolkit's compiler and headers."""
    extras = _EXTRAS.get(int(cuda.partition(".")[0]), _EXTRAS[13])
    return resolver.resolve_distributions(_same_platform_request(request, [f"cuda-toolkit[{extras}]=={version}"]))


def wheels_have_nvcc(pinned: Sequence[PinnedFile], notify: Notify) -> bool:
    """Return whether one of these wheels contains nvcc, by their file lists; those of CUDA 12 have ptxas only."""
    from knowngood.index import wheel_contents  # it imports the client of the index

    contents = wheel_contents.read_contents_of_wheels({item.name: (item.url, item.sha256) for item in pinned}, notify)
    return any(path.endswith("bin/nvcc") for item in contents.values() for path in item.files)


def install_build_tools(requirements: Sequence[str], request: ResolverRequest, notify: Notify) -> InstalledWheels:
    """Install the tools that build a wheel, for the cell's Python."""
    return install_wheels(
        resolver.resolve_distributions(_same_platform_request(request, requirements)), request, notify
    )


def _same_platform_request(request: ResolverRequest, requirements: Sequence[str]) -> ResolverRequest:
    """Return a request for other requirements with the same Python, glibc and day."""
    return ResolverRequest(
        requirements=tuple(requirements),
        excludes=(),
        python=request.python,
        glibc=request.glibc,
        locked_at=request.locked_at,
    )


def install_wheels(pinned: Sequence[PinnedFile], request: ResolverRequest, notify: Notify) -> InstalledWheels:
    """Install wheels into a folder of the cache, which is complete or absent."""
    from uv import find_uv_bin

    lines = sorted(f"{item.name}=={item.version} --hash=sha256:{item.sha256}" for item in pinned)
    name = hashlib.sha256(json.dumps([lines, request.python, TOOLKIT_EPOCH]).encode()).hexdigest()[:20]
    folder = cache_folder() / "toolkits" / name
    tools = InstalledWheels(folder=folder, pinned=tuple(sorted(pinned, key=lambda item: item.name)))
    if folder.is_dir():
        return tools
    with lock_folder(folder.parent):
        if folder.is_dir():
            return tools
        notify(f"installing {len(pinned)} wheels: {', '.join(item.name for item in tools.pinned)}")
        for leftover in folder.parent.glob("part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            part, requirements = Path(temporary) / "part", Path(temporary) / "requirements.txt"
            requirements.write_text("\n".join(lines) + "\n")
            argv = [find_uv_bin(), "pip", "install", "--quiet", "--target", str(part), "--link-mode", "copy"]
            argv += [*resolver.uv_config_options(), "--no-deps", "--require-hashes", "--only-binary", ":all:"]
            platform = resolver.uv_platform(request.glibc, request.architecture)
            argv += ["--python-version", request.python, "--python-platform", platform]
            argv += ["--requirements", str(requirements)]
            process = subprocess.run(
                argv,
                env=resolver.uv_environment(),
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=end_with_parent(),
            )
            if process.returncode:
                raise resolver.resolver_error(process.stderr, lines)
            _normalize_folder(part)
            part.rename(folder)
    return tools


def _normalize_folder(folder: Path) -> None:
    """Set the time of every file, and link each library to the name by which a linker looks for it."""
    for lib in [path for path in folder.rglob("lib") if (path.parent / "bin" / "nvcc").exists()]:
        plain = lib.parent / "lib64"
        plain.mkdir(exist_ok=True)
        for file in sorted(lib.iterdir()):
            short = re.sub(r"\.so\.[\d.]+$", ".so", file.name)
            if file.is_file() and not (plain / short).exists():
                (plain / short).symlink_to(Path("..") / "lib" / file.name)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (TOOLKIT_EPOCH, TOOLKIT_EPOCH), follow_symlinks=False)


def _inspect_toolkit(folder: Path, home: Path, cuda: str, made_of: Sequence[dict[str, str]]) -> CudaToolkit:
    """Run nvcc to read its release, architectures and options; `KnowngoodError` when it is of another CUDA."""
    nvcc = home / "bin" / "nvcc"
    release = re.search(r"release (\d+\.\d+)", _program_output(nvcc, "--version"))
    if release is None or release[1] != cuda:
        raise KnowngoodError(f"{nvcc} is of CUDA {release[1] if release else '(unknown)'}, but CUDA {cuda} is needed")
    options = set(re.findall(r"\((-[\w-]+)\)", _program_output(nvcc, "--help")))
    return CudaToolkit(
        folder=folder,
        home=str(home.relative_to(folder)),
        release=release[1],
        codes=frozenset(re.findall(r"^sm_(\d+)$", _program_output(nvcc, "--list-gpu-code"), re.MULTILINE)),
        contents=tuple(made_of),
        flags=" ".join(flag for option, flag in REPRODUCIBLE_FLAGS.items() if option in options),
    )


def _program_output(*argv: Path | str) -> str:
    try:
        return subprocess.run(argv, check=True, capture_output=True, text=True, preexec_fn=end_with_parent()).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{argv[0]} does not run on this machine: {error}") from None


def check_toolkit_codes(toolkit: CudaToolkit, codes: Iterable[str]) -> None:
    """Check that a toolkit compiles for these architectures; `KnowngoodError` lists those it has."""
    unknown = [code for code in codes if code not in toolkit.codes]
    if unknown:
        raise KnowngoodError(
            f"nvcc {toolkit.release} does not know {', '.join(f'sm_{code}' for code in unknown)} "
            f"(nvcc --list-gpu-code has {', '.join(f'sm_{code}' for code in sorted(toolkit.codes, key=int))}); "
            "use a cell with a newer CUDA"
        )
