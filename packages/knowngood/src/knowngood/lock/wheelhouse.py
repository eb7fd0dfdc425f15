"""Where the wheels of a cell are found: on the index, or in the wheelhouse with their records.

1. A lock names no index. What an index has is found there by its hash (`locate_wheels`).
2. The wheelhouse is a folder of wheels that no index has, each built for one CUDA, torch, C++ ABI, Python and GPU
   architecture. A wheel is chosen by its file name. Its local version says what it was built for
   (`flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl`); where the package takes
   no local version, its build tag does (`transformer_engine_torch-2.20.2-1cu13torch2.11cxx11abitrue.sm90-cp311-...`).
   Beside a compiled wheel lies its record: everything that shaped it, how it was made, and its hash.
3. `docker/wheels/<wheel>.json` is that record without what differs from one compile to the next. It is committed, so
   that a wheel from any place can be trusted by its hash.

What the wheelhouse lacks is fetched from other places (`registry.wheel_supply`), else compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from knowngood.core.cell import Cell
from knowngood.core.data_files import load_json
from knowngood.core.errors import CorruptArchiveError, MissingError, UsageError
from knowngood.core.local_files import cache_folder, write_atomically

if TYPE_CHECKING:
    from knowngood.index.artefact import PublishedFile
    from knowngood.index.package_index import SimpleIndex
    from knowngood.lock.cell_lock import Distribution
    from knowngood.lock.lock_tree import LockTree

_LOCAL = re.compile(
    r"cu(?P<cuda>\d{2,3})\.?torch(?P<torch>\d+\.\d+)\.?cxx11abi(?P<abi>true|false)(?P<sms>(\.sm\d{2,3})*)"
)


@dataclass(frozen=True, kw_only=True)
class WheelhouseWheel:
    """A wheel in the wheelhouse."""

    path: Path
    version: str
    """The version with its local part, as a lock pins it."""


def wheelhouse_folder() -> Path:
    """Return the folder of compiled wheels: what `KNOWNGOOD_WHEELHOUSE` names, else a cache folder."""
    name = os.environ.get("KNOWNGOOD_WHEELHOUSE")
    return Path(name).expanduser().resolve() if name else cache_folder() / "wheelhouse"


def wheel_mismatches(
    file: str,
    cell: Cell,
    *,
    cxx11abi: bool,
    package: str | None = None,
    version: str | None = None,
) -> list[str]:
    """Return why a wheel with this file name is not for this cell; empty when it is. Pure.

    `cxx11abi` is the C++ ABI of the cell's torch. `package` and `version` are those of the cell's flash-attn unless
    they are given.
    """
    wanted_name, wanted_version = package or cell.flash_attn_package or "", version or cell.flash_attn
    try:
        name, wheel_version, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        return [str(error)]
    wrong = []
    if name != canonicalize_name(wanted_name) or wheel_version.public != wanted_version:
        wanted = f"{wanted_name or 'flash-attn'} {wanted_version}"
        wrong.append(f"it is {name} {wheel_version.public}, the cell has {wanted}")
    python = "cp" + cell.python.replace(".", "")
    if not any(tag.interpreter == python and tag.platform.endswith("x86_64") for tag in tags):
        wrong.append(f"its tags are {'.'.join(sorted(map(str, tags)))}, the cell wants {python} on x86_64")
    local = _LOCAL.fullmatch(wheel_version.local or (build[1] if build else ""))
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
    # Machine code runs on GPUs of the same major architecture and the same or a later minor one.
    if not any(sm // 10 == number // 10 and sm <= number for sm in sms):
        wrong.append(
            f"it is for {', '.join(f'sm_{sm}' for sm in sms) or 'no stated architecture'}, the cell is {cell.gpu}"
        )
    return wrong


def find_wheel(
    cell: Cell, wheel_folder: Path, *, cxx11abi: bool, package: str | None = None, version: str | None = None
) -> tuple[WheelhouseWheel | None, list[str]]:
    """Return the wheel for this cell, or `None`, and for every other wheel of that release the reason against it.

    The package is flash-attn at the cell's version unless another one is named.
    """
    refused: list[str] = []
    release = version or cell.flash_attn
    stem = (package or "flash-attn").replace("-", "_")
    for path in sorted(wheel_folder.glob(f"{stem}-*.whl")) if wheel_folder.is_dir() else []:
        wrong = wheel_mismatches(path.name, cell, cxx11abi=cxx11abi, package=package, version=version)
        if not wrong:
            return WheelhouseWheel(path=path, version=str(parse_wheel_filename(path.name)[1])), refused
        if path.name.split("-")[1].partition("+")[0] == release:  # wheels of other releases say nothing
            refused.append(f"{path.name}: {'; '.join(wrong)}")
    return None, refused


_LOCKED_ADVICE = "put the locked wheel into the wheelhouse, or run `knowngood lock --upgrade` to take this one"


def check_wheel_hash(wheel: WheelhouseWheel, sha256: str, advice: str = _LOCKED_ADVICE) -> None:
    """Check that a wheel is the one that was locked; `CorruptArchiveError` names it, with advice, when it is not."""
    if (actual := file_sha256(wheel.path)) != sha256:
        raise CorruptArchiveError(wheel.path.name, expected=sha256, actual=actual, advice=advice)


WHEEL_RECORD_SCHEMA = "knowngood/wheel/1"


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """How a compiled wheel was made; written beside it as JSON."""

    wheel: str
    """File name of the wheel."""
    sha256: str
    size: int
    key: str
    """The hash of `inputs`."""
    inputs: Mapping[str, Any]
    """Everything that shapes the wheel."""
    made: Mapping[str, Any]
    """How the compile went: versions, attempts, seconds, objects. None of it shapes the wheel."""

    def document(self) -> dict[str, Any]:
        """Return the record as it is written."""
        return {"schema": WHEEL_RECORD_SCHEMA, **vars(self)}


def wheel_key(inputs: Mapping[str, Any]) -> str:
    """Return the SHA-256 over everything that shapes a wheel. Pure."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def wheel_record_path(wheel: Path) -> Path:
    """Return the path of a wheel's record."""
    return wheel.with_name(wheel.name + ".json")


