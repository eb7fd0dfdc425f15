"""nvcc and what belongs to it, and the tools that build a wheel: the registry's wheels, in folders of the cache.

A set is pinned by the resolver as a cell is, and installed once; its folder's name is the hash of what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.cell import Cell
from knowngood.errors import KnowngoodError, MissingError
from knowngood.locks import contents, resolve
from knowngood.locks.resolve import Pinned, Request
from knowngood.paths import cache_dir, locked

EPOCH = 315532800
"""1980-01-01: a header that is newer than an object would have it compiled again."""

HOME = "cuda"
"""CUDA_HOME below the folder of a toolkit that is put together here."""

# nvcc itself, its front end's headers and device compiler, the runtime that it links, and what <cuda/std> is.
_EXTRAS = {13: "nvcc,crt,nvvm,cudart,cccl", 12: "nvcc,cudart,cccl"}

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Wheels, installed into a folder."""

    folder: Path
    pinned: tuple[Pinned, ...]

    def document(self) -> list[dict[str, str]]:
        """The wheels by name and hash, for keys and records."""
        return [{"file": item.file, "sha256": item.sha256} for item in self.pinned]


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit."""

    folder: Path
    """What is mounted."""
    home: str
    """CUDA_HOME below that folder."""
    release: str
    """As nvcc says it, `13.0`."""
    codes: frozenset[str]
    """The architectures that it compiles for, `90`."""
    contents: tuple[dict[str, str], ...]
    """What it is made of, by name and hash."""
    note: str = ""
    """What a reader should know of it."""


def toolkit(cell: Cell, request: Request, pins: Iterable[tuple[str, str]], say: Say) -> Toolkit:
    """The toolkit of the cell's CUDA; `pins` are the cell's own locked distributions, which name its patch release.

    Raises `MissingError` when neither the registry nor the Debian mirror has an nvcc for that CUDA.
    """
    version = dict(pins).get("cuda-toolkit", f"{cell.cuda}.*")
    pinned = _wheels(cell.cuda, version, request)
    if has_nvcc(pinned, say):
        tools = install(pinned, request, say)
        home = next(path.parents[1] for path in sorted(tools.folder.glob("nvidia/*/bin/nvcc")))
        return _looked_at(tools.folder, home, cell.cuda, tools.document())
    from knowngood.compiling import debian_nvcc

    package = debian_nvcc.fitting(debian_nvcc.offered(say), cell.cuda)
    if package is None:
        names = ", ".join(f"{item.name} {item.version}" for item in pinned if "nvcc" in item.name)
        raise MissingError(
            f"there is no nvcc for CUDA {cell.cuda}: {names or 'the wheels'} on the registry "
            "holds no bin/nvcc, and this machine's Debian mirror serves none of that major release; "
            "put a wheel that was compiled elsewhere into the wheelhouse, or take the fa0 twin"
        )
    headers = install(_wheels(package.cuda, f"{package.cuda}.*", request), request, say)
    folder = debian_nvcc.assemble(package, headers, say)
    made = _looked_at(folder, folder / HOME, package.cuda, [package.document(), *headers.document()])
    said = f"nvcc {package.nvcc} of Debian {package.suite} compiles for a torch of CUDA {cell.cuda}"
    return made if made.release == cell.cuda else replace(made, note=f"{said}: the same major release")


def _wheels(cuda: str, version: str, request: Request) -> list[Pinned]:
    """The registry's wheels of a toolkit's compiler and headers."""
    extras = _EXTRAS.get(int(cuda.partition(".")[0]), _EXTRAS[13])
    return resolve.resolve(_asked(request, [f"cuda-toolkit[{extras}]=={version}"]))


def has_nvcc(pinned: Sequence[Pinned], say: Say) -> bool:
    """Whether one of these wheels holds the compiler itself, read from their file lists: CUDA 12's have ptxas only."""
    found = contents.read_all({item.name: (item.url, item.sha256) for item in pinned}, say)
    return any(path.endswith("bin/nvcc") for item in found.values() for path in item.files)


