"""nvcc of CUDA 12: the wheels on the index contain ptxas and the headers, Debian's non-free package has the rest.

The package is unpacked and not installed; together with the headers of the wheels it is laid out as a toolkit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.base import debian_host, private_apt
from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import cache_folder, lock_folder
from knowngood.core.notify import Notify
from knowngood.wheels.cuda_toolkit import TOOLKIT_EPOCH, TOOLKIT_HOME, InstalledWheels

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