def write_wheel_record(record: WheelRecord, wheel: Path) -> None:
    """Write a record beside its wheel."""
    write_atomically(wheel_record_path(wheel), json.dumps(record.document(), indent=1) + "\n")


def read_wheel_record(wheel: Path) -> WheelRecord | None:
    """Return the record beside a wheel, or `None` when there is none; `UsageError` when it is damaged."""
    path, remedy = wheel_record_path(wheel), "remove it and the wheel, and compile again"
    try:
        stored = load_json(path, dict[str, Any], remedy=remedy)
        schema = stored.pop("schema")
        record = WheelRecord(**stored)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({error}); {remedy}") from None
    if schema != WHEEL_RECORD_SCHEMA or record.wheel != wheel.name or record.key != wheel_key(record.inputs):
        raise UsageError(f"{path} is not the record of {wheel.name}; remove both, and compile again")
    return record


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_wheel_damage(wheel: Path) -> str | None:
    """Return why a wheel is not the one that its record describes; `None` when it is, or has no record."""
    try:
        record = read_wheel_record(wheel)
    except UsageError as error:
        return str(error)
    if record is None or (actual := file_sha256(wheel)) == record.sha256:
        return None
    return str(CorruptArchiveError(wheel.name, expected=record.sha256, actual=actual))


def read_compile_attempt(path: Path) -> dict[str, Any]:
    """Read what one attempt at a compile wrote about itself, up to the moment when it was killed."""
    return load_json(path, dict[str, Any], remedy="remove it, and compile again")


_SAME_EVERY_TIME = ("code", "versions", "flags")
"""What a record says about the compile that follows from the inputs."""


@dataclass(frozen=True, kw_only=True)
class WheelPin:
    """The file name of a compiled wheel and the bytes that it must have."""

    file: str
    sha256: str
    record: WheelRecord | None = None
    """How it was compiled, where that is recorded."""