def builders(requirements: Sequence[str], request: Request, say: Say) -> Tools:
    """The tools that build a wheel, for the cell's Python."""
    return install(resolve.resolve(_asked(request, requirements)), request, say)


def _asked(request: Request, requirements: Sequence[str]) -> Request:
    """The same Python, glibc and day, other requirements."""
    return Request(
        requirements=tuple(requirements),
        excludes=(),
        python=request.python,
        glibc=request.glibc,
        locked_at=request.locked_at,
    )


def install(pinned: Sequence[Pinned], request: Request, say: Say) -> Tools:
    """The wheels in a folder of the cache; complete or absent."""
    from uv import find_uv_bin

    lines = sorted(f"{item.name}=={item.version} --hash=sha256:{item.sha256}" for item in pinned)
    name = hashlib.sha256(json.dumps([lines, request.python, EPOCH]).encode()).hexdigest()[:20]
    folder = cache_dir() / "toolkits" / name
    tools = Tools(folder=folder, pinned=tuple(sorted(pinned, key=lambda item: item.name)))
    if folder.is_dir():
        return tools
    with locked(folder.parent):
        if folder.is_dir():
            return tools
        say(f"installing {len(pinned)} wheels: {', '.join(item.name for item in tools.pinned)}")
        for leftover in folder.parent.glob("part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            part, requirements = Path(temporary) / "part", Path(temporary) / "requirements.txt"
            requirements.write_text("\n".join(lines) + "\n")
            argv = [find_uv_bin(), "pip", "install", "--quiet", "--target", str(part), "--link-mode", "copy"]
            argv += [*resolve.config(), "--no-deps", "--require-hashes", "--only-binary", ":all:"]
            argv += ["--python-version", request.python, "--python-platform", resolve.platform(request.glibc)]
            argv += ["--requirements", str(requirements)]
            done = subprocess.run(argv, env=resolve.environment(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise resolve.failure(done.stderr, lines)
            _settle(part)
            part.rename(folder)
    return tools


def _settle(folder: Path) -> None:
    """Old times everywhere, and for each library the name by which a linker looks for it."""
    for lib in [path for path in folder.rglob("lib") if (path.parent / "bin" / "nvcc").exists()]:
        plain = lib.parent / "lib64"
        plain.mkdir(exist_ok=True)
        for file in sorted(lib.iterdir()):
            short = re.sub(r"\.so\.[\d.]+$", ".so", file.name)
            if file.is_file() and not (plain / short).exists():
                (plain / short).symlink_to(Path("..") / "lib" / file.name)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)


def _looked_at(folder: Path, home: Path, cuda: str, made_of: Sequence[dict[str, str]]) -> Toolkit:
    """What the toolkit says of itself."""
    nvcc = home / "bin" / "nvcc"
    release = re.search(r"release (\d+\.\d+)", _said(nvcc, "--version"))
    if release is None or release[1] != cuda:
        raise KnowngoodError(f"{nvcc} is of {release[1] if release else 'no release'}, wanted is CUDA {cuda}")
    return Toolkit(
        folder=folder,
        home=str(home.relative_to(folder)),
        release=release[1],
        codes=frozenset(re.findall(r"^sm_(\d+)$", _said(nvcc, "--list-gpu-code"), re.MULTILINE)),
        contents=tuple(made_of),
    )


def _said(*argv: Path | str) -> str:
    try:
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{argv[0]} does not run on this machine: {error}") from None


def knows(found: Toolkit, codes: Iterable[str]) -> None:
    """The toolkit compiles for these architectures; `KnowngoodError` with those it has when not."""
    unknown = [code for code in codes if code not in found.codes]
    if unknown:
        raise KnowngoodError(
            f"nvcc {found.release} does not know {', '.join(f'sm_{code}' for code in unknown)} "
            f"(nvcc --list-gpu-code has {', '.join(f'sm_{code}' for code in sorted(found.codes, key=int))}); "
            "take a cell whose CUDA does"
        )
