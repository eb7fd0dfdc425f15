"""Runs while a dev image is built, with the image's Python: a CUDA toolkit in one folder, as compilers look for it.

    dev_toolkit_inside.py TOOLKIT OUT

TOOLKIT holds nvcc and its headers. The headers and libraries that the cell's own NVIDIA wheels bring, such as cuBLAS,
are linked beside them, so that CUDA_HOME is enough to find everything. What the toolkit has itself is never replaced.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

CUDA_HOME = "usr/local/cuda"
"""Where compilers look for CUDA, below the root of an image."""
_WHEELS = "lib/python3*/site-packages/nvidia/*"


def assemble_cuda_home(toolkit: Path, environment: Path, home: Path) -> None:
    """Copy the toolkit to `home`, and link what the NVIDIA wheels of a virtual environment have beside it."""
    nvcc = min(toolkit.rglob("bin/nvcc"))
    shutil.copytree(nvcc.parents[1], home, symlinks=True)
    (home / "include").mkdir(exist_ok=True)
    (home / "lib64").mkdir(exist_ok=True)
    for wheel in sorted(environment.glob(_WHEELS)):
        for header in sorted(wheel.glob("include/*")):
            _link_absent(home / "include" / header.name, header)
        for library in sorted(wheel.glob("lib/*.so*")):
            _link_absent(home / "lib64" / library.name, library)
            _link_absent(home / "lib64" / re.sub(r"\.so\.[\d.]+$", ".so", library.name), library)


def _link_absent(link: Path, target: Path) -> None:
    if not link.exists() and not link.is_symlink():
        link.symlink_to(target)


if __name__ == "__main__":
    assemble_cuda_home(Path(sys.argv[1]), Path(sys.prefix), Path(sys.argv[2]) / CUDA_HOME)
