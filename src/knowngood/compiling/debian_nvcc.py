"""nvcc of CUDA 12: the registry's wheels of it hold ptxas and the headers, Debian's non-free package the rest.

The package is unpacked, not installed, and laid out with the headers of the wheels as a toolkit is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.compiling.toolkit import EPOCH, HOME, Tools
from knowngood.errors import KnowngoodError
from knowngood.paths import cache_dir, locked
from knowngood.system import apt, debian

SUITES = ("trixie", "bookworm")
"""Where to look, newest first; which CUDA they have is read from the mirror."""
_PACKAGE = "nvidia-cuda-toolkit"
_COMPONENTS = ("main", "contrib", "non-free")

# As in NVIDIA's own wheel of nvcc, with the folders of this layout; Debian's names those of a Debian system.
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
class Package:
    """Debian's package of a CUDA toolkit."""

    suite: str
    remote: apt.Remote

    @property
    def cuda(self) -> str:
        """Its CUDA release, `12.4`."""
        return ".".join(self.remote.version.split(".")[:2])

    @property
    def nvcc(self) -> str:
        """The version of nvcc in it, `12.4.131`."""
        return self.remote.version.partition("~")[0]

    def document(self) -> dict[str, str]:
        """By name and hash, for keys and records."""
        return {
            "file": f"{self.remote.name}_{self.remote.version}_{self.remote.arch}.deb",
            "sha256": self.remote.sha256,
        }


def fitting(found: Sequence[Package], cuda: str) -> Package | None:
    """The newest nvcc that compiles for a torch of this CUDA: of the same major release, and no later. Pure.

    Minor releases of one major are compatible; flash-attn's own wheels for all of CUDA 12 come from one of them.
    """
    major, minor = map(int, cuda.split("."))
    fits = [item for item in found if int(item.cuda.split(".")[0]) == major and int(item.cuda.split(".")[1]) <= minor]
    return max(fits, key=lambda item: tuple(map(int, item.cuda.split("."))), default=None)


def offered(say: Callable[[str], None]) -> list[Package]:
    """The toolkits that this machine's Debian mirror serves; none where it serves none."""
    say("looking for Debian's package of nvcc")
    found = []
    for suite in SUITES:
        try:
            remotes = _mirror(suite).locate([_PACKAGE])
        except KnowngoodError:
            continue
        found += [Package(suite=suite, remote=remote) for remote in remotes]
    return found


def _mirror(suite: str) -> apt.PrivateApt:
    folder = cache_dir() / "toolkits"
    archives = debian.debian_archives(suite, folder / "host")
    mirror = apt.PrivateApt(
        folder / f"apt-{suite}", [replace(item, components=_COMPONENTS) for item in archives if item.suite == suite]
    )
    mirror.refresh()
    return mirror


def assemble(package: Package, wheels: Tools, say: Callable[[str], None]) -> Path:
    """A folder with a toolkit in `HOME`: the package's programs, the wheels' headers; complete or absent."""
    whole = [package.document(), wheels.document(), _PROFILE, EPOCH]
    folder = cache_dir() / "toolkits" / hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:20]
    if folder.is_dir():
        return folder
    with locked(folder.parent):
        if folder.is_dir():
            return folder
        say(f"fetching {package.remote.name} {package.remote.version} of Debian {package.suite}")
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            work = Path(temporary)
            (file,) = _mirror(package.suite).download([_PACKAGE], work / "debs")
            with file.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != package.remote.sha256:
                raise KnowngoodError(f"{file.name} has the sha256 {found}, the mirror's list {package.remote.sha256}")
            apt.unpack(file, work / "deb")
            _lay_out(work / "deb", wheels.folder / "nvidia", work / "part" / HOME)
            for path in [work / "part", *(work / "part").rglob("*")]:
                os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
            (work / "part").rename(folder)
    return folder


def _lay_out(deb: Path, nvidia: Path, home: Path) -> None:
    """CUDA_HOME, from what the package and the wheels have."""
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
