"""The wheelhouse: a folder of wheels that no index has, each built for one CUDA, torch, C++ ABI, Python, architecture.

A wheel is taken by its file name, whose local version says what it was built for
(`flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl`), or its build tag, where the
package bears no local version (`transformer_engine_torch-2.20.2-1cu13torch2.11cxx11abitrue.sm90-cp311-...`).
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from knowngood.cell import Cell
from knowngood.errors import KnowngoodError, UsageError
from knowngood.paths import cache_dir

_LOCAL = re.compile(
    r"cu(?P<cuda>\d{2,3})\.?torch(?P<torch>\d+\.\d+)\.?cxx11abi(?P<abi>true|false)(?P<sms>(\.sm\d{2,3})*)"
)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of the wheelhouse."""

    path: Path
    version: str
    """With the local part, as a lock pins it."""


def folder(option: str | None = None) -> Path:
    """Where the wheelhouse is: the option, else `KNOWNGOOD_WHEELHOUSE`, else a cache folder.

    Raises `UsageError` for an option that names no folder: without it, every cell would quietly become its `fa0` twin.
    """
    named = option or os.environ.get("KNOWNGOOD_WHEELHOUSE")
    if option and not Path(option).expanduser().is_dir():
        raise UsageError(f"--wheelhouse {option}: there is no such folder")
    return Path(named).expanduser().resolve() if named else cache_dir() / "wheelhouse"


def mismatches(  # noqa: PLR0913
    file: str,
    cell: Cell,
    *,
    cxx11abi: bool,
    package: str | None = None,
    version: str | None = None,
    any_gpu: bool = False,
) -> list[str]:
    """Why a wheel of that file name is not for this cell; empty when it is. Pure.

    `cxx11abi` is the C++ ABI of the cell's torch; `package` and `version` are flash-attn's of the cell unless given;
    with `any_gpu` the name need not say for which architecture it is.
    """
    wanted, pinned = package or cell.flash_attn_package or "", version or cell.flash_attn
    try:
        name, found, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        return [str(error)]
    wrong = []
    if name != canonicalize_name(wanted) or found.public != pinned:
        wrong.append(f"it is {name} {found.public}, the cell has {wanted or 'flash-attn'} {pinned}")
    python = "cp" + cell.python.replace(".", "")
    if not any(tag.interpreter == python and tag.platform.endswith("x86_64") for tag in tags):
        wrong.append(f"its tags are {'.'.join(sorted(map(str, tags)))}, the cell wants {python} on x86_64")
    local = _LOCAL.fullmatch(found.local or (build[1] if build else ""))
    if local is None:
        wrong.append(
            "its local version does not say CUDA, torch, ABI and architecture (+cu13torch2.11cxx11abitrue.sm90)"
        )
        return wrong
    if local["cuda"] not in (cell.cuda.replace(".", ""), cell.cuda.split(".")[0]):
        wrong.append(f"it is for CUDA {local['cuda']}, the cell has {cell.cuda}")
    if local["torch"] != ".".join(cell.torch.split(".")[:2]):
        wrong.append(f"it is for torch {local['torch']}, the cell has {cell.torch}")
    if (local["abi"] == "true") != cxx11abi:
        wrong.append(f"its C++11 ABI is {local['abi']}, that of torch {cell.torch} is {str(cxx11abi).lower()}")
    sms = [int(sm) for sm in re.findall(r"sm(\d+)", local["sms"])]
    number = int(cell.gpu.removeprefix("sm_"))
    # Machine code runs on the same major architecture, same or later minor.
    if not any_gpu and not any(sm // 10 == number // 10 and sm <= number for sm in sms):
        wrong.append(
            f"it is for {', '.join(f'sm_{sm}' for sm in sms) or 'no stated architecture'}, the cell is {cell.gpu}"
        )
    return wrong


def find(
    cell: Cell, house: Path, *, cxx11abi: bool, package: str | None = None, version: str | None = None
) -> tuple[Wheel | None, list[str]]:
    """The wheel for this cell, and for each other wheel of the package in the house the sentence that refuses it.

    The package is flash-attn at the cell's version unless another is named.
    """
    refused: list[str] = []
    stem = (package or "flash-attn").replace("-", "_")
    for path in sorted(house.glob(f"{stem}-*.whl")) if house.is_dir() else []:
        wrong = mismatches(path.name, cell, cxx11abi=cxx11abi, package=package, version=version)
        if not wrong:
            return Wheel(path=path, version=str(parse_wheel_filename(path.name)[1])), refused
        refused.append(f"{path.name} is not for {cell}: {'; '.join(wrong)}")
    return None, refused


def check_hash(wheel: Wheel, sha256: str) -> None:
    """The file is the one that was locked; `KnowngoodError` by name when it is not."""
    with wheel.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise KnowngoodError(
            f"{wheel.path.name}: its sha256 is {found}, the lock has {sha256}; "
            "put the locked wheel into the wheelhouse, or run `knowngood lock --upgrade` to take this one"
        )