def recorded_wheel_path(tree: LockTree, file: str) -> Path:
    """Return the path of the committed record of a wheel with this file name."""
    return wheel_record_path(tree.folder / "wheels" / file)


def list_recorded_wheels(tree: LockTree) -> list[WheelRecord]:
    """Return the committed records of wheels in the order of their names; `UsageError` when one is damaged."""
    paths = sorted((tree.folder / "wheels").glob("*.whl.json"))
    records = [read_wheel_record(path.with_name(path.name.removesuffix(".json"))) for path in paths]
    return [record for record in records if record]


def find_wheel_pin(cell: Cell, tree: LockTree, package: str, version: str, *, cxx11abi: bool) -> WheelPin | None:
    """Return the wheel of a package that a cell has locked, else one that is recorded and fits it; `None` without both.

    `cxx11abi` is the C++ ABI of the cell's torch.
    """

    def fits(file: str) -> bool:
        return not wheel_mismatches(file, cell, cxx11abi=cxx11abi, package=package, version=version)

    records = {record.sha256: record for record in list_recorded_wheels(tree) if fits(record.wheel)}
    locked = tree.load(cell)
    for item in locked.distributions if locked else ():
        if item.made_here and fits(item.file):
            return WheelPin(file=item.file, sha256=item.sha256, record=records.get(item.sha256))
    for record in records.values():
        return WheelPin(file=record.wheel, sha256=record.sha256, record=record)
    return None


def check_recorded_bytes(tree: LockTree, wheel: WheelhouseWheel) -> bool:
    """Return whether the bytes of a wheel in the wheelhouse are those of its committed record; `False` without one.

    Raises `CorruptArchiveError` when they are others.
    """
    path = recorded_wheel_path(tree, wheel.path.name)
    record = read_wheel_record(path.with_name(wheel.path.name))
    if record is None:
        return False
    advice = f"put the recorded wheel into {wheel.path.parent}, or remove {path} to lock this one"
    check_wheel_hash(wheel, record.sha256, advice)
    return True


def record_wheel(tree: LockTree, record: WheelRecord) -> bool:
    """Write the committed record of a compiled wheel, and return whether it changed.

    Raises `CorruptArchiveError` when the same inputs have given other bytes before.
    """
    path = recorded_wheel_path(tree, record.wheel)
    earlier = read_wheel_record(path.with_name(record.wheel))
    if earlier and earlier.key == record.key and earlier.sha256 != record.sha256:
        advice = (
            f"the same inputs gave other bytes when {path} was written; compare the two, and remove it to record these"
        )
        raise CorruptArchiveError(record.wheel, expected=earlier.sha256, actual=record.sha256, advice=advice)
    made = {name: record.made[name] for name in _SAME_EVERY_TIME if name in record.made}
    return write_atomically(path, json.dumps(replace(record, made=made).document(), indent=1) + "\n")


INDEX_THREADS = 4


def locate_wheels(distributions: Iterable[Distribution], index: SimpleIndex) -> dict[str, PublishedFile]:
    """Return sha256 -> file on the index, without wheels that were compiled for a cell and are on no index.

    Raises `MissingError` when the index does not answer or lacks a file.
    """
    from concurrent.futures import ThreadPoolExecutor

    from knowngood.index.artefact import UnreadableError

    wanted = {item.sha256: item for item in distributions if not Version(item.version).local}
    try:
        with ThreadPoolExecutor(INDEX_THREADS) as pool:
            pages = pool.map(index.files, sorted({item.name for item in wanted.values()}))
            files = {file.sha256: file for page in pages for file in page if file.sha256 in wanted}
    except UnreadableError as error:
        raise MissingError(f"the index must tell where the wheels are: {error}") from None
    if missing := [item.file for sha256, item in wanted.items() if sha256 not in files]:
        raise MissingError(f"the configured index does not have {missing[0]} with the hash of the lock")
    return files
