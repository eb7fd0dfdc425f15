"""Wheels that are published already: on the index, or in a list of addresses that pin their content.

Such a list has one address on each line, in pip's form: `https://.../flash_attn-2.8.3+cu12torch2.6cxx11abiTRUE-cp311-...whl#sha256=...`.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import (
    CorruptArchiveError,
    InputError,
    InputProblem,
    KnowngoodError,
    MissingError,
    UsageError,
)
from knowngood.lock import wheelhouse
from knowngood.lock.wheelhouse import WheelRecord
from knowngood.wheels import wheel_packing

_PIECE_BYTES = 1 << 20
_TIMEOUT = (20, 120)


@dataclass(frozen=True, kw_only=True)
class PublishedWheel:
    """A wheel at an address, with the hash that it must have."""

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """Return the name of the file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def read_wheel_list(path: Path) -> list[PublishedWheel]:
    """Read a list of wheels; `InputError` reports every line that is not one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    wheels, problems = [], []
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        match = re.fullmatch(r"((?:https?|file)://\S+\.whl)#sha256=([0-9a-f]{64})", text)
        if match:
            wheels.append(PublishedWheel(url=match[1], sha256=match[2]))
        else:
            text = "not an address of a wheel with its hash; write https://.../NAME.whl#sha256=<64 hex digits>"
            problems.append(InputProblem(file=str(path), line=number, column=1, text=text))
    if problems:
        raise InputError(problems)
    return wheels


def find_published_wheel(
    cell: Cell, package: str, version: str, known: Sequence[PublishedWheel], *, cxx11abi: bool
) -> PublishedWheel | None:
    """The first of the listed ones that was built for the cell, else the registry's; `None` where there is none."""
    for item in known:
        if not _mismatches(item.file, cell, package, version, cxx11abi=cxx11abi):
            return item
    return next(
        (
            item
            for item in _index_wheels(package, version)
            if not _mismatches(item.file, cell, package, version, cxx11abi=cxx11abi)
        ),
        None,
    )


def _mismatches(file: str, cell: Cell, package: str, version: str, *, cxx11abi: bool) -> list[str]:
    """Return why a file is not for the cell, by its name; its architectures are read after the download."""
    return wheelhouse.wheel_mismatches(file, cell, cxx11abi=cxx11abi, package=package, version=version, any_gpu=True)


def _index_wheels(package: str, version: str) -> list[PublishedWheel]:
    """Return the wheels of a release on the index; none when it does not answer: fetching the sdist reports that."""
    from packaging.version import Version

    from knowngood.index.artefact import UnreadableError
    from knowngood.index.package_index import SimpleIndex

    try:
        files = SimpleIndex().files(package)
    except UnreadableError:
        return []
    return [
        PublishedWheel(url=file.url, sha256=file.sha256)
        for file in files
        if file.is_wheel and file.sha256 and file.version.public == Version(version).public
    ]


def fetch_wheel(item: PublishedWheel, cell: Cell, wheel_folder: Path) -> tuple[Path, WheelRecord]:
    """Fetch a wheel into the wheelhouse, under a name that states the architectures of its libraries.

    Raises `KnowngoodError` when its hash is not the pinned one, or none of its code runs on the cell's GPU.
    """
    with local_files.scratch_folder() as scratch:
        path = scratch / item.file
        actual = download_file(item.url, path)
        if actual != item.sha256:
            raise CorruptArchiveError(item.file, expected=item.sha256, actual=actual)
        folder = scratch / "unpacked"
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        except zipfile.BadZipFile as error:
            raise KnowngoodError(f"{item.file} is not a wheel: {error}") from None
        libraries = wheel_packing.read_folder_code(folder)
        if not libraries:
            raise KnowngoodError(f"{item.file} has no GPU code; remove it from the list")
        wheel_packing.require_runnable_code(item.file, libraries, cell.gpu)
        codes = wheel_packing.list_architectures(libraries)
        local = str(parse_wheel_filename(item.file)[1].local) + "".join(f".sm{code}" for code in codes)
        wheel = wheel_packing.pack_wheel(folder, item.file, local, wheel_folder)
    inputs = {"published": item.file, "sha256": item.sha256, "architectures": codes}
    record = WheelRecord(
        wheel=wheel.name,
        sha256=wheelhouse.file_sha256(wheel),
        size=wheel.stat().st_size,
        key=wheelhouse.wheel_key(inputs),
        inputs=inputs,
        made={"fetched": True},
    )
    wheelhouse.write_wheel_record(record, wheel)
    return wheel, record


def download_file(url: str, path: Path, size: int | None = None) -> str:
    """Download a file, from `https://`, `http://` or `file://`, to `path` and return its SHA-256.

    Raises `MissingError` when it cannot be fetched, or has more than `size` bytes, where that is known.
    """
    import requests

    from knowngood.index.package_index import call_with_retries, open_http_session

    if url.startswith("file://"):
        path.write_bytes(Path(unquote(urlsplit(url).path)).read_bytes())
        return wheelhouse.file_sha256(path)

    def get() -> str:
        digest = hashlib.sha256()
        with open_http_session().get(url, stream=True, timeout=_TIMEOUT) as response, path.open("wb") as out:
            response.raise_for_status()
            for piece in response.iter_content(_PIECE_BYTES):
                digest.update(piece)
                if size is not None and out.tell() + len(piece) > size:
                    raise MissingError(f"{path.name} is longer there than the {size:,} bytes that it should have")
                out.write(piece)
            os.fsync(out.fileno())
        return digest.hexdigest()

    try:
        return call_with_retries(get)
    except requests.RequestException as error:
        status = error.response.status_code if error.response is not None else type(error).__name__
        raise MissingError(f"{path.name} cannot be fetched: {status}; check the network and the address") from None
